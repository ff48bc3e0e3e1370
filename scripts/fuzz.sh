#!/usr/bin/env bash
# The fuzz targets of tests/fuzz under libFuzzer, one after another: ./runtests --fuzz SECONDS [TARGET...]
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
ORTHANT_SCRIPT=runtests
source "$root/scripts/common.sh"

usage() {
  cat <<'TEXT'
usage: ./runtests --fuzz SECONDS [TARGET...]

Each TARGET (config, elf, hostfile, manifest, rendezvous, request_head, safetensors, tokens; all of them) for so many seconds, with the sanitizers
of addresses and undefined behaviour. Needs clang, which is installed where it is missing. What is found lies in build/fuzz, with the
input that shows it; corpora are kept in build/fuzz/corpus. Exit code 1 if anything was found.
TEXT
}

[[ ${1:-} == -h || ${1:-} == --help ]] && { usage; exit 0; }
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { usage >&2; die "--fuzz needs a number of seconds"; }
seconds=$1
shift
read -ra known <<<"$(sed -n 's|^foreach(target IN ITEMS \(.*\))$|\1|p' "$root/tests/fuzz/long/CMakeLists.txt")"
targets=("$@")
[[ $# -gt 0 ]] || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || die "there is no fuzz target $target: ${known[*]}"
done

lock_build
install_packages fuzz "${build_packages[@]}" clang
version=$(clang++ --version | sed -n '1s/.*version \([0-9]*\)\..*/\1/p')
if [[ ! -e $(clang++ -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a ]]; then
  install_packages fuzz_runtime "libclang-rt-$version-dev"
fi
configure cpu
build cpu orthant
folder=$root/build/fuzz
mkdir -p "$folder"
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
cmake -S "$root/tests/fuzz/long" -B "$folder" "${generator[@]}" -DCMAKE_CXX_COMPILER=clang++ >"$folder/configure.log" 2>&1 ||
  { cat "$folder/configure.log" >&2; die "the configuration of build/fuzz failed"; }
build fuzz "${targets[@]/#/fuzz_}"
unlock_build

failed=0
for target in "${targets[@]}"; do
  mkdir -p "$folder/corpus/$target"
  say "$target for $seconds seconds (log: build/fuzz/$target.log)"
  # An input of more than 64 KiB shows nothing that a smaller one does not; a library is larger from the start.
  if ! (cd "$folder" && ./fuzz_"$target" "corpus/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=65536 -artifact_prefix="$target-" -print_final_stats=1) >"$folder/$target.log" 2>&1; then
    tail -n 40 "$folder/$target.log" >&2
    failed=1
  fi
  sed -n 's/^stat::number_of_executed_units: */  runs: /p' "$folder/$target.log" >&2
done
exit "$failed"
