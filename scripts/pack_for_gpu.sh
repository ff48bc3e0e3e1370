#!/usr/bin/env bash
# What scripts/on_gpu.sh runs, built here and packed into one archive, for a machine that has a GPU and CUDA's libraries and
# neither a compiler nor our other libraries: a node of a cluster, a machine that is rented by the minute.
#
#   scripts/pack_for_gpu.sh [--gpus ARCHITECTURES] [--build DIR] [-j JOBS] FILE.tar.gz
#   there: scripts/on_gpu.sh --archive FILE.tar.gz first      with the checkout, whose scripts and recipes are taken
#      or: tar xf FILE.tar.gz && orthant_gpu/scripts/on_gpu.sh first
#      or: bash first_minutes.sh first      which is written beside FILE: the first line, and what else lies there
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
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
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
[[ $file == *.tar.gz ]] || { echo "pack_for_gpu: name the archive, FILE.tar.gz" >&2; exit 2; }

programs=(ops_tests router_tests experts_tests cuda_tests cuda_device_tests router_thrust_gpu_tests orthant orthant-bench)
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DORTHANT_NATIVE=OFF -DORTHANT_CUDA=ON "-DORTHANT_GPUS=$gpus" \
  -DORTHANT_KERNELS=all -DORTHANT_OUT_OF_TREE=OFF >/dev/null
targets=()
for program in "${programs[@]}"; do
  targets+=("bin/$program")
done
ninja -C "$build" -j "$jobs" "${targets[@]}" orthant_run orthant_modules orthant_apps
# Two GPUs talk by NCCL; a build that found it has this test of it.
if ninja -C "$build" -t query bin/comm_conformance_nccl >/dev/null 2>&1; then
  ninja -C "$build" -j "$jobs" bin/comm_conformance_nccl
  programs+=(comm_conformance_nccl)
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
pack=$stage/orthant_gpu
mkdir -p "$pack/build/gpu/bin" "$pack/build/gpu/libexec/orthant" "$pack/build/gpu/lib" "$pack/scripts" "$pack/bench"
for program in "${programs[@]}"; do
  strip -o "$pack/build/gpu/bin/$program" "$build/bin/$program"
done
for program in "$build"/libexec/orthant/orthant-*; do
  # Where it could be built is of this machine alone.
  [[ $program == *.about ]] || strip -o "$pack/build/gpu/libexec/orthant/${program##*/}" "$program"
done
cp -RP "$build"/lib/. "$pack/build/gpu/lib/"
find "$pack/build/gpu/lib" -name '*.about' -delete
find "$pack/build/gpu/lib" -name '*.so*' -type f -exec strip {} +
# The libraries of this system that one with CUDA need not have. Those of the compiler, of OpenSSL and of CUDA are that
# machine's own: two of one kind in a process do not mix.
theirs='^(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|ssl|crypto|z|cuda|cudart|cublas|cublasLt|cudnn.*|nvrtc.*|nccl))[.-]'
find "$pack/build/gpu/bin" "$pack/build/gpu/libexec" "$build/lib" -type f ! -name '*.about' -exec env "LD_LIBRARY_PATH=$build/lib" ldd {} + 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
  name=${library##*/}
  if [[ ! $name =~ $theirs && ! -e $pack/build/gpu/lib/$name ]]; then
    cp -L "$library" "$pack/build/gpu/lib/"
  fi
done
cp -R "$root"/scripts/{on_gpu,on_gpu.sh,same_losses.sh} "$pack/scripts/"
cp -R "$root/configs" "$pack/"
cp -R "$root/bench/peers" "$pack/bench/"
git -C "$root" rev-parse --short HEAD >"$pack/build/gpu/commit.txt" 2>/dev/null || true

# The CPU's losses of the recipes, made here: minutes of a GPU are dear. Kept until a library or a recipe changes.
if [[ -e $build/reference && -n $(find "$build"/lib "$root/configs" -newer "$build/reference" -type f -print -quit) ]]; then
  rm -r "$build/reference"
fi
"$root/scripts/on_gpu.sh" --device cpu --build "$build" --out "$stage/out" --jobs "$jobs" reference >"$stage/reference.log" 2>&1 ||
  { cat "$stage/reference.log" >&2; echo "pack_for_gpu: the recipes' losses on the CPU could not be had" >&2; exit 1; }
cp -R "$build/reference" "$pack/build/gpu/"

tar -C "$stage" -czf "$file" orthant_gpu
cat >"$(dirname "$file")/first_minutes.sh" <<END
#!/usr/bin/env bash
# scripts/on_gpu.sh of the checkout that this folder lies in, with what lies beside this file: the archive, again.txt, and
# Python's packages for the peers in site/.
here=\$(cd "\$(dirname "\$0")" && pwd)
export PYTHONPATH=\$here/site\${PYTHONPATH:+:\$PYTHONPATH}
exec bash "\$here/../scripts/on_gpu.sh" --archive "\$here/${file##*/}" --again "\$here/again.txt" \\
  --out "\${OUT:-gpu_results}" --logs "\${TMPDIR:-/tmp}/orthant_on_gpu_logs" "\$@"
END
echo "pack_for_gpu: $file, $(du -h "$file" | cut -f1), for $gpus"
