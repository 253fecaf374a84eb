#!/usr/bin/env bash
# Builds a library of custom operators when its sources, the interface, the flags or the compiler changed, and prints
# its path:
#   build.sh NAME SOURCE...
# Folder: $MS_COMPILER_CACHE_PATH/NAME, or ./kernel_meta/NAME. Compiler and flags: $CXX, $CXXFLAGS, $LDFLAGS.
set -euo pipefail
if [ $# -lt 2 ] || [[ ! $1 =~ ^[A-Za-z0-9_.-]+$ ]]; then
  echo "usage: build.sh NAME SOURCE...; NAME has letters, digits, _, . and -" >&2
  exit 2
fi
name=$1
shift
include=$(cd "$(dirname "$0")/../.." && pwd)
header=$include/engine/custom_op/abi.h
compiler=${CXX:-g++}
flags="-std=c++17 -O2 -shared -fPIC -fvisibility=hidden ${CXXFLAGS:-}"
folder=${MS_COMPILER_CACHE_PATH:-./kernel_meta}/$name
sum=$({ sha256sum < "$header"; for source in "$@"; do sha256sum < "$source"; done
        echo "$flags" "${LDFLAGS:-}"; "$compiler" --version; } | sha256sum | cut -c 1-16)
library=$folder/$name-$sum.so
if [ ! -f "$library" ]; then
  mkdir -p "$folder"
  # shellcheck disable=SC2086  # flags are words
  "$compiler" $flags -I "$include" "$@" ${LDFLAGS:-} -o "$library.$$"
  mv "$library.$$" "$library"
fi
echo "$library"
