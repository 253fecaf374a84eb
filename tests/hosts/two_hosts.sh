#!/usr/bin/env bash
# Two hosts on one machine: network namespaces with host names of their own, joined by one link of 10.77.0.0/24.
#   two_hosts.sh up | down            makes them; removes them
#   two_hosts.sh cut | mend           takes the link away while something runs; brings it back
#   two_hosts.sh run PROGRAM ARGS...  as MPI ranks, LOOM_RANKS_PER_HOST on each host (1); LOOM_MPIRUN_ARGS: more words for mpirun
# Needs root and iproute2. LOOM_HOSTS names the pair (default loom), so that two may stand side by side.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
pair=${LOOM_HOSTS:-loom}
a=${pair}A
b=${pair}B

in_host() {  # in_host A|B COMMAND: a shell line, under the host's name
  local namespace=$a name=hosta
  [ "$1" = B ] && namespace=$b name=hostb
  exec ip netns exec "$namespace" unshare -u bash -c "hostname $name; $2"
}

case "${1:-}" in
  up)
    ip netns add "$a"
    ip netns add "$b"
    ip link add "${pair}0" netns "$a" type veth peer name "${pair}1" netns "$b"
    ip -n "$a" addr add 10.77.0.1/24 dev "${pair}0"
    ip -n "$b" addr add 10.77.0.2/24 dev "${pair}1"
    for namespace in "$a" "$b"; do ip -n "$namespace" link set lo up; done
    ip -n "$a" link set "${pair}0" up
    ip -n "$b" link set "${pair}1" up
    ;;
  down)
    for namespace in "$a" "$b"; do
      if ip netns list | grep -qw "$namespace"; then
        ip netns pids "$namespace" | xargs -r kill -9
        ip netns del "$namespace"
      fi
    done
    ;;
  cut) ip -n "$a" link set "${pair}0" down ;;
  mend) ip -n "$a" link set "${pair}0" up ;;
  agent)  # what mpirun calls instead of ssh: agent HOST COMMAND...
    host=$2
    shift 2
    case "$host" in *.1) in_host A "$*" ;; *) in_host B "$*" ;; esac
    ;;
  run)
    shift
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    ranks=${LOOM_RANKS_PER_HOST:-1}
    printf '10.77.0.1 slots=%d\n10.77.0.2 slots=%d\n' "$ranks" "$ranks" > "$scratch/hosts"
    printf '#!/usr/bin/env bash\nLOOM_HOSTS=%q exec %q agent "$@"\n' "$pair" "$here/two_hosts.sh" > "$scratch/agent"
    chmod +x "$scratch/agent"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
    # shellcheck disable=SC2086  # LOOM_MPIRUN_ARGS are words
    ip netns exec "$a" unshare -u bash -c 'hostname hosta; exec "$@"' -- mpirun --hostfile "$scratch/hosts" -n $((2 * ranks)) \
      --mca plm_rsh_agent "$scratch/agent" --mca btl tcp,self,vader --mca btl_tcp_if_include 10.77.0.0/24 \
      --mca oob_tcp_if_include 10.77.0.0/24 --bind-to none -x OMP_WAIT_POLICY ${LOOM_MPIRUN_ARGS:-} "$@"
    ;;
  *)
    sed -n '2,6s/^# *//p' "$0"
    exit 2
    ;;
esac
