#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests: bash tests/run.sh [release|engine|debug|asan|tsan]... (default: release)
#   release  optimised, all tests
#   engine   optimised, without text, conversion and chat, the tests of its command line
#   debug    with assertions, all tests
#   asan     address and undefined-behaviour sanitizers, the tests labelled asan, and every parser under libFuzzer
#   tsan     thread sanitizer, the tests labelled tsan
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/run_env.sh

presets=("${@:-release}")
for preset in "${presets[@]}"; do
  case "$preset" in
    release | engine | debug | asan | tsan) ;;
    *) echo "tests/run.sh: unknown preset '$preset'; use release, engine, debug, asan or tsan" >&2; exit 2 ;;
  esac
done

bash cmake/install_packages.sh test
bash tests/numa/fetch_kernel.sh || echo "tests/run.sh: no kernel for the NUMA tests, which are skipped" >&2
for preset in "${presets[@]}"; do
  echo "== $preset"
  begin=$SECONDS
  cmake --preset "$preset" -Wno-dev
  cmake --build --preset "$preset"
  ctest --preset "$preset"
  echo "== $preset took $((SECONDS - begin)) s"
done
