#!/usr/bin/env bash
# Fails with the names of the sources that are not as clang-format leaves them: bash tests/build/check_format.sh CLANG_FORMAT
# Each is put right by: CLANG_FORMAT -i FILE
set -euo pipefail
cd "$(dirname "$0")/../.."
format=$1

unformatted=$(find engine sharding recompute offload models examples tests bench \( -name '*.h' -o -name '*.cpp' \) -print0 |
  xargs -0 -n 40 -P 2 "$format" --dry-run 2>&1 | sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: warning: code should be clang-formatted.*/\1/p' | sort -u)
[ -z "$unformatted" ] && exit 0
echo "Not as clang-format leaves them; run $format -i on:" >&2
echo "$unformatted" >&2
exit 1
