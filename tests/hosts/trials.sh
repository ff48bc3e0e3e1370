#!/bin/bash
# What happens to runs on two nodes, minutes long, and no part of ./runtests; measured: bench/results/reliability.md.
#
#   tests/hosts/trials.sh [--rounds N] TRIAL...
#
#   unshared         the second node has another run folder: refused at the start by host and path, no checkpoint
#   time-limit, cancel   Slurm's own time limit, no --signal, or scancel JOB; a save of 5 s: saved
#   time-limit-mpirun, cancel-mpirun   the same, the ranks by mpirun in the script
#   term-mpirun      SIGTERM to mpirun, a save of 5 s: saved, 75
#   interrupt        SIGINT to ./launch, which waits for mpirun, a save of 5 s: saved, 75
#   removed          metrics.jsonl and config.resolved.toml go, then SIGTERM: saved, 75, both there again with a warning
#   freeze-local, freeze-mpi   all processes of the run are stopped for three times the timeout: it goes on
#   freezer-local    the same by a control group's freezer (version 1; root)
#   suspend          the same by scontrol suspend and resume, ranks by srun on two nodes
#   stop-launcher    SIGSTOP of the launcher alone, until rank 0 has waited to print for twice the timeout: it goes on
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
root=$here/../..
program=$(readlink -f "${ORTHANT_PROGRAM:-$root/build/cpu/bin/orthant}")
shim=$(readlink -f "${ORTHANT_SHIM_LIBRARY:-$root/build/cpu/tests/disk_shim.so}")
slow_save='op=fsync path=checkpoints rank=0 delay_ms=2500'

# In the folder of one case: a small experiment of two ranks.
make_run() {
  for i in $(seq 200); do echo "the quick brown fox $i jumps over"; done >text.txt
  cat >c.toml <<'TOML'
[run]
name = "r"
directory = "runs"
steps = 1000000
log_every = 1
checkpoint_every = 100000
timeout_seconds = 4
[data]
source = "text"
path = ["text.txt"]
sequence_length = 16
[batch]
sequences = 4
[model]
layers = 2
d_model = 16
heads = 2
[moe]
experts = 4
router = "topk"
[plugins.data]
size = 2
TOML
  printf '10.77.0.1 slots=1\n10.77.0.2 slots=1\n' >hosts
  printf '#!/bin/sh\nexec %s launch "$@"\n' "$program" >launch
  chmod +x launch
}
wrong() { echo "    wrong: $*"; right=; }
until_trains() { # [more lines than]
  for _ in $(seq 600); do [[ $(wc -l 2>/dev/null <runs/r/metrics.jsonl) -gt ${1:-0} ]] && return; sleep 0.1; done
  wrong "it does not train: $(tail -n 3 said)"
}
lines() { wc -l <runs/r/metrics.jsonl; }
# Saved after the last step of metrics.jsonl, and whole.
check_saved() {
  local step
  step=$(tail -n 1 runs/r/metrics.jsonl | grep -o '"step":[0-9]*' | tr -dc 0-9)
  [[ -f $(printf 'runs/r/checkpoints/step_%06d/manifest.json' "$step") ]] || wrong "no checkpoint of step $step: $(ls runs/r/checkpoints 2>&1 | tr '\n' ' ')"
  "$program" checkpoint verify runs/r >verified 2>&1 || wrong "$(tail -n 3 verified)"
}
check_code() { [[ $1 == "$2" ]] || wrong "code $1, expected $2: $(tail -n 3 said)"; }
all_of_the_run() { for folder in /proc/[0-9]*; do [[ $(readlink "$folder/exe") == */@(orthant|mpirun|orted|orterun) ]] && echo "${folder#/proc/}"; done; }

term_after_start() { # SIGNAL PROCESS-NAME: of ./launch --hostfile with a slow save
  LD_PRELOAD=$shim ORTHANT_SHIM=$slow_save env --default-signal=INT ./launch --hostfile hosts c.toml --set run.communicator=mpi >said 2>&1 &
  until_trains
  if [[ $2 == launch ]]; then kill "-$1" $!; else kill "-$1" "$(pgrep -x 'mpirun|orterun' | head -n1)"; fi
  wait $!
  check_code $? 75
  check_saved
}
go_on_after() { # PROCESS: of a run that was held and goes on: three more steps, then TERM, 75
  until_trains $(($(lines) + 3))
  kill -TERM "$1"
  wait "$1"
  check_code $? 75
  check_saved
}
held() { # COMMAND...: to start the run; stopped by SIGSTOP, launcher and ranks on both nodes
  "$@" >said 2>&1 &
  local launcher=$!
  until_trains
  kill -STOP $(all_of_the_run)
  sleep 12
  kill -CONT $(all_of_the_run)
  go_on_after $launcher
}
await_end() { while [[ -n $(squeue -h -j "$1" 2>/dev/null) ]]; do sleep 0.5; done; }
ended_by_slurm() { # TIMEOUT | CANCELLED, COMMAND of a batch script
  printf '#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1 --output=said\n%s\n' "$2" >job
  local id
  id=$(sbatch --parsable job)
  until_trains
  [[ $1 == TIMEOUT ]] || scancel "$id"
  await_end "$id"
  scontrol show job "$id" | grep -q "JobState=$1" || wrong "$(scontrol show job "$id" | grep -o 'JobState=[A-Z]*')"
  check_saved
}

trial() {
  local slow="LD_PRELOAD=$shim ORTHANT_SHIM='$slow_save'"
  case $1 in
    unshared)
      mkdir -p runs
      "$TWO_HOSTS_AGENT" 10.77.0.2 true
      sed "s|exec nsenter|exec unshare --mount sh -c 'mount -t tmpfs other $PWD/runs; exec \"\$@\"' - nsenter|" \
        "$TWO_HOSTS_AGENT" >agent && chmod +x agent
      OMPI_MCA_plm_rsh_agent=$PWD/agent ./launch --hostfile hosts c.toml --set run.communicator=mpi \
        --set run.checkpoint_every=1 --set run.steps=20 >said 2>&1
      [[ $? != 0 ]] || wrong "exit code 0"
      grep -q 'second.*runs/r\|runs/r.*second' said || wrong "no host and path: $(tail -n 3 said)"
      compgen -G 'runs/r/checkpoints/step_*' >/dev/null && wrong "checkpoints: $(ls runs/r/checkpoints)"
      ;;
    time-limit) ended_by_slurm TIMEOUT "$slow srun --mpi=pmix ./launch c.toml --set run.communicator=mpi" ;;
    time-limit-mpirun) ended_by_slurm TIMEOUT "$slow ./launch c.toml --set run.communicator=mpi" ;;
    cancel) ended_by_slurm CANCELLED "$slow srun --mpi=pmix ./launch c.toml --set run.communicator=mpi" ;;
    cancel-mpirun) ended_by_slurm CANCELLED "$slow ./launch c.toml --set run.communicator=mpi" ;;
    term-mpirun) term_after_start TERM mpirun ;;
    interrupt) term_after_start INT launch ;;
    removed)
      ./launch c.toml >said 2>&1 &
      until_trains
      rm runs/r/metrics.jsonl runs/r/config.resolved.toml
      until_trains 3
      kill -TERM $!
      wait $!
      check_code $? 75
      check_saved
      [[ -s runs/r/config.resolved.toml ]] || wrong "no config.resolved.toml"
      grep -q 'metrics.jsonl' said || wrong "no warning: $(tail -n 3 said)"
      ;;
    freeze-local) held ./launch c.toml ;;
    freeze-mpi) held ./launch --hostfile hosts c.toml --set run.communicator=mpi ;;
    freezer-local)
      local group=/sys/fs/cgroup/freezer/orthant_trial_$$
      mkdir "$group" || { wrong "no freezer"; return; }
      (echo $BASHPID >"$group/cgroup.procs" && exec ./launch c.toml) >said 2>&1 &
      until_trains
      echo FROZEN >"$group/freezer.state"
      sleep 12
      echo THAWED >"$group/freezer.state"
      go_on_after $!
      rmdir "$group"
      ;;
    stop-launcher)
      ./launch c.toml >said 2>&1 &
      until_trains
      kill -STOP $!
      local before=0
      while [[ $(lines) != "$before" ]]; do before=$(lines); sleep 9; done
      kill -CONT $!
      go_on_after $!
      ;;
    suspend)
      printf '#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --output=said\nsrun --mpi=pmix ./launch c.toml --set run.communicator=mpi\necho code $?\n' >job
      local id before
      id=$(sbatch --parsable job)
      until_trains
      scontrol suspend "$id"
      sleep 1
      before=$(lines)
      sleep 12
      [[ $(lines) == "$before" ]] || wrong "it trained while it was suspended"
      scontrol resume "$id"
      until_trains $((before + 3))
      scancel --signal=TERM "$id"
      await_end "$id"
      grep -q '^code 75' said || wrong "$(tail -n 3 said)"
      check_saved
      ;;
    *) wrong "there is no such trial" ;;
  esac
}

if [[ ${1:-} == --inside ]]; then
  right=yes
  make_run
  trial "$2"
  [[ -n $right ]]
  exit
fi
rounds=3
if [[ ${1:-} == --rounds ]]; then rounds=$2; shift 2; fi
failed=0
for name in "$@"; do
  count=0
  for _ in $(seq "$rounds"); do
    case $name in
      time-limit* | cancel* | suspend) slurm=("$here/slurm.sh") ;;
      *) slurm=() ;;
    esac
    folder=$(mktemp -d)
    if (cd "$folder" && TWO_HOSTS_SECONDS=300 "$here/two_hosts.sh" "${slurm[@]}" "$here/trials.sh" --inside "$name"); then
      count=$((count + 1))
    elif [[ -n ${KEEP:-} ]]; then
      echo "    kept: $folder"
      continue
    fi
    rm -rf "$folder"
  done
  echo "$name: right $count of $rounds"
  [[ $count == "$rounds" ]] || failed=1
done
exit $failed
