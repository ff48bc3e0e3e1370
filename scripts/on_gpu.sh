#!/usr/bin/env bash
# What only a GPU can show, part by part and against a clock: GPUs are rented by the minute. One screen says at the end what
# came of it (OUT/summary.txt), and the logs are one archive of less than 16 MiB (OUT/logs.tar.gz).
#
#   scripts/on_gpu.sh [OPTION...] [first | second | third | all | PART...]
#
#   first   at most 345 s: smoke tests recipes layer step, and tiles engines if there is time. What is wrong.
#   second  at most 285 s: again peers step engines tiles graphs races. Repairs, and how fast it is.
#   third   at most 385 s: tests again recipes resume engines step races peers. All of it once more, with sanitizers.
#   all     the default, without a clock: every part but again and races.
# PART:
#   smoke      one operation of each kind. Nothing else is tried where the device does not run.
#   tests      every test of operations, experts packed and fused, a few processes a program; then each that has not passed
#              in a process of its own, since a kernel that faults ends the device for its process
#   again      the tests of --again alone
#   recipes    three steps of each recipe in fp32 and bf16 beside the CPU's losses, and verify
#   resume     a run that goes on, on this device and on the CPU
#   layer engines peers  a routed layer; its products by each engine; beside other implementations (python3 with PyTorch)
#   step graphs train  steps of OLMoE, their profile and share of the peak; CUDA graphs; a training run
#   tiles      CUTLASS's tiles beside one another
#   races sanitizer    compute-sanitizer on all operations: memcheck and racecheck; these and synccheck
#   nccl       conformance and losses over NCCL, with two GPUs or more
#   size       how many bytes the checkout and the archive's folder have; reference: the CPU's losses of the recipes
# OPTIONS:
#   --archive FILE  of scripts/pack_for_gpu.sh: unpacked under TMPDIR. Else --build DIR (default: build/gpu, or build/cpu)
#   --out DIR       of the summary and the archive (default: gpu_results); --logs DIR: of all else (default: OUT/logs)
#   --seconds N     of the whole run, instead of the plan's. --limit N: of one test that runs alone (default: 45)
#   --jobs N        processes at a time (default: the cores, at most 16)
#   --again FILE    lines of PROGRAM SETTING TEST, as in failed.txt of the logs
#   --device NAME   (default: cuda) cpu tries this script where there is no GPU
# A part that fails or meets its limit does not stop the next. Exit code: 0: all passed; 1: not; 2: nothing could run.
set -uo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=$(cd "$(dirname "$self")/.." && pwd)
archive='' build='' out=gpu_results logs='' seconds='' limit=45 device=cuda again=''
jobs=$(($(nproc) < 16 ? $(nproc) : 16))
plan=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --archive | --build | --out | --logs | --seconds | --limit | --jobs | --again | --device)
      [[ $# -gt 1 ]] || { echo "on_gpu: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    first | second | third | all | smoke | tests | again | recipes | resume | layer | engines | peers | step | graphs | train | tiles | races | \
      sanitizer | nccl | size | reference) plan+=("$1") ;;
    *) echo "on_gpu: unknown argument $1: see --help" >&2; exit 2 ;;
  esac
  shift
done
for number in "$seconds" "$limit" "$jobs"; do
  [[ $number =~ ^([1-9][0-9]*)?$ ]] || { echo "on_gpu: expected a number of 1 or more, found $number" >&2; exit 2; }
done
name=${plan[*]:-all}
# PART=SECONDS. Alone, or in `all`, a part may take an hour, what runs for hours more.
case $name in
  first) plan=(smoke=45 tests=165 recipes=110 resume=40 layer=75 step=75 tiles=62 engines=70) total=345 ;;
  second) plan=(again=40 peers=130 step=70 engines=70 tiles=70 graphs=55 races=60) total=285 ;;
  third) plan=(tests=60 again=20 recipes=60 resume=40 engines=70 step=40 races=200 peers=130) total=385 ;;
  all) plan=(smoke tests recipes resume layer peers engines step graphs tiles sanitizer nccl train) total=172800 ;;
  *) total=172800 ;;
esac
seconds=${seconds:-$total}

if [[ $name == size ]]; then
  cd "$root" || exit 2
  tree=$(git ls-files -z --cached --others --exclude-standard | xargs -0 -r du -cb 2>/dev/null | awk '$2 == "total" { n += $1 } END { print n + 0 }')
  carried=$([[ -z $archive ]] || du -sb "$(dirname "$archive")" | cut -f1)
  awk -v t="$tree" -v c="${carried:-0}" 'BEGIN { printf "checkout %.1f MiB + archive %.1f MiB = %.1f MiB\n", t / 2^20, c / 2^20, (t + c) / 2^20 }'
  exit 0
fi

if [[ -n $archive ]]; then
  [[ -r $archive ]] || { echo "on_gpu: no archive $archive: scripts/pack_for_gpu.sh makes it" >&2; exit 2; }
  there=${TMPDIR:-/tmp}/orthant_gpu_$(sha256sum "$archive" | cut -c1-12)
  if [[ ! -e $there/unpacked ]]; then
    mkdir -p "$there"
    tar -C "$there" -xzf "$archive" 2>/dev/null || python3 -m tarfile -e "$archive" "$there" ||
      { echo "on_gpu: $archive cannot be unpacked into $there" >&2; exit 2; }
    : >"$there/unpacked"
  fi
  build=$there/orthant_gpu/build/gpu
elif [[ -z $build ]]; then
  build=$root/build/gpu
  [[ -d $build ]] || build=$root/build/cpu
fi
build=$(readlink -f "$build")
[[ -x $build/bin/orthant ]] || { echo "on_gpu: no program in $build/bin: run ./runtests where nvcc is in the PATH, or name --archive or --build" >&2; exit 2; }

mkdir -p "$out" || exit 2
out=$(readlink -f "$out")
logs=${logs:-$out/logs}
rm -rf "$logs"
mkdir -p "$logs" || exit 2
logs=$(readlink -f "$logs")
again=${again:+$(readlink -f "$again")}
# What runs ends a few seconds before the clock, so that its part can still say what came of it.
begin=$EPOCHSECONDS run_end=$((EPOCHSECONDS + seconds - (seconds < 30 ? seconds / 5 : 6)))
commit=$(cat "$build/commit.txt" 2>/dev/null || git -C "$root" rev-parse --short HEAD 2>/dev/null)
export root build logs limit jobs device again begin run_end name

# The parts are a session of their own: what a driver holds, or a program leaves behind, is ended with it and never waited for.
members() { # of session $1
  local stat pid rest
  for stat in /proc/[0-9]*/stat; do
    { read -r pid rest <"$stat"; } 2>/dev/null || continue
    read -r _ _ _ member _ <<<"${rest##*) }"
    [[ $member != "$1" ]] || echo "$pid"
  done
}
session=''
finish() {
  trap '' TERM INT
  local pid
  for pid in $([[ -z $session ]] || members "$session"); do
    kill -KILL "$pid" 2>/dev/null
  done
  [[ -z $session ]] || disown "$session" 2>/dev/null
  {
    echo "on_gpu $name: $((EPOCHSECONDS - begin)) s of $seconds, commit ${commit:-unknown}, device $device, $(nproc) cores"
    cat "$logs/machine.txt" "$logs/parts.txt" 2>/dev/null
    [[ ! -e $logs/part ]] || echo "$(cat "$logs/part"): CUT OFF, the clock was at its end"
    if [[ -s $logs/failures.txt ]]; then
      echo "failures: $(wc -l <"$logs/failures.txt") (failures.txt, failed.txt and the log of each are in logs.tar.gz)"
      head -n 14 "$logs/failures.txt" | cut -c1-190 | sed 's/^/  /'
    fi
    [[ ! -s $logs/figures.txt ]] || head -n 60 "$logs/figures.txt" | cut -c1-150
  } | tr -cd '[:print:]\n' >"$out/summary.txt"
  cp "$out/summary.txt" "$logs/"
  # Of a log its end; of too many logs less of each.
  local most
  for most in 1000000 100000 10000 1000; do
    find "$logs" -type f \( -name '*.log' -o -name '*.txt' -o -name '*.json*' \) -size +"$most"c \
      -exec sh -c 'tail -c "$2" "$1" >"$1.end" && mv "$1.end" "$1"' _ {} "$most" \;
    (cd "$logs" && find . -type f \( -name '*.log' -o -name '*.txt' -o -name '*.json*' \) -print0 | tar -czf "$out/logs.tar.gz" --null -T -)
    (($(stat -c %s "$out/logs.tar.gz") >= 15000000)) || break
  done
  echo "logs: $(du -h "$out/logs.tar.gz" | cut -f1), $out/logs.tar.gz" >>"$out/summary.txt"
  echo "-----"
  cat "$out/summary.txt"
}
stop() { finish; exit 1; }
trap stop TERM INT

setsid bash "$root/scripts/on_gpu/parts.sh" "${plan[@]:-all}" &
session=$!
timer=''
if ((seconds < 172800)); then
  sleep "$seconds" &
  timer=$!
fi
# Whichever is first: the last part's end, or the clock's.
wait -n
[[ -z $timer ]] || kill "$timer" 2>/dev/null
code=1
if [[ ! -d /proc/$session ]]; then
  wait "$session"
  code=$?
fi
finish
exit "$code"
