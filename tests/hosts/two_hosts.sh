#!/bin/bash
# Runs a command on the first of two hosts that exist only while it runs: 10.77.0.1 and 10.77.0.2.
#
#   two_hosts.sh COMMAND...     its exit code; 77 with a line of reason where such hosts are not permitted
#
# A host is a network namespace with a name of its own (a UTS namespace); a veth pair is the cable between them. mpirun
# reaches the second one by an agent in place of ssh, with as little environment as ssh would give. Both hosts and all their
# processes belong to a process-number namespace that ends with this script, however it ends, and what they write to /tmp
# and /dev/shm to a mount namespace; they have no names outside, so nothing can be left behind.
#
# TWO_HOSTS_SECONDS: when all of it is killed, default 100.
# In the command's environment: TWO_HOSTS_AGENT, to run something on the second host ($TWO_HOSTS_AGENT 10.77.0.2 COMMAND).
set -euo pipefail
if [[ ${1:-} == --inside ]]; then
  shift
  mount -t tmpfs two_hosts /dev/shm
  ip link set lo up
  hostname first
  unshare --net --uts sh -c 'hostname second && exec sleep infinity' &
  second=$!
  until [[ $(nsenter --target "$second" --uts hostname) == second ]]; do sleep 0.01; done
  if ! reason=$(ip link add cable type veth peer name cable netns "$second" 2>&1); then
    echo "two_hosts.sh: no veth pair: $reason"
    exit 77
  fi
  ip address add 10.77.0.1/24 dev cable
  ip link set cable up
  nsenter --target "$second" --net sh -ec 'ip link set lo up; ip address add 10.77.0.2/24 dev cable; ip link set cable up'

  mkdir /dev/shm/tmp
  export TMPDIR=/dev/shm/tmp TWO_HOSTS_AGENT=/dev/shm/agent
  cat > $TWO_HOSTS_AGENT <<AGENT
#!/bin/bash
[[ \$1 == 10.77.0.2 ]] || { echo "two_hosts.sh: there is no host \$1" >&2; exit 1; }
shift
exec nsenter --target $second --net --uts env -i PATH="\$PATH" HOME="\$HOME" TMPDIR=$TMPDIR sh -c "\$*"
AGENT
  chmod +x $TWO_HOSTS_AGENT
  export OMPI_MCA_plm_rsh_agent=$TWO_HOSTS_AGENT
  exec timeout --kill-after=5 "${TWO_HOSTS_SECONDS:-100}" "$@"
fi

for tool in unshare nsenter ip hostname mount; do
  command -v $tool >/dev/null || { echo "two_hosts.sh: $tool is not installed"; exit 77; }
done
spaces=(--net --uts --mount --pid --fork --kill-child --mount-proc)
[[ $(id -u) == 0 ]] || spaces+=(--user --map-root-user)
if ! reason=$(unshare "${spaces[@]}" true 2>&1); then
  echo "two_hosts.sh: no namespaces: $reason"
  exit 77
fi
exec unshare "${spaces[@]}" "$0" --inside "$@"
