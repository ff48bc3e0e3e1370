# shellcheck shell=bash disable=SC2034,SC2154
# Parts: whether whole steps are right.

recipes=(quickstart zero expert tensor sequence pipeline 3d moe_folding bench_mixtral_small)

three_steps() { # RECIPE DTYPE DEVICE FOLDER
  "$bin/orthant" launch "$root/configs/$1.toml" --set run.device="$3" --set run.dtype="$2" --set "run.directory=\"$4\"" \
    --set "run.name=\"$1_$2\"" --set run.steps=3 --set run.log_every=1 --set run.validate_every=0 --set run.checkpoint_every=0 \
    --set run.threads=1 --set optimizer.warmup_steps=0 --set data.source=synthetic --set 'data.path=[]'
}
export -f three_steps

# The CPU's losses, to $build/reference, of the recipes that have none there.
part_reference() {
  local recipe dtype name code
  mkdir -p "$build/reference" "$logs/reference"
  for recipe in "${recipes[@]}"; do
    for dtype in fp32 bf16; do
      [[ -s $build/reference/${recipe}_$dtype.jsonl ]] || echo "reference/${recipe}_$dtype 120 three_steps $recipe $dtype cpu $logs/reference"
    done
  done >"$logs/reference/queue"
  queue "$(nproc)" "$logs/reference/queue"
  while read -r name code; do
    if [[ $code != 0 ]]; then
      fail "$name" "$code" "$logs/$name.log"
    else
      cp "$logs/$name/metrics.jsonl" "$build/$name.jsonl"
    fi
  done <"$logs/reference/queue.codes"
  rm -rf "$logs"/reference/*/
  note="$(find "$build/reference" -name '*.jsonl' | wc -l) runs"
}

part_recipes() {
  local recipe dtype name code ended=0 compared=0 here there
  part_reference
  mkdir -p "$logs/recipes"
  for recipe in "${recipes[@]}"; do
    for dtype in fp32 bf16; do
      echo "recipes/${recipe}_$dtype 60 three_steps $recipe $dtype $device $logs/recipes"
    done
  done >"$logs/recipes/queue"
  for recipe in "${recipes[@]}"; do
    echo "recipes/verify_$recipe 60 $bin/orthant verify $root/configs/$recipe.toml --set run.device=$device --set data.source=synthetic --set 'data.path=[]'"
  done >>"$logs/recipes/queue"
  queue $((jobs < 5 ? jobs : 5)) "$logs/recipes/queue"
  while read -r name code; do
    [[ $code == 125 ]] || ended=$((ended + 1))
    [[ $code == 0 || $code == 125 ]] || fail "$name" "$code" "$logs/$name.log"
  done < <(sort "$logs/recipes/queue.codes")
  not_begun recipes $(($(wc -l <"$logs/recipes/queue") - ended))
  for recipe in "${recipes[@]}"; do
    for dtype in fp32 bf16; do
      here=$build/reference/${recipe}_$dtype.jsonl there=$logs/recipes/${recipe}_$dtype/metrics.jsonl
      [[ -s $here && -s $there ]] || continue
      compared=$((compared + 1))
      name=losses_${recipe}_$dtype
      "$root/scripts/same_losses.sh" "$here" "$there" 3 "$([[ $dtype == fp32 ]] && echo 1e-4 || echo 1e-2)" >"$logs/$name.log" 2>&1 ||
        fail "$name beside the CPU's" 1 "$logs/$name.log"
    done
  done
  note="$ended of $(wc -l <"$logs/recipes/queue") runs ended, losses of $compared compared"
}

part_graphs() { # the losses of the same steps launched one by one
  local small=(--set model.layers=2 --set model.d_model=512 --set model.heads=8 --set model.vocab_size=8192 --set moe.experts=16
    --set moe.d_expert=256 --set data.sequence_length=1024 --set run.steps=12 --set run.checkpoint_every=0 --set run.validate_every=0) graphs
  [[ $device == cuda ]] || { note='needs a GPU'; return; }
  for graphs in false true; do
    step "graphs_$graphs" 120 "$bin/orthant" launch "$root/configs/olmoe_1b.toml" --set "run.directory=\"$logs/graphs\"" \
      --set "run.name=\"$graphs\"" --set "run.graphs=$graphs" --set run.log_every=1 "${small[@]}"
  done
  step graphs_losses 10 "$root/scripts/same_losses.sh" "$logs/graphs/false/metrics.jsonl" "$logs/graphs/true/metrics.jsonl" 12
}

part_resume() { # from the middle of a run, on this device and on the CPU: the losses are those of the run itself
  local name
  local run=("$bin/orthant" launch "$root/configs/quickstart.toml" --set "run.directory=\"$logs/resume\"" --set run.log_every=1
    --set run.validate_every=0 --set run.checkpoint_every=10 --set run.keep=2 --set run.steps=20 --set data.source=synthetic --set 'data.path=[]')
  step resume_whole 60 "${run[@]}" --set run.device="$device" --set run.name=whole || return
  tail -n 10 "$logs/resume/whole/metrics.jsonl" >"$logs/resume/last.jsonl"
  for name in "$device" cpu; do
    step "resume_on_$name" 60 "${run[@]}" --set run.device="$name" --set "run.name=on_$name" --resume "$logs/resume/whole/checkpoints/step_000010"
    step "resume_losses_$name" 10 "$root/scripts/same_losses.sh" "$logs/resume/last.jsonl" "$logs/resume/on_$name/metrics.jsonl" 10
  done
  rm -rf "$logs"/resume/*/checkpoints
}

part_train() { # two layers, as the last step writes a checkpoint: 13 GB, where the recipe's 12 layers have 63
  [[ $device == cuda ]] || { note='needs a GPU'; return; }
  step train 28800 "$bin/orthant" launch "$root/configs/olmoe_1b.toml" --set "run.directory=\"$logs/train\"" --set model.layers=2
}

part_nccl() {
  local gpus layout data expert pipeline
  gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
  if [[ $gpus -lt 2 || ! -x $bin/comm_conformance_nccl ]]; then
    note="left out, it needs two GPUs ($gpus here) and a build that found NCCL"
    return
  fi
  step nccl_conformance_2 600 "$bin/comm_conformance_nccl" 2
  [[ $gpus -eq 2 ]] || step "nccl_conformance_$gpus" 600 "$bin/comm_conformance_nccl" "$gpus"
  # Layouts of two ranks over NCCL against one rank.
  for layout in "one 1 1 1" "experts 2 2 1" "stages 1 1 2"; do
    read -r name data expert pipeline <<<"$layout"
    step "nccl_train_$name" 600 "$bin/orthant" launch "$root/configs/quickstart.toml" --set run.device=cuda \
      --set run.communicator="$([[ $name == one ]] && echo local || echo nccl)" --set "run.directory=\"$logs/nccl_runs\"" \
      --set "run.name=\"$name\"" --set run.steps=20 --set run.log_every=1 --set run.validate_every=20 \
      --set run.checkpoint_every=20 --set "plugins.data.size=$data" --set "plugins.expert.size=$expert" \
      --set "plugins.pipeline.size=$pipeline"
  done
  for name in experts stages; do
    step "nccl_losses_$name" 10 "$root/scripts/same_losses.sh" "$logs/nccl_runs/one/metrics.jsonl" "$logs/nccl_runs/$name/metrics.jsonl" 20
  done
}
