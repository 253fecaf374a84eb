#!/usr/bin/env bash
# Installs the Debian 12 packages that are missing: `run` (the program) or `test` (also tests and benchmarks).
# Needs root or sudo only when something is missing. Prints one line about what it installed, nothing when all is there.
set -euo pipefail

# docs/dependencies.md gives the reason for each.
run=(build-essential cmake ninja-build ccache
     libfmt-dev libspdlog-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libbiosoup-dev libjs-chart.js
     libeigen3-dev libtbb-dev libnuma-dev libisal-dev libssl-dev libonig-dev libutf8proc-dev libsnappy-dev libzstd-dev zlib1g-dev liblz4-dev libspng-dev libjpeg62-turbo-dev libopenmpi-dev openmpi-bin
     dpkg-dev file)
test=(libgtest-dev libgmock-dev libbenchmark-dev chromium clang-format-14 clang-19 libclang-rt-19-dev lld-19 cpio iproute2 pkgconf libdnnl-dev qemu-system-x86 zsh fish)

case "${1:-}" in
  run) wanted=("${run[@]}") ;;
  test) wanted=("${run[@]}" "${test[@]}") ;;
  *) echo "usage: $0 run|test" >&2; exit 2 ;;
esac

if ! command -v apt-get > /dev/null; then
  echo "$0: this is not Debian (no apt-get); install the packages of docs/dependencies.md by other means" >&2
  exit 1
fi

missing=()
for package in "${wanted[@]}"; do
  dpkg -s "$package" 2> /dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "$0: missing ${missing[*]}; run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" > "$log" 2>&1 < /dev/null; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  cat "$log" >&2
  echo "$0: could not install ${missing[*]} (apt-get's words are above)" >&2
  exit 1
fi
echo "Installed ${missing[*]}"
