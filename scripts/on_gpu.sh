#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: the list of operations and the tests labelled gpu, steps of each recipe
# beside the CPU's, the tests under compute-sanitizer, NCCL where there are two GPUs or more, the benchmark of one layer
# with its peers, steps and their profile, and training runs.
#
#   scripts/on_gpu.sh [--build DIR] [--out DIR] [--limit SECONDS] [--jobs N] [PART...]
#
# PART: tests recipes sanitizer nccl bench peers train (all of them). --limit: of each program that is run (default: 3600), of
# each single test at most 120. --jobs: tests at a time (default: 8, or as many as there are cores).
#
# Needs a GPU and a build with -DORTHANT_CUDA=ON: ./runtests makes one where nvcc is, in build/cpu (the default of --build);
# scripts/pack_for_gpu.sh makes one elsewhere and packs it, in build/gpu (the default where it is). `peers` needs a python3
# with PyTorch. A part that fails does not stop the next; the exit code says whether all of them passed. Logs and tables go
# to --out (default: gpu_results).
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
build=$root/build/gpu
[[ -d $build ]] || build=$root/build/cpu
out=gpu_results
limit=3600
jobs=$(($(nproc) < 8 ? $(nproc) : 8))
parts=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --limit) limit=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    tests | recipes | sanitizer | nccl | bench | peers | train) parts+=("$1") ;;
    *) echo "on_gpu: unknown argument $1" >&2; exit 2 ;;
  esac
  shift
done
[[ ${#parts[@]} -gt 0 ]] || parts=(tests recipes sanitizer nccl bench peers train)
[[ -x $build/bin/ops_tests ]] || { echo "on_gpu: no tests in $build: run ./runtests where nvcc is in the PATH" >&2; exit 2; }
nvidia-smi -L >/dev/null 2>&1 || { echo "on_gpu: nvidia-smi finds no GPU here" >&2; exit 2; }
mkdir -p "$out"
export ORTHANT_TEST_DEVICES=cuda # the operation list on the GPU alone
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # also where the build was made elsewhere
failed=0

# CUDA's libraries where the loader does not find them by itself: the toolkit's, or else those of PyTorch's packages.
device=$build/lib/liborthant_device_cuda.so
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || echo /nowhere)
for folder in /usr/local/cuda/lib64 "$wheels"/*/lib; do
  for library in $(ldd "$device" | awk '/not found/ { print $1 }'); do
    [[ ! -e $folder/$library ]] || LD_LIBRARY_PATH+=:$folder
  done
done
if missing=$(ldd "$device" | grep 'not found'); then
  printf 'on_gpu: %s needs libraries that are not here; name their folders in LD_LIBRARY_PATH:\n%s\n' "$device" "$missing" >&2
  exit 2
fi

{
  date -u +%Y-%m-%d
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  cat "$root/commit.txt" 2>/dev/null || git -C "$root" rev-parse --short HEAD 2>/dev/null
} | tee "$out/machine.txt"

step() { # NAME COMMAND...: into a log of its own
  local name=$1
  shift
  echo "on_gpu: $name"
  local status=0
  timeout "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  # Tests of the GPU are skipped where the device does not start, and then they pass.
  if [[ $status -eq 0 ]] && grep -q '^\[  SKIPPED \]' "$out/$name.log"; then
    echo "on_gpu: $name: tests were skipped, and there is a GPU here" >&2
    status=skipped
  fi
  if [[ $status != 0 ]]; then
    echo "on_gpu: $name FAILED (exit $status, 124: out of time): $out/$name.log" >&2
    grep -E 'FAILED|SKIPPED|Failure|Error|error|no GPU' "$out/$name.log" | head -n 20 >&2
    failed=1
  fi
}

# run_one TEST: into $folder, with its exit code and name as a line of $folder/results. For each_test.
# shellcheck disable=SC2317
run_one() {
  local log=$folder/${1//\//_}.log status=0
  timeout "$test_limit" "$program" --gtest_filter="$1" >"$log" 2>&1 || status=$?
  if [[ $status -eq 0 ]] && grep -q '^\[  SKIPPED \]' "$log"; then status=skipped; fi
  echo "$status $1" >>"$folder/results"
}
export -f run_one

# each_test NAME PROGRAM [--gtest_filter=...]: each test in a process of its own. A kernel that faults ends the device for the
# process that it is in: it fails one test then, and not all behind it.
each_test() {
  local name=$1 count bad
  export folder=$out/$name program=$2 test_limit=$((limit < 120 ? limit : 120))
  rm -rf "$folder"
  mkdir -p "$folder"
  # shellcheck disable=SC2016
  "$program" "${@:3}" --gtest_list_tests 2>"$folder/list.log" |
    awk '/^[^ ].*\.( |$)/ { suite = $1 } /^  / { print suite $1 }' | xargs -r -P "$jobs" -I {} bash -c 'run_one "$1"' _ {}
  count=$(wc -l 2>/dev/null <"$folder/results" || echo 0)
  bad=$(grep -cv '^0 ' "$folder/results" 2>/dev/null || true)
  echo "on_gpu: $name: $count tests, ${bad:-0} failed or skipped"
  if [[ $count -eq 0 || ${bad:-0} -gt 0 ]]; then
    failed=1
    grep -v '^0 ' "$folder/results" 2>/dev/null | sort -k2 | while read -r status test; do
      echo "on_gpu: $name: $test (exit $status): $(grep -m1 -E 'Failure|error|Error|no GPU' -A3 "$folder/${test//\//_}.log" | tr '\n' ' ' | cut -c1-400)"
    done | head -n 60 >&2
  fi
}

operations=(ops router experts)
for part in "${parts[@]}"; do
  case $part in
    tests)
      for kind in "${operations[@]}"; do
        each_test "test_$kind" "$build/bin/${kind}_tests" --gtest_filter=-Engines.* # which read a page of docs/
      done
      each_test test_cuda "$build/bin/cuda_tests"
      each_test test_cuda_device "$build/bin/cuda_device_tests"
      each_test test_router_on_gpu "$build/bin/router_thrust_gpu_tests"
      export ORTHANT_CUDA_EXPERTS=fused
      each_test test_experts_fused "$build/bin/experts_tests" --gtest_filter=-Engines.*
      each_test test_large_products_fused "$build/bin/cuda_device_tests" --gtest_filter='LargeProducts.*'
      unset ORTHANT_CUDA_EXPERTS
      ;;
    recipes) # layouts of several ranks, which share the GPU, in fp32 and bf16: three steps beside the CPU's, and verify
      for recipe in quickstart zero expert tensor sequence pipeline 3d moe_folding bench_mixtral_small; do
        for dtype in fp32 bf16; do
          for device in cpu cuda; do
            step "recipe_${recipe}_${dtype}_$device" "$build/bin/orthant" launch "$root/configs/$recipe.toml" \
              --set run.device="$device" --set run.dtype="$dtype" --set "run.directory=\"$out/recipes\"" \
              --set "run.name=\"${recipe}_${dtype}_$device\"" --set run.steps=3 --set run.log_every=1 --set run.validate_every=0 \
              --set run.threads=1 --set optimizer.warmup_steps=0 --set data.source=synthetic --set 'data.path=[]'
          done
          step "recipe_${recipe}_${dtype}_parity" "$root/scripts/same_losses.sh" "$out/recipes/${recipe}_${dtype}_cpu/metrics.jsonl" \
            "$out/recipes/${recipe}_${dtype}_cuda/metrics.jsonl" 3 "$([[ $dtype == fp32 ]] && echo 1e-4 || echo 1e-2)"
        done
        step "verify_$recipe" "$build/bin/orthant" verify "$root/configs/$recipe.toml" --set run.device=cuda \
          --set data.source=synthetic --set 'data.path=[]'
      done
      ;;
    sanitizer)
      # memcheck sees every address, with each tensor an allocation of its own; racecheck shared memory, synccheck
      # barriers. All are slow: the operations at their small sizes. The latter two look at our kernels alone, by their
      # mangled names: in those of CUTLASS they report what is none, for hours.
      for tool in memcheck racecheck synccheck; do
        look=(compute-sanitizer --tool "$tool" --error-exitcode 9)
        [[ $tool == memcheck ]] || look+=(--kernel-name kns=_ZN7orthant)
        for folder in "${operations[@]}"; do
          step "${tool}_$folder" env ORTHANT_CUDA_CACHE=0 "${look[@]}" "$build/bin/${folder}_tests"
        done
        step "${tool}_experts_fused" env ORTHANT_CUDA_CACHE=0 ORTHANT_CUDA_EXPERTS=fused "${look[@]}" "$build/bin/experts_tests"
      done
      ;;
    nccl)
      gpus=$(nvidia-smi -L | wc -l)
      if [[ $gpus -lt 2 || ! -x $build/bin/comm_conformance_nccl ]]; then
        echo "on_gpu: nccl left out: it needs two GPUs ($gpus here) and a build that found NCCL"
        continue
      fi
      step nccl_conformance_2 "$build/bin/comm_conformance_nccl" 2
      [[ $gpus -eq 2 ]] || step "nccl_conformance_$gpus" "$build/bin/comm_conformance_nccl" "$gpus"
      # Layouts of two ranks over NCCL against one rank.
      for layout in "one 1 1 1" "experts 2 2 1" "stages 1 1 2"; do
        read -r name data expert pipeline <<<"$layout"
        step "nccl_train_$name" "$build/bin/orthant" launch "$root/configs/quickstart.toml" --set run.device=cuda \
          --set run.communicator="$([[ $name == one ]] && echo local || echo nccl)" --set "run.directory=\"$out/nccl_runs\"" \
          --set "run.name=\"$name\"" --set run.steps=20 --set run.log_every=1 --set run.validate_every=20 \
          --set run.checkpoint_every=20 --set "plugins.data.size=$data" --set "plugins.expert.size=$expert" \
          --set "plugins.pipeline.size=$pipeline"
      done
      for name in experts stages; do
        step "nccl_parity_$name" "$root/scripts/same_losses.sh" "$out/nccl_runs/one/metrics.jsonl" "$out/nccl_runs/$name/metrics.jsonl" 20
      done
      ;;
    bench) # a layer with the experts' kernels packed and fused (experts/cuda/choose_kernels.h), and a step of two layers
      for experts in packed fused; do
        step "bench_$experts" env ORTHANT_CUDA_EXPERTS="$experts" "$build/bin/orthant-bench" --device cuda --json "$out/bench_$experts.json"
        step "step_$experts" env ORTHANT_CUDA_EXPERTS="$experts" "$build/bin/orthant" bench step "$root/configs/olmoe_1b.toml" \
          --set model.layers=2 --steps 10
      done
      step step_profile "$build/bin/orthant" bench step "$root/configs/olmoe_1b.toml" --set model.layers=2 --steps 5 --profile
      ;;
    peers)
      step peers_check python3 "$root/bench/peers/moe_layer.py" --check --shape tiny --shape fine-grained-7b
      step peers python3 "$root/bench/peers/moe_layer.py" --ours "$build/bin/orthant-bench" --products
      ;;
    train)
      # CUDA graphs: the losses of the same steps launched one by one.
      for graphs in false true; do
        step "train_graphs_$graphs" "$build/bin/orthant" launch "$root/configs/olmoe_1b.toml" --set "run.directory=\"$out/graphs_runs\"" \
          --set "run.name=\"$graphs\"" --set "run.graphs=$graphs" --set model.layers=2 --set model.d_model=512 --set model.heads=8 \
          --set model.vocab_size=8192 --set moe.experts=16 --set moe.d_expert=256 --set data.sequence_length=1024
      done
      step train_graphs_parity "$root/scripts/same_losses.sh" "$out/graphs_runs/false/metrics.jsonl" "$out/graphs_runs/true/metrics.jsonl" 20
      # Two layers, as the last step writes a checkpoint: 13 GB, where the recipe's 12 layers have 63.
      step train "$build/bin/orthant" launch "$root/configs/olmoe_1b.toml" --set "run.directory=\"$out/runs\"" \
        --set model.layers=2
      ;;
  esac
done
[[ $failed -eq 0 ]] && echo "on_gpu: ok"
exit "$failed"
