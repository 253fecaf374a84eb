#!/usr/bin/env bash
# Starts ranks as processes that meet over TCP on this machine, as on hosts of their own, and ends with the status of the first that fails.
#   start_ranks.sh COUNT PROGRAM ARGUMENTS...
set -uo pipefail
count=$1
shift
# The first free port from a number of this process, below those that the system gives to connections.
port=$((10000 + $$ % 20000))
while (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((port + 1)); done
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=$count LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
for ((rank = 1; rank < count; ++rank)); do RANK=$rank "$@" & done
RANK=0 "$@" &
status=0
for _ in $(seq "$count"); do
  wait -n
  ended=$?
  [ $status -ne 0 ] || status=$ended
done
exit $status
