#!/usr/bin/env bash
# processor_object.sh LD NM OBJCOPY LEVEL OUT OBJECT...: the objects as one relocatable object OUT, whose global functions
# end with .LEVEL and which has no other global symbol (LoomProcessors.cmake).
set -euo pipefail
ld="$1" nm="$2" objcopy="$3" level="$4" out="$5"
shift 5
"$ld" -r --force-group-allocation -o "$out.joined" "$@"
"$nm" --defined-only --extern-only "$out.joined" | awk '$2 == "T" { print $3 }' | sort > "$out.functions"
data=$("$nm" -C --defined-only --extern-only "$out.joined" | awk '$2 ~ /^[DBR]$/' )
if [ -n "$data" ]; then
  echo "$out: global data, which every level would have for itself: $data" >&2
  exit 1
fi
awk -v level="$level" '{ print $1, $1 "." level }' "$out.functions" > "$out.names"
"$objcopy" --keep-global-symbols="$out.functions" "$out.joined"
"$objcopy" --redefine-syms="$out.names" "$out.joined" "$out"
rm "$out.joined" "$out.names"
