#!/usr/bin/env bash
# Boots numa_guest as the first process of an emulated machine and reads its verdict: bash numa_test.sh GUEST NODES FOLDER
#   two nodes   each with a core and memory
#   four nodes  the last without memory; node 2 is its nearest
# The kernel is Debian's: $SHARDLOOM_TEST_KERNEL, one in /boot, or what fetch_kernel.sh fetched. Status 77: skipped.
set -euo pipefail
guest=$1 nodes=$2 folder=$3

skip() { echo "skipped: $1"; exit 77; }
command -v qemu-system-x86_64 > /dev/null || skip "no qemu-system-x86_64; apt-get install --no-install-recommends qemu-system-x86"
command -v cpio > /dev/null || skip "no cpio; apt-get install cpio"
fetched=${XDG_CACHE_HOME:-$HOME/.cache}/shardloom/kernel
kernel=${SHARDLOOM_TEST_KERNEL:-}
for file in /boot/vmlinuz-* "$fetched"/vmlinuz-*; do
  [ -n "$kernel" ] || { [ -r "$file" ] && kernel=$file; } || true
done
[ -n "$kernel" ] || skip "no kernel to boot; bash $(dirname "$0")/fetch_kernel.sh puts Debian's into $fetched"

rm -rf "$folder"
mkdir -p "$folder/root"
cp "$guest" "$folder/root/init"
ldd "$guest" | grep -o '/[^ ]*' | while read -r library; do
  mkdir -p "$folder/root$(dirname "$library")"
  cp -L "$library" "$folder/root$library"
done
mkdir -p "$folder"/root/{proc,sys,dev,cgroup}
(cd "$folder/root" && find . | cpio --quiet -o -H newc) | gzip -1 > "$folder/initramfs.gz"

machine=()
for ((node = 0; node < nodes; ++node)); do
  if ((nodes == 4 && node == 3)); then
    machine+=(-numa "node,nodeid=$node,cpus=$node")
  else
    machine+=(-object "memory-backend-ram,id=memory$node,size=256M" -numa "node,nodeid=$node,cpus=$node,memdev=memory$node")
  fi
done
memory=$((nodes == 4 ? 768 : 512))
for ((from = 0; from < nodes; ++from)); do
  for ((to = from + 1; to < nodes; ++to)); do
    distance=$((to - from == 1 ? 15 : 30))
    machine+=(-numa "dist,src=$from,dst=$to,val=$distance")
  done
done

timeout 240 qemu-system-x86_64 -accel tcg -cpu max -smp "$nodes" -m "${memory}M" "${machine[@]}" -display none -no-reboot \
  -monitor none -serial stdio -kernel "$kernel" -initrd "$folder/initramfs.gz" \
  -append "console=ttyS0 quiet panic=-1 nodes=$nodes" < /dev/null | tr -d '\r' > "$folder/console.txt" || true
cat "$folder/console.txt"
grep -q '^VERDICT: ok$' "$folder/console.txt" || { echo "the guest did not say ok; its console is above"; exit 1; }
