#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests: bash tests/run.sh [release|debug|asan|tsan]... (default: release)
#   release  optimised, all tests
#   debug    with assertions, all tests
#   asan     address and undefined-behaviour sanitizers, the tests labelled unit
#   tsan     thread sanitizer, the tests labelled tsan
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/run_env.sh

presets=("${@:-release}")
for preset in "${presets[@]}"; do
  case "$preset" in
    release | debug | asan | tsan) ;;
    *) echo "tests/run.sh: unknown preset '$preset'; use release, debug, asan or tsan" >&2; exit 2 ;;
  esac
done

bash cmake/install_packages.sh test
for preset in "${presets[@]}"; do
  echo "== $preset"
  begin=$SECONDS
  cmake --preset "$preset" -Wno-dev
  cmake --build --preset "$preset"
  ctest --preset "$preset"
  echo "== $preset took $((SECONDS - begin)) s"
done
