# shellcheck shell=bash disable=SC2034,SC2154
# Parts: how fast it is. On the CPU they only show that they run: small sizes.

if [[ $device == cuda ]]; then
  shapes=(olmoe-1b-7b fine-grained-7b mixtral-8x7b) others=(qwen3-30b-a3b deepseek-v3-ep8 fine-grained-30b) sized=()
else
  shapes=(tiny) others=() sized=(--tokens 256)
fi
lines() { # PATTERN LOG [MOST]: of what was measured
  local line
  while IFS= read -r line; do figure "$line"; done < <(grep -hE "$1" "$logs/$2.log" 2>/dev/null | cut -c1-110 | head -n "${3:-8}")
}

part_layer() {
  local bench=("$bin/orthant-bench" --device "$device" --shape "${shapes[0]}" --uniform --samples 3 "${sized[@]}")
  step layer_packed 60 "${bench[@]}" --json "$logs/layer_packed.json"
  lines '^device|layer forward|experts (in|out)' layer_packed
}

part_engines() { # our fused products beside the packed ones, whatever kernels compute these here
  local shape engine
  for shape in "${shapes[@]}" "${others[@]}"; do
    for engine in packed fused; do
      step "${engine}_$shape" 30 env ORTHANT_CUDA_EXPERTS="$engine" "$bin/orthant-bench" --device "$device" --shape "$shape" --uniform \
        --samples 3 "${sized[@]}" --json "$logs/${engine}_$shape.json"
      lines ' routing|layer forward' "${engine}_$shape"
    done
  done
}

part_peers() {
  python3 -c 'import torch' 2>/dev/null || { note='left out, python3 has no PyTorch here'; return; }
  step peers 3600 python3 "$root/bench/peers/moe_layer.py" --device "$device" --ours "$bin/orthant-bench" --samples 5 --variant grouped_mm \
    --variant transformers --variant scattermoe "${shapes[@]/#/--shape=}" --products
  lines '^(\| |Ceilings)' peers 40
}

part_step() {
  local layers olmoe=("$bin/orthant" bench step "$root/configs/olmoe_1b.toml")
  [[ $device == cuda ]] || { note='needs a GPU'; return; }
  if [[ $name == first ]]; then
    step step_2 40 "${olmoe[@]}" --set model.layers=2 --steps 5
    lines 'median|experts:|attention:' step_2
  else
    for layers in 4 8; do
      step "step_$layers" 120 "${olmoe[@]}" --set "model.layers=$layers" --steps 6
      lines 'median|experts:|attention:' "step_$layers"
    done
    step step_any_order 120 "${olmoe[@]}" --set model.layers=2 --steps 5 --set run.deterministic=false
    lines median step_any_order
  fi
  step step_profile 120 "${olmoe[@]}" --set model.layers=2 --steps 4 --profile
  lines . step_profile 30
}

part_tiles() {
  local tile shape
  [[ $device == cuda ]] || { note='needs a GPU'; return; }
  for shape in "${shapes[@]}" deepseek-v3-ep8; do
    for tile in large overlapped square small; do
      step "tile_${tile}_$shape" 30 env ORTHANT_CUDA_TILE="$tile" "$bin/orthant-bench" --device cuda --shape "$shape" --uniform --samples 3
      lines 'experts (in|out)' "tile_${tile}_$shape"
    done
  done
}
