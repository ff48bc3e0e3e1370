# shellcheck shell=bash disable=SC2034,SC2154
# Parts: whether it is right, operation by operation.

part_smoke() {
  local run="$bin/orthant-bench --device $device --samples 1 --seconds 0.001 --shape" code name
  if ! step smoke_device 40 bash -c "$run tiny --uniform"; then
    : >"$logs/nothing_runs"
    return
  fi
  printf '%s\n' "smoke_fp32 40 $run tiny --uniform --dtype fp32" "smoke_fused 40 ORTHANT_CUDA_EXPERTS=fused $run tiny" \
    "smoke_step 40 $bin/orthant bench step $root/configs/bench_mixtral_small.toml --set run.device=$device --set run.dtype=bf16 --steps 3" \
    "smoke_switch 40 $run tiny-switch" >"$logs/smoke"
  queue 4 "$logs/smoke"
  while read -r name code; do
    [[ $code == 0 ]] || fail "$name" "$code" "$logs/$name.log"
  done <"$logs/smoke.codes"
  # A kernel that never ends would keep the tests of all others waiting.
  if grep -q '^smoke_fused 0' "$logs/smoke.codes"; then note='experts packed and fused'; else : >"$logs/without_fused"; fi
}

setting_of() { [[ $1 != fused ]] || echo ORTHANT_CUDA_EXPERTS=fused; }

# alone PROGRAM SETTING TEST: a line "STATUS PROGRAM SETTING TEST" of alone/results, and a log.
alone() {
  local status=0 log=$logs/alone/$1.$2.${3//\//_}.log
  # shellcheck disable=SC2046
  within "$limit" env $(setting_of "$2") "$bin/$1" --gtest_filter="$3" >"$log" 2>&1 || status=$?
  if [[ $status -eq 0 ]] && grep -q '^\[  SKIPPED \]' "$log"; then status=skipped; fi
  if [[ $status == 0 ]] && ! grep -q '^\[  PASSED  \] 1 test' "$log"; then status=none; fi
  echo "$status $1 $2 $3" >>"$logs/alone/results"
}
export -f alone setting_of

each_alone() { # FILE: lines of PROGRAM SETTING TEST. What fails goes to failed.txt.
  mkdir -p "$logs/alone"
  : >"$logs/alone/results"
  # shellcheck disable=SC2016
  xargs -r -d '\n' -P "$jobs" -I {} bash -c 'read -r program setting test <<<"$1"; alone "$program" "$setting" "$test"' _ {} <"$1"
  # Where there is no GPU its own tests cannot run.
  local fine=0
  [[ $device == cuda ]] || fine='0|skipped'
  grep -vE "^($fine) " "$logs/alone/results" | sort -k2 >"$logs/alone/failed"
  cut -d ' ' -f 2- "$logs/alone/failed" >>"$logs/failed.txt"
  not_begun tests "$(grep -c '^125 ' "$logs/alone/failed")"
  while read -r status program setting test; do
    [[ $status != 125 ]] || continue
    fail "$program $setting $test" "$status" "$logs/alone/$program.$setting.${test//\//_}.log"
  done <"$logs/alone/failed"
}

tests_of() { # PROGRAM SETTING FILTER
  local list
  if ! list=$("$bin/$1" --gtest_filter="$3" --gtest_list_tests 2>"$logs/list_$1.log") || [[ -z $list ]]; then
    fail "$1 $2" none "$logs/list_$1.log" >&2
    return
  fi
  awk -v of="$1 $2 " '/^[^ ].*\.( |$)/ { suite = $1 } /^  / && (suite $1) !~ /DISABLED_/ { print of suite $1 }' <<<"$list"
}

part_tests() {
  # PROGRAM SETTING PROCESSES FILTER; -Engines.* read a page of docs/, which is not packed.
  local groups=('cuda_device_tests packed 4 *' 'cuda_tests packed 1 *' 'router_thrust_gpu_tests packed 1 *' 'ops_tests packed 8 *'
    'router_tests packed 4 *' 'experts_tests packed 4 -Engines.*')
  [[ -e $logs/without_fused ]] || groups+=('experts_tests fused 4 ExpertFfn*:GroupedGemm*' 'cuda_device_tests fused 2 LargeProducts.*AsThePlainKernel')
  local group program setting processes filter i name all=$(($(left) * 2 / 3))
  ((all < 360)) || all=360
  mkdir -p "$logs/tests"
  : >"$logs/tests/queue"
  for group in "${groups[@]}"; do
    read -r program setting processes filter <<<"$group"
    [[ -x $bin/$program ]] || { say "$program is not in this build"; continue; }
    tests_of "$program" "$setting" "$filter" >>"$logs/tests/listed"
    for ((i = 0; i < processes; i++)); do
      echo "tests/$program.$setting.$i $all $(setting_of "$setting") GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i $bin/$program --gtest_filter='$filter'"
    done >>"$logs/tests/queue"
  done
  queue "$jobs" "$logs/tests/queue"
  for i in "$logs"/tests/*.log; do
    name=${i##*/}
    IFS=. read -r program setting _ <<<"$name"
    sed -nE "s/^\[       OK \] ([^ ]+) \(([0-9]+) ms\)$/$program $setting \1 \2/p" "$i"
  done >"$logs/tests/passed_ms.txt"
  sort -u "$logs/tests/listed" >"$logs/tests/all.txt"
  comm -23 "$logs/tests/all.txt" <(cut -d ' ' -f 1-3 "$logs/tests/passed_ms.txt" | sort -u) >"$logs/tests/not_passed.txt"
  say "tests: $(wc -l <"$logs/tests/not_passed.txt") of $(wc -l <"$logs/tests/all.txt") have not passed, and run alone"
  each_alone "$logs/tests/not_passed.txt"
  note="$(wc -l <"$logs/tests/all.txt") tests, $(wc -l <"$logs/tests/not_passed.txt") ran again alone, $(wc -l <"$logs/alone/failed") of these failed"
  [[ $device == cuda ]] || note+=", $(grep -c '^skipped' "$logs/alone/results") skipped"
  # Where an address was wrong: three of them under memcheck, each tensor an allocation of its own.
  grep -lE 'illegal|misaligned|unspecified launch failure' "$logs"/alone/*.log 2>/dev/null | head -n 3 | while read -r i; do
    IFS=. read -r program setting name <<<"$(basename "$i" .log)"
    echo "memcheck_$program.$name 50 ORTHANT_CUDA_CACHE=0 $(setting_of "$setting") compute-sanitizer --tool memcheck $bin/$program --gtest_filter='${name//_/?}'"
  done >"$logs/memcheck"
  if [[ -s $logs/memcheck ]]; then
    queue 3 "$logs/memcheck"
    figure "memcheck: $(grep -hm1 -A3 '=========     *\(Invalid\|Error\|Program\)' "$logs"/memcheck_*.log | tr -s '\n= ' ' ' | cut -c1-400)"
  fi
}

part_again() {
  if [[ ! -s $again ]]; then
    note='no tests are named (--again)'
    return
  fi
  each_alone "$again"
  note="$(wc -l <"$again") tests, $(wc -l <"$logs/alone/failed") failed"
}

# memcheck sees every address, with each tensor an allocation of its own; racecheck shared memory, synccheck barriers. The
# latter two look at our kernels alone, by their mangled names: in CUTLASS's they report what is none, for hours.
sanitize() { # SETTING FOLDER SHARDS FILTER TOOL...
  local tool only i setting=$1 folder=$2 shards=$3 filter=$4
  for tool in "${@:5}"; do
    only=$([[ $tool == memcheck ]] || echo --kernel-name kns=_ZN7orthant)
    for ((i = 0; i < shards; i++)); do
      echo "${tool}_${folder}_$setting.$i 28800 ORTHANT_CUDA_CACHE=0 $(setting_of "$setting") GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i compute-sanitizer --tool $tool --error-exitcode 9 $only $bin/${folder}_tests --gtest_filter='$filter'"
    done
  done
}
sanitized() { # what `sanitize` printed
  [[ $device == cuda ]] || { note='needs a GPU'; return; }
  local name code kind kinds=()
  cat >"$logs/sanitize"
  queue "$jobs" "$logs/sanitize"
  while read -r name code; do
    [[ $code == 0 ]] || fail "$name" "$code" "$logs/$name.log"
  done <"$logs/sanitize.codes"
  mapfile -t kinds < <(sed -E 's/\.[0-9]+ .*//' "$logs/sanitize" | sort -u)
  for kind in "${kinds[@]}"; do
    figure "$kind: $(cat "$logs/$kind".*.log | grep -c '^\[       OK') tests passed, $(cat "$logs/$kind".*.log | grep -E 'SUMMARY' | tr -s '= ' ' ' | sort | uniq -c | tr -s '\n ' ' ')"
  done
}
# racecheck ends with an internal error of its own in eight tests of bf16 products by cuBLAS and CUTLASS, which memcheck
# passes (seen on an H200), and so does its process; AttentionBlock.EveryCut takes minutes under it. Our kernels around the
# products run in other tests too. A process that launches nothing is an error to it: few processes.
sanitize_all() { # TOOL...
  local tool ops experts shards
  for tool in "$@"; do
    ops='*' experts='-Engines.*' shards=4
    if [[ $tool == racecheck ]]; then
      ops='-Gemm.Bf16*:AttentionBlock.EveryCut*' shards=1
      experts='-Engines.*:ExpertFfn*:GroupedGemm.LeavesRows*:GroupedGemmTn*'
    fi
    sanitize packed ops 6 "$ops" "$tool"
    sanitize packed router 4 '*' "$tool"
    sanitize packed experts "$shards" "$experts" "$tool"
    sanitize fused experts 4 'ExpertFfn*:GroupedGemm*' "$tool"
  done
}
part_races() { sanitized < <(sanitize_all memcheck racecheck); }
part_sanitizer() { sanitized < <(sanitize_all memcheck racecheck synccheck); }
