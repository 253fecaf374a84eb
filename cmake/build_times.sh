#!/usr/bin/env bash
# How long a build from nothing takes: bash cmake/build_times.sh [PRESET]...    (default: run)
#
# Configures each preset in a new folder below build/times, builds it without the object cache, and prints the wall time and
# a table: folder, steps, seconds of all its steps (two steps run at a time), percent. Rooms that share groups are one line for
# each kind of options (cmake/LoomRooms.cmake). docs/contributing.md has the figures.
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/run_env.sh
export CCACHE_DISABLE=1

for preset in "${@:-run}"; do
  folder=build/times/$preset
  rm -rf "$folder"
  cmake --preset "$preset" -B "$folder" -Wno-dev > /dev/null
  targets=()
  [ "$preset" = run ] && targets=(shardloom)
  begin=$(date +%s)
  ninja -C "$folder" -j2 "${targets[@]}" > "$folder/build.log"
  echo "$preset: $(($(date +%s) - begin)) s"
  # .ninja_log: begin and end in ms, time stamp, output, hash.
  awk -F'\t' 'NR > 1 && $4 ~ /\.(o|gch)$/ {
      room = $4; sub(/^CMakeFiles\/loom_/, "rooms: ", room); sub(/(\/CMakeFiles|\.dir).*/, "", room); seconds[room] += ($2 - $1) / 1000; steps[room]++; all += ($2 - $1) / 1000
    }
    END { for (room in seconds) printf "| `%s` | %d | %.0f | %.1f |\n", room, steps[room], seconds[room], 100 * seconds[room] / all
          printf "| all | | %.0f | |\n", all }' "$folder/.ninja_log" | sort -t'|' -k4 -rn
done
