#!/usr/bin/env bash
# Promise: the commands of the README print what the README shows.
# readme_commands.sh README PROGRAM SOURCE: runs each ```bash block of build/run/shardloom that is followed by a ```text
# block, and finds the lines of the text in its output, in their order. A line "..." matches any lines, and
# "..." at the end of a line matches its rest.
set -euo pipefail
readme="$1" program="$2" source="$3"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$source/engine" "$work/engine"  # the data of the commands
cd "$work"

# command-N and text-N of each pair.
awk '
  /^```/ { if (block != "") { kind = block; block = "" } else { block = substr($0, 4); if (block == "bash") { ++n; has[n] = 0 } } next }
  block == "bash" { print > ("command-" n) }
  block == "text" { print > ("text-" n) }
' "$readme"

checked=0
for command in command-*; do
  text="text-${command#command-}"
  if [ ! -f "$text" ] || ! grep -q '^build/run/shardloom' "$command"; then continue; fi
  status=0
  sed "s|^build/run/shardloom|$program|" "$command" | bash > output 2>&1 || status=$?
  # 3: a plan whose step does not fit.
  if [ "$status" -ne 0 ] && [ "$status" -ne 3 ]; then
    echo "status $status of:"; cat "$command" output
    exit 1
  fi
  awk -v command="$(cat "$command")" '
    FNR == NR { shown[++n] = $0; next }
    { while (at < n && shown[at + 1] == "...") ++at }
    at < n { want = shown[at + 1]; rest = want ~ /\.\.\.$/; if (rest) want = substr(want, 1, length(want) - 3)
             sub(/ +$/, "", $0)
             if ($0 == want || (rest && index($0, want) == 1)) ++at }
    END { while (at < n && shown[at + 1] == "...") ++at
          if (at < n) { print "not printed by " command ":\n" shown[at + 1]; exit 1 } }
  ' "$text" output
  checked=$((checked + 1))
done
if [ "$checked" -lt 2 ]; then
  echo "$readme: $checked commands with their output, expected 2 or more"
  exit 1
fi
