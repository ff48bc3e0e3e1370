#!/usr/bin/env bash
# Compiles the CUDA code with every toolkit that is here, for every GPU that each of them makes code for. No GPU is needed.
#
#   scripts/check_cuda_versions.sh [--list] [--only PATTERN] [TOOLKIT...]
#
# TOOLKIT: a folder with bin/nvcc (default: /usr/local/cuda-*, and that of the nvcc in the PATH; with ORTHANT_CUDA_FOLDERS
# set its cuda-* alone). --list: shows them, and compiles nothing. --only: objects whose name matches. Each toolkit has a
# build folder of its own, build/cuda-RELEASE, which is used again. Objects are made, nothing is linked. CUDNN_ROOT: for
# attention by cuDNN where the toolkit's folder has none. The exit code is 1 where one is refused or does not compile.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
ORTHANT_SCRIPT=check_cuda_versions
source "$root/scripts/common.sh"

list=
only=.
toolkits=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --list) list=1 ;;
    --only) [[ $# -gt 1 ]] || die "--only needs a value"; only=$2; shift ;;
    -*) die "unknown option $1" ;;
    *) [[ -x $1/bin/nvcc ]] || die "$1: there is no bin/nvcc"; toolkits+=("$(cd "$1" && pwd)") ;;
  esac
  shift
done
if [[ ${#toolkits[@]} -eq 0 ]]; then
  [[ -n ${ORTHANT_CUDA_FOLDERS:-} ]] || in_path=$(command -v nvcc || true)
  for nvcc in "${ORTHANT_CUDA_FOLDERS:-/usr/local}"/cuda-*/bin/nvcc "${in_path:-}"; do
    [[ ! -x $nvcc ]] || toolkits+=("$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)")
  done
  mapfile -t toolkits < <(printf '%s\n' "${toolkits[@]}" | sort -uV | sed '/^$/d')
fi
if [[ ${#toolkits[@]} -eq 0 ]]; then
  say "no CUDA toolkit is here: nothing is compiled"
  exit 0
fi

# compile TOOLKIT BUILD: the objects that are compiled against the toolkit.
compile() {
  local objects=()
  mkdir -p "$2"
  if ! (cd "$root" && CUDACXX=$1/bin/nvcc cmake --preset cpu -B "$2" -DORTHANT_CUDA=ON -DORTHANT_TESTS=OFF \
    -DORTHANT_BENCH=OFF -DCUDAToolkit_ROOT="$1") >"$2/configure.log" 2>&1; then
    tail -n 20 "$2/configure.log" >&2
    return 1
  fi
  mapfile -t objects < <(ninja -C "$2" -t targets all | sed -n 's/\.o: .*/.o/p' |
    grep -E '/orthant_(device_cuda|hopper|blackwell|communicator_nccl)\.dir/' | grep -E "$only")
  [[ ${#objects[@]} -gt 0 ]] || { say "no object matches $only"; return 1; }
  if ! ninja -C "$2" -j "${ORTHANT_JOBS:-$(nproc)}" -k 0 "${objects[@]}" >"$2/objects.log" 2>&1; then
    grep -E '^FAILED|error' "$2/objects.log" | cut -c1-300 | head -n 20 >&2
    return 1
  fi
  say "${#objects[@]} objects compiled"
}

failed=0
for toolkit in "${toolkits[@]}"; do
  release=$(cuda_release "$toolkit/bin/nvcc" || true)
  # What the build itself says: the release and its GPUs, or why it is refused.
  said=$(CUDACXX=$toolkit/bin/nvcc cmake -P "$root/cmake/OrthantCudaToolkit.cmake" 2>&1) || said=${said##*message):}
  say "$toolkit: $(tr -s ' \n' ' ' <<<"${said%%Call Stack*}")"
  if ! at_least "$release" "$oldest_cuda"; then
    failed=1
  elif [[ -z $list ]]; then
    compile "$toolkit" "$root/build/cuda-$release" || { say "CUDA $release: failed (logs: build/cuda-$release)"; failed=1; }
  fi
done
exit "$failed"
