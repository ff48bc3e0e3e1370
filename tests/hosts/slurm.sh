#!/bin/bash
# A Slurm of the two hosts of two_hosts.sh, `first` and `second`, with 64 processors each in its own eyes, around a command.
#
#   two_hosts.sh slurm.sh COMMAND...     the command's exit code; 77 with the reason where there is no Slurm
#
# SLURM_KILL_WAIT: the seconds between SIGTERM and SIGKILL at a job's end, default 30 as Slurm has it.
# munged, slurmctld, slurmd and their files lie in what two_hosts.sh throws away, and end with it.
set -euo pipefail
PATH=$PATH:/usr/sbin
for tool in munged slurmctld slurmd sbatch; do
  command -v $tool >/dev/null || { echo "slurm.sh: $tool is not installed (Debian: slurmctld slurmd slurm-client munge)"; exit 77; }
done
[[ $(</proc/self/setgroups) == allow ]] || { echo "slurm.sh: slurmd wants groups, which only root may give here"; exit 77; }
place=/dev/shm/slurm
mkdir -p -m 755 $place/{state,spool,logs,tmp}/{first,second}
export SLURM_CONF=$place/slurm.conf

(umask 077 && head -c 1024 /dev/urandom >$place/key)
munged --force --key-file $place/key --socket $place/munge --pid-file $place/munged.pid --log-file $place/logs/munged \
  --seed-file $place/seed 2>$place/logs/start

cat >$place/slurm.conf <<CONF
ClusterName=two
SlurmctldHost=first(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge,cred_expire=5
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool/%n
TmpFS=$place/tmp/%n
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.%n.pid
SlurmctldLogFile=$place/logs/slurmctld
SlurmdLogFile=$place/logs/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
MessageTimeout=5
KillWait=${SLURM_KILL_WAIT:-30}
NodeName=first NodeAddr=10.77.0.1 CPUs=64
NodeName=second NodeAddr=10.77.0.2 CPUs=64
PartitionName=all Nodes=first,second Default=YES MaxTime=INFINITE State=UP
CONF
# Versions since 23.11 ask for control groups unless told otherwise; older ones know no such word.
[[ $(slurmd -V) == *\ 2[0-2].* ]] || echo CgroupPlugin=disabled >$place/cgroup.conf
slurmctld
slurmd -N first
$TWO_HOSTS_AGENT 10.77.0.2 "SLURM_CONF=$SLURM_CONF $(command -v slurmd) -N second"
for ((i = 0; i < 100; ++i)); do
  [[ $(sinfo -h -t idle -o %D 2>/dev/null) == 2 ]] && break
  sleep 0.1
done
if [[ $(sinfo -h -t idle -o %D) != 2 ]]; then
  echo "slurm.sh: the nodes of $(slurmd -V) did not come up here"
  tail -n 20 $place/logs/*
  exit 77
fi
"$@"
