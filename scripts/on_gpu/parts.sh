#!/usr/bin/env bash
# The parts of scripts/on_gpu.sh, one after another: PART or PART=SECONDS. That script starts this one, and ends it.
# shellcheck disable=SC2154
set -uo pipefail
bin=$build/bin
export bin
part_end=$run_end
export part_end
here=$(dirname "${BASH_SOURCE[0]}")
for file in common tests recipes speed; do
  # shellcheck source=/dev/null
  source "$here/$file.sh"
done

# Whatever libraries PyTorch brings are taken before the toolkit's: the peers run with the same ones.
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
module=$build/lib/liborthant_device_cuda.so
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || echo /nowhere)
for folder in "$wheels"/*/lib /usr/local/cuda/lib64 /usr/local/nvidia/lib64; do
  for library in $(ldd "$module" 2>/dev/null | awk '/not found/ { print $1 }') libcuda.so.1; do
    [[ ! -e $folder/$library || :$LD_LIBRARY_PATH: == *:$folder:* ]] || LD_LIBRARY_PATH+=:$folder
  done
done
{
  nvidia-smi
  uname -a; lscpu; free -g; df -h /tmp /dev/shm; ldd --version
  command -v nvcc compute-sanitizer python3
  python3 -c 'import torch; print(torch.__version__, torch.backends.cudnn.version(), torch.version.cuda)'
  for object in "$module" "$bin"/* "$build"/lib/orthant/plugins/*.so; do echo "$object"; ldd "$object"; done
  echo "$LD_LIBRARY_PATH"
} >"$logs/machine.log" 2>&1
{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
  missing=$(awk '/=> not found/ { print $1 }' "$logs/machine.log" | sort -u | tr '\n' ' ')
  [[ -z $missing ]] || echo "libraries not found: $missing"
} >"$logs/machine.txt"
cat "$logs/machine.txt"
if [[ $device == cuda ]]; then
  # As long as one process has the device open no other waits for it to wake up; clocks and power are beside it all.
  nvidia-smi dmon -s pucm -d 2 -o T >"$logs/dmon.log" 2>&1 &
  # Into memory meanwhile: a first load of a gigabyte of libraries would count as a kernel's time.
  (cat "$wheels"/*/lib/lib{cublas,cudnn,nvrtc}*.so* >/dev/null 2>&1) &
fi
export ORTHANT_TEST_DEVICES=$device GTEST_COLOR=no OMP_WAIT_POLICY=passive PYTHONUNBUFFERED=1

[[ $* != all ]] || set -- smoke tests recipes resume layer peers engines step graphs tiles sanitizer nccl train
code=0
for planned in "$@"; do
  part=${planned%=*} most=3600
  [[ $planned != *=* ]] || most=${planned#*=}
  [[ $part != sanitizer && $part != train ]] || most=28800
  part_end=$((EPOCHSECONDS + most)) started=$EPOCHSECONDS
  if ((run_end <= EPOCHSECONDS)); then
    echo "$part: LEFT OUT, no time" >>"$logs/parts.txt"
    code=1
    continue
  fi
  echo "$part" >"$logs/part"
  before=$(wc -l 2>/dev/null <"$logs/failures.txt" || echo 0)
  note=''
  "part_$part"
  bad=$(($(wc -l 2>/dev/null <"$logs/failures.txt" || echo 0) - before))
  verdict=$( ((bad > 0)) && echo "FAILED ($bad)" || echo ok)
  ((bad == 0)) || code=1
  (($(left) > 0)) || verdict+=", at its limit"
  printf '%s: %s, %s s of %s%s\n' "$part" "$verdict" $((EPOCHSECONDS - started)) "$most" "${note:+: $note}" >>"$logs/parts.txt"
  tail -n 1 "$logs/parts.txt"
  rm -f "$logs/part"
  if [[ $part == smoke && -e $logs/nothing_runs ]]; then
    echo "the device $device does not run here: nothing else was tried" | tee -a "$logs/parts.txt"
    tail -n 20 "$logs/smoke_device.log"
    exit 2
  fi
done
exit "$code"
