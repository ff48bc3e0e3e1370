#!/usr/bin/env bash
# What scripts/on_gpu.sh runs, built here and packed into one archive, for a machine that has a GPU and CUDA's libraries and
# neither a compiler nor our other libraries: a node of a cluster, a machine that is rented by the minute.
#
#   scripts/pack_for_gpu.sh [--gpus ARCHITECTURES] [--build DIR] [-j JOBS] FILE.tar.xz
#   there: tar xf FILE.tar.xz && orthant_gpu/scripts/on_gpu.sh [--out DIR] [PART...]
#
# --gpus: as CMake names them (default: 90a-real, Hopper). --build: the folder of the build, kept for the next time (default:
# build/gpu). The processor's code is x86-64's common one. That machine's glibc must be as new as this one's.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
gpus=90a-real
build=$root/build/gpu
jobs=$(nproc)
file=
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --gpus | --build | -j)
      [[ $# -gt 1 ]] || { echo "pack_for_gpu: $1 needs a value" >&2; exit 2; }
      case $1 in --gpus) gpus=$2 ;; --build) build=$2 ;; -j) jobs=$2 ;; esac
      shift
      ;;
    -*) echo "pack_for_gpu: unknown option $1" >&2; exit 2 ;;
    *) [[ -z $file ]] || { echo "pack_for_gpu: one FILE only" >&2; exit 2; }; file=$1 ;;
  esac
  shift
done
[[ $file == *.tar.xz ]] || { echo "pack_for_gpu: name the archive, FILE.tar.xz" >&2; exit 2; }

programs=(ops_tests router_tests experts_tests cuda_tests cuda_device_tests router_thrust_gpu_tests orthant orthant-bench)
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DORTHANT_NATIVE=OFF -DORTHANT_CUDA=ON "-DORTHANT_GPUS=$gpus" \
  -DORTHANT_KERNELS=all >/dev/null
targets=()
for program in "${programs[@]}"; do
  targets+=("bin/$program")
done
ninja -C "$build" -j "$jobs" "${targets[@]}" orthant_run
# Two GPUs talk by NCCL; a build that found it has this test of it.
if ninja -C "$build" -t query bin/comm_conformance_nccl >/dev/null 2>&1; then
  ninja -C "$build" -j "$jobs" bin/comm_conformance_nccl
  programs+=(comm_conformance_nccl)
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
pack=$stage/orthant_gpu
mkdir -p "$pack/build/gpu/bin" "$pack/build/gpu/lib" "$pack/scripts" "$pack/bench"
for program in "${programs[@]}"; do
  strip -o "$pack/build/gpu/bin/$program" "$build/bin/$program"
done
cp -RP "$build"/lib/. "$pack/build/gpu/lib/"
find "$pack/build/gpu/lib" -name '*.so*' -type f -exec strip {} +
# The libraries of this system that one with CUDA need not have. Those of the compiler, of OpenSSL and of CUDA are that
# machine's own: two of one kind in a process do not mix.
theirs='^(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|ssl|crypto|z|cuda|cudart|cublas|cublasLt|cudnn.*|nvrtc.*|nccl))[.-]'
for object in "$pack"/build/gpu/bin/* "$build"/lib/*.so; do
  LD_LIBRARY_PATH=$build/lib ldd "$object" 2>/dev/null
done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
  name=${library##*/}
  if [[ ! $name =~ $theirs && ! -e $pack/build/gpu/lib/$name ]]; then
    cp -L "$library" "$pack/build/gpu/lib/"
  fi
done
cp "$root"/scripts/{on_gpu,same_losses}.sh "$pack/scripts/"
cp -R "$root/configs" "$pack/"
cp -R "$root/bench/peers" "$pack/bench/"
git -C "$root" rev-parse --short HEAD >"$pack/commit.txt" 2>/dev/null || true

XZ_OPT=-T0 tar -C "$stage" -cJf "$file" orthant_gpu
echo "pack_for_gpu: $file, $(du -h "$file" | cut -f1), for $gpus"
