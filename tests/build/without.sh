#!/bin/sh
# Runs a command that finds some folders empty: without.sh FOLDER... -- COMMAND. In mounts of its own, under `unshare --mount`.
set -e
while [ "$1" != -- ]; do
  # A folder below one that is hidden already is gone.
  if [ -d "$1" ]; then mount -t tmpfs none "$1"; fi
  shift
done
shift
exec "$@"
