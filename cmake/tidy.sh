#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the sources that differ from a commit: bash cmake/tidy.sh [COMMIT, default main]
# Needs clang-tidy-14, and configures build/tidy, where GCC's options hold for all sources. Not part of continuous integration.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release -B build/tidy -DLOOM_TEST_COMPILER= -DLOOM_UNITY=OFF -Wno-dev > /dev/null
git diff --name-only --diff-filter=d "${1:-main}" -- '*.cpp' |
  xargs -r -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p build/tidy
