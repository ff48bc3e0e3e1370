#!/usr/bin/env bash
# Whether two runs have the losses of one another: layouts add in other orders, nothing else differs.
#
#   scripts/same_losses.sh METRICS METRICS STEPS [SHARE]
#
# METRICS: the metrics.jsonl of a run with run.log_every = 1. STEPS: that both must have. SHARE: of a loss, by which they may
# differ (default: 1e-4). Prints the losses side by side.
set -euo pipefail
[[ $# -eq 3 || $# -eq 4 ]] || { sed -n '4,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }

losses() { # FILE: a loss a line
  sed -nE 's/^\{"step":[0-9]+,"loss":([0-9.e+-]+),.*/\1/p' "$1"
}

paste -d ' ' <(losses "$1") <(losses "$2") | awk -v steps="$3" -v share="${4:-1e-4}" '
  { print; difference = $1 > $2 ? $1 - $2 : $2 - $1; if (NF != 2 || difference > share * $1) others++ }
  END {
    if (NR == steps && !others) exit 0
    print "error: expected " steps " equal losses, found " NR " steps, of which " others + 0 " differ"
    exit 1
  }'
