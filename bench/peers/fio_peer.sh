#!/usr/bin/env bash
# offload_files_bench and fio on the same disk, in turns: 256 MiB, 1 MiB a block, 16 blocks at a time, O_DIRECT.
#
#   bench/peers/fio_peer.sh FOLDER [ROUNDS]     FOLDER is on the disk; 7 rounds; needs fio and python3
#
# Prints a table of medians in MiB/s. BENCH: the program (build/cpu/bin/offload_files_bench).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ $# -ge 1 && -d $1 ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bench=$(realpath "${BENCH:-$root/build/cpu/bin/offload_files_bench}")
rounds=${2:-7}
command -v fio >/dev/null || { echo "fio is not installed (apt-get install fio)" >&2; exit 1; }
cd "$1"
file=offload_fio_peer.tmp
numbers=$(mktemp)
trap 'rm -f "$numbers" "$file"' EXIT

# fio KIND RW: one line "KIND fio MiB/s". Its file is kept between, as the program keeps its own.
run_fio() {
  fio --name=peer --filename="$file" --size=256m --bs=1m --iodepth=16 --direct=1 --ioengine=io_uring --rw="$2" \
    --fallocate=native --overwrite=0 --minimal --terse-version=3 |
    awk -F';' -v kind="$1" '{ print kind, "fio", ($7 + $48) / 1024 }' >>"$numbers"
}
run_ours() {
  "$bench" --benchmark_filter="^$1/$2/" --benchmark_format=csv 2>/dev/null |
    awk -F, -v kind="$1" -v engine="$2" '/^"/ { print kind, engine, $6 / 1048576 }' >>"$numbers"
}

for ((round = 1; round <= rounds; ++round)); do
  for kind in fresh_write write read; do
    [[ $kind != fresh_write ]] || rm -f "$file"
    run_fio "$kind" "${kind#fresh_}"
    run_ours "$kind" uring
    run_ours "$kind" threads
  done
done
python3 - "$numbers" <<'PYTHON'
import collections, statistics, sys
found = collections.defaultdict(list)
for line in open(sys.argv[1]):
    kind, engine, rate = line.split()
    found[kind, engine].append(float(rate))
print("| pass | fio | io_uring | of fio | threads | of fio |\n| --- | --- | --- | --- | --- | --- |")
for kind in ("fresh_write", "write", "read"):
    fio, uring, threads = (statistics.median(found[kind, engine]) for engine in ("fio", "uring", "threads"))
    print(f"| {kind} | {fio:.0f} | {uring:.0f} | {uring / fio:.2f} | {threads:.0f} | {threads / fio:.2f} |")
PYTHON
