#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the sources that differ from a commit: bash cmake/tidy.sh [COMMIT, default main]
# Needs clang-tidy-14 and a configured build/release. Not part of continuous integration.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -f build/release/compile_commands.json ]; then
  echo "cmake/tidy.sh: no build/release/compile_commands.json; run cmake --preset release" >&2
  exit 1
fi
git diff --name-only --diff-filter=d "${1:-main}" -- '*.cpp' |
  xargs -r -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p build/release
