#!/usr/bin/env bash
# Hosts on one machine: network namespaces with host names of their own (host0, host1, ...) at 10.78.0.10, 10.78.0.11, ..., joined by
# a switch.
#   hosts.sh up COUNT | down          makes them; removes them and kills what runs there
#   hosts.sh on NUMBER COMMAND...     runs a command on a host
#   hosts.sh cut NUMBER | mend NUMBER takes the cable of a host away; brings it back
# Needs root and iproute2. LOOM_HOSTS names the set (default loomh), so that several may stand side by side.
set -euo pipefail
set=${LOOM_HOSTS:-loomh}

spaces() { ip netns list | awk '{print $1}' | grep -E "^${set}([0-9]+|s)$" || true; }

case "${1:-}" in
  up)
    ip netns add "${set}s"
    ip -n "${set}s" link add name switch type bridge
    ip -n "${set}s" link set switch up
    for ((i = 0; i < $2; ++i)); do
      ip netns add "$set$i"
      ip link add "eth0" netns "$set$i" type veth peer name "port$i" netns "${set}s"
      ip -n "${set}s" link set "port$i" master switch up
      ip -n "$set$i" addr add "10.78.0.1$i/24" dev eth0
      ip -n "$set$i" link set lo up
      ip -n "$set$i" link set eth0 up
    done
    ;;
  down)
    for space in $(spaces); do
      ip netns pids "$space" | xargs -r kill -9 || true  # what has ended by itself
      ip netns del "$space"
    done
    ;;
  on)
    host=$2
    shift 2
    exec ip netns exec "$set$host" unshare -u bash -c 'hostname "$0"; exec "$@"' "host$host" "$@"
    ;;
  cut) ip -n "${set}s" link set "port$2" down ;;
  mend) ip -n "${set}s" link set "port$2" up ;;
  *)
    sed -n '2,7s/^# *//p' "$0"
    exit 2
    ;;
esac
