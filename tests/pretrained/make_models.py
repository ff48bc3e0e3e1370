#!/usr/bin/env python3
"""Makes tests/pretrained/models: a tiny random model of each family, as transformers saves it, and its logits.

    python make_models.py [FOLDER]     needs torch, transformers 5 and safetensors; CPU alone

Sizes are odd on purpose. FOLDER/NAME holds config.json, model.safetensors and expected.safetensors: token [2, 32] and
logits [2, 32, V], computed in fp64 from the weights as they are stored. NAME_packed has the experts of a layer in one
tensor. NAME_fp8 has matrices in 8 bits, with a scale for each block (NAME_fp8_whole: for each matrix), and NAME_mxfp4
experts in 4 bits; expected.safetensors then has their values too, in fp32, and so it has those of F16 tensors.

    python make_models.py FOLDER NAME...    makes these alone, and what is made from them
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers as t
from safetensors.torch import load_file, save_file

VOCABULARY, POSITIONS = 38, 32
SHAPE = dict(vocab_size=VOCABULARY, hidden_size=24, num_attention_heads=4, max_position_embeddings=64,
             initializer_range=0.3, num_hidden_layers=2)
MOE = dict(num_key_value_heads=2, num_experts_per_tok=2)
LATENT = dict(num_key_value_heads=4, intermediate_size=22, moe_intermediate_size=14, n_routed_experts=8, n_group=4,
              topk_group=2, num_experts_per_tok=3, first_k_dense_replace=1, kv_lora_rank=6, qk_rope_head_dim=4,
              qk_nope_head_dim=6, v_head_dim=6, rms_norm_eps=1e-6)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=0.7)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

MODELS = {
    "mixtral": (t.MixtralForCausalLM, t.MixtralConfig, dict(
        MOE, intermediate_size=10, num_local_experts=4, sliding_window=9)),
    "mistral": (t.MistralForCausalLM, t.MistralConfig, dict(
        num_key_value_heads=2, head_dim=6, intermediate_size=22, sliding_window=None, tie_word_embeddings=True)),
    "llama": (t.LlamaForCausalLM, t.LlamaConfig, dict(
        num_key_value_heads=2, head_dim=6, intermediate_size=22, attention_bias=True, rope_parameters=LLAMA3)),
    "olmoe": (t.OlmoeForCausalLM, t.OlmoeConfig, dict(
        MOE, intermediate_size=10, num_experts=6)),
    "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config, dict(num_key_value_heads=2, num_attention_heads=2,
                                                      intermediate_size=22)),
    "qwen2_moe": (t.Qwen2MoeForCausalLM, t.Qwen2MoeConfig, dict(
        MOE, num_attention_heads=2, intermediate_size=22, moe_intermediate_size=14,
        shared_expert_intermediate_size=18, num_experts=6, mlp_only_layers=[0])),
    "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config, dict(num_key_value_heads=2, head_dim=6, intermediate_size=22)),
    "qwen3_moe": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig, dict(
        MOE, head_dim=6, intermediate_size=22, moe_intermediate_size=14, num_experts=6, norm_topk_prob=True,
        decoder_sparse_step=2)),
    "deepseek_v2": (t.DeepseekV2ForCausalLM, t.DeepseekV2Config, dict(
        LATENT, q_lora_rank=None, n_shared_experts=2, topk_method="group_limited_greedy", routed_scaling_factor=1.5)),
    "deepseek_v3": (t.DeepseekV3ForCausalLM, t.DeepseekV3Config, dict(
        LATENT, q_lora_rank=10, n_shared_experts=1, rope_parameters=YARN)),
}
MODELS["gpt_oss"] = (t.GptOssForCausalLM, t.GptOssConfig, dict(
    MOE, num_hidden_layers=3, head_dim=6, intermediate_size=10, num_local_experts=6, sliding_window=5,
    rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, original_max_position_embeddings=16,
                         beta_fast=32.0, beta_slow=1.0, truncate=False)))
BIASED = dict(MOE, intermediate_size=22, moe_intermediate_size=14, n_routed_experts=6, n_shared_experts=2,
              first_k_dense_replace=1, num_experts_per_tok=3)
MODELS["glm4_moe"] = (t.Glm4MoeForCausalLM, t.Glm4MoeConfig, dict(
    BIASED, head_dim=12, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, routed_scaling_factor=1.5,
    rope_parameters=dict(rope_type="default", rope_theta=1000000.0, partial_rotary_factor=0.5)))
MODELS["dots1"] = (t.Dots1ForCausalLM, t.Dots1Config, dict(
    BIASED, head_dim=6, norm_topk_prob=True, n_group=3, topk_group=2, routed_scaling_factor=2.5, sliding_window=None))
MODELS["minimax_m2"] = (t.MiniMaxM2ForCausalLM, t.MiniMaxM2Config, dict(
    MOE, head_dim=8, intermediate_size=10, num_local_experts=6, rotary_dim=4))
MODELS["ernie4_5_moe"] = (t.Ernie4_5_MoeForCausalLM, t.Ernie4_5_MoeConfig, dict(
    num_key_value_heads=2, head_dim=6, intermediate_size=22, moe_intermediate_size=14, moe_num_experts=6, moe_k=2,
    moe_num_shared_experts=1, moe_layer_start_index=1))
MODELS["llama_f16"] = MODELS["llama"]
MODELS["bailing_moe_v2"] = (t.Glm4MoeForCausalLM, t.Glm4MoeConfig, dict(
    BIASED, head_dim=12, attention_bias=False, use_qk_norm=True, n_group=3, topk_group=2, routed_scaling_factor=2.5,
    rope_parameters=dict(rope_type="default", rope_theta=600000.0, partial_rotary_factor=0.5)))
# The outer norms have another eps than those in latent attention (Moonlight); both bounds of YaRN are one (Kimi K2).
MODELS["kimi_k2"] = (t.DeepseekV3ForCausalLM, t.DeepseekV3Config, dict(
    LATENT, n_group=1, topk_group=1, q_lora_rank=10, n_shared_experts=1, rms_norm_eps=1e-5, routed_scaling_factor=2.827,
    rope_parameters=dict(YARN, beta_fast=1.0, beta_slow=1.0, mscale_all_dim=1.0)))
MODELS["glm4_moe_lite"] = (t.Glm4MoeLiteForCausalLM, t.Glm4MoeLiteConfig, dict(
    {k: v for k, v in LATENT.items() if k not in ("rms_norm_eps", "first_k_dense_replace")}, q_lora_rank=10,
    n_shared_experts=1, num_hidden_layers=3, mlp_layer_types=["dense", "dense", "sparse"]))
MODELS["olmo2"] = (t.Olmo2ForCausalLM, t.Olmo2Config, dict(num_key_value_heads=2, intermediate_size=22))
MODELS["flex_olmo"] = (t.FlexOlmoForCausalLM, t.FlexOlmoConfig, dict(
    MOE, intermediate_size=10, num_experts=6, num_experts_per_tok=3))
# 32 positions are within the original ones, or not.
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.3],
                long_factor=[1.2, 2.5, 7.0])
MODELS["phi3"] = (t.Phi3ForCausalLM, t.Phi3Config, dict(
    num_key_value_heads=2, intermediate_size=22, sliding_window=21, original_max_position_embeddings=40,
    rope_parameters=LONGROPE))
MODELS["phi3_long"] = (*MODELS["phi3"][:2], dict(
    MODELS["phi3"][2], original_max_position_embeddings=16, hidden_size=32,
    rope_parameters=dict(LONGROPE, partial_rotary_factor=0.75)))
MODELS["phimoe"] = (t.PhimoeForCausalLM, t.PhimoeConfig, dict(
    MOE, intermediate_size=10, num_local_experts=6, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.2,
    rope_parameters=dict(LONGROPE, rope_theta=1000000.0, short_mscale=1.2, long_mscale=1.2,
                         original_max_position_embeddings=40)))
GRANITE = dict(embedding_multiplier=12.0, logits_scaling=0.6, residual_multiplier=0.22, attention_multiplier=0.3)
MODELS["granite"] = (t.GraniteForCausalLM, t.GraniteConfig, dict(
    GRANITE, num_key_value_heads=2, intermediate_size=22))
MODELS["granitemoe"] = (t.GraniteMoeForCausalLM, t.GraniteMoeConfig, dict(
    MOE, **GRANITE, intermediate_size=10, num_local_experts=6, tie_word_embeddings=True))
GEMMA = dict(num_key_value_heads=2, head_dim=6, intermediate_size=22, query_pre_attn_scalar=9, sliding_window=7)
MODELS["gemma2"] = (t.Gemma2ForCausalLM, t.Gemma2Config, dict(
    GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0))
MODELS["gemma3_text"] = (t.Gemma3ForCausalLM, t.Gemma3TextConfig, dict(
    GEMMA, num_hidden_layers=4, layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                             "sliding_attention"],
    rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=100.0),
                         full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0))))
HUNYUAN = dict(num_key_value_heads=2, head_dim=6, intermediate_size=10, num_experts=6, moe_topk=2)
MODELS["hunyuan_v1_moe"] = (t.HunYuanMoEV1ForCausalLM, t.HunYuanMoEV1Config, dict(
    HUNYUAN, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0)))
# Sequences of 32 are longer than those of the model.
MODELS["llama_dynamic"] = (t.LlamaForCausalLM, t.LlamaConfig, dict(
    num_key_value_heads=2, head_dim=6, intermediate_size=22, max_position_embeddings=16,
    rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=3.0)))
# Classes whose tokens lie outside so small a vocabulary.
for name in ("glm4_moe_lite", "olmo2", "flex_olmo", "phi3", "phi3_long", "phimoe", "hunyuan_v1_moe", "gemma2", "gemma3_text"):
    MODELS[name] = (*MODELS[name][:2], dict(MODELS[name][2], bos_token_id=None, eos_token_id=1, pad_token_id=None))
# Blocks of 32: both widths are multiples.
MODELS["gpt_oss_mxfp4"] = (*MODELS["gpt_oss"][:2], dict(
    MODELS["gpt_oss"][2], num_hidden_layers=2, hidden_size=32, intermediate_size=32, num_local_experts=4))
PACKED = ("mixtral", "qwen3_moe")  # in both forms
# In bf16 and 8 bits too: rows and columns that share a scale; published models have 128 and 128. Of Qwen's 14 rows of
# gate and 14 of up, one block of 4 has two of each.
FP8 = {"deepseek_v3": (8, 10), "qwen3_moe_packed": (4, 10)}
STORED = {"qwen3": torch.bfloat16, "llama_f16": torch.float16}


def randomised(model):
    """Norms, biases and what else begins at ones or zeros would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if (tensor.dim() == 1 or name.endswith(("_proj_bias", "e_score_correction_bias"))) and tensor.dtype == torch.float32 and "inv_freq" not in str(tensor):
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
            if name.endswith("gate_up_proj") and model.config.model_type == "gpt_oss":
                tensor.mul_(3)  # so that gpt-oss's activation is cut off somewhere


def logits_of(folder, model_class, tokens):
    model = model_class.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                        experts_implementation="eager")
    model.eval()
    with torch.no_grad():
        return model(tokens).logits


def pack(folder):
    """The experts' matrices of each layer in one tensor of three dimensions, as transformers 5 holds them."""
    weights = load_file(folder / "model.safetensors")
    stems = sorted({name.split(".experts.")[0] for name in weights if ".experts." in name})
    gate, up, down = ("w1", "w3", "w2") if "block_sparse_moe" in stems[0] else ("gate_proj", "up_proj", "down_proj")
    for stem in stems:
        count = sum(name.startswith(f"{stem}.experts.") and name.endswith(f".{gate}.weight") for name in weights)
        take = lambda e, m: weights.pop(f"{stem}.experts.{e}.{m}.weight")
        into = stem.replace("block_sparse_moe", "mlp")
        rows = [torch.cat([take(e, gate), take(e, up)]) for e in range(count)]
        weights[f"{into}.experts.gate_up_proj"] = torch.stack(rows)
        weights[f"{into}.experts.down_proj"] = torch.stack([take(e, down) for e in range(count)])
        weights[f"{into}.gate.weight"] = weights.pop(f"{stem}.gate.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def unpack(weights):
    """The inverse: transformers reads packed tensors under these names as unexpected ones, and draws the experts anew."""
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        stem, kind = name.rsplit(".", 1)
        for e, matrix in enumerate(weights.pop(name)):
            for part, w in zip(("gate", "up") if kind == "gate_up_proj" else ("down",), matrix.chunk(2 if kind == "gate_up_proj" else 1)):
                weights[f"{stem}.{e}.{part}_proj.weight"] = w.contiguous()
    return weights


def as_bailing(folder, tokens, logits):
    """GLM-4.5's computation under the names of Ling 2.0, of which transformers has no class."""
    weights, renamed = load_file(folder / "model.safetensors"), {}
    for name, w in weights.items():
        for theirs, ours in (("self_attn.o_proj", "attention.dense"), ("self_attn.q_norm", "attention.query_layernorm"),
                             ("self_attn.k_norm", "attention.key_layernorm"), ("embed_tokens", "word_embeddings"),
                             ("gate.e_score_correction_bias", "gate.expert_bias")):
            name = name.replace(theirs, ours)
        renamed[name] = w
    for stem in {name.split(".self_attn.")[0] for name in renamed if ".self_attn." in name}:
        renamed[stem + ".attention.query_key_value.weight"] = torch.cat(
            [renamed.pop(f"{stem}.self_attn.{part}_proj.weight") for part in "qkv"])
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    glm = json.loads((folder / "config.json").read_text())
    same = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "hidden_act", "rms_norm_eps", "tie_word_embeddings", "initializer_range", "max_position_embeddings",
            "vocab_size", "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size", "head_dim",
            "first_k_dense_replace", "routed_scaling_factor", "attention_dropout", "norm_topk_prob")
    config = {key: glm[key] for key in same}
    config.update(architectures=["BailingMoeV2ForCausalLM"], model_type="bailing_moe_v2", use_qkv_bias=False,
                  use_bias=False, use_qk_norm=True, num_experts=glm["n_routed_experts"], eos_token_id=1,
                  pad_token_id=None, num_shared_experts=glm["n_shared_experts"], partial_rotary_factor=0.5,
                  rotary_dim=glm["head_dim"] // 2, rope_theta=glm["rope_parameters"]["rope_theta"], rope_scaling=None,
                  score_function="sigmoid", moe_router_enable_expert_bias=True, torch_dtype="float32",
                  embedding_dropout=0.0, output_dropout=0.0, num_nextn_predict_layers=0, router_dtype="fp32",
                  output_router_logits=False, use_cache=True,
                  moe_shared_expert_intermediate_size=glm["moe_intermediate_size"] * glm["n_shared_experts"])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    expect(folder, tokens, logits, {})


def expect(folder, tokens, logits, values):
    save_file({"token": tokens.to(torch.int32), "logits": logits.to(torch.float32), **values},
              folder / "expected.safetensors")


def in_fp8(source, folder, model_class, tokens, block):
    """The matrices that such models have in 8 bits: all but embedding, output and router. The rest is bf16.

    Experts in one tensor are matrices each. Blocks are of gate above up, as transformers cuts them. Without `block` a
    matrix has one scale, gate and up one each, and there are scales for activations, which are no part of the model.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    stored, values = {}, {}
    for name, w in load_file(source / "model.safetensors").items():
        if w.dim() == 1 or "embed" in name or "lm_head" in name or name.endswith("mlp.gate.weight"):
            stored[name] = w if "e_score_correction_bias" in name else w.to(torch.bfloat16)
            continue
        parts = 2 if name.endswith("gate_up_proj") and not block else 1
        assert not block or not name.endswith("gate_up_proj") or w.shape[-2] % block[0] == 0, name
        matrices = w.reshape(-1, w.shape[-2] // parts, w.shape[-1])
        size = block or matrices.shape[1:]
        rows, columns = (-(-all // one) for all, one in zip(matrices.shape[1:], size))
        scale = torch.empty(len(matrices), rows, columns)
        for r in range(rows):
            for c in range(columns):
                scale[:, r, c] = matrices[:, r * size[0]:(r + 1) * size[0], c * size[1]:(c + 1) * size[1]].abs().amax((1, 2)) / 448
        if not block:
            scale = scale.to(torch.bfloat16)
        spread = scale.to(torch.float32).repeat_interleave(size[0], 1).repeat_interleave(size[1], 2)
        spread = spread[:, :matrices.shape[1], :matrices.shape[2]].reshape(w.shape)
        stored[name] = (w / spread).to(torch.float8_e4m3fn)
        values[name] = stored[name].to(torch.float32) * spread
        stored[name + "_scale_inv"] = scale.reshape(*w.shape[:-2], parts * rows, columns) if w.dim() == 3 or block else scale.reshape(())
        if not block:
            rounding = name.removesuffix(".weight") + (".activation_scale" if w.dim() == 2 else "_activation_scale")
            stored[rounding] = torch.ones(w.shape[:-2], dtype=torch.bfloat16)
    wide = folder / "wide"
    shutil.copytree(source, wide)
    save_file(unpack({n: values.get(n, w.to(torch.float32)) for n, w in stored.items()
                      if not n.endswith("_scale_inv") and "activation_scale" not in n}),
              wide / "model.safetensors", {"format": "pt"})
    logits = logits_of(wide, model_class, tokens)
    shutil.rmtree(wide)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"activation_scheme": "dynamic" if block else "static", "fmt": "e4m3",
                                     "quant_method": "fp8", "weight_block_size": list(block) if block else None}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    expect(folder, tokens, logits, values)


def in_mxfp4(folder, model_class, tokens):
    """The experts' matrices as gpt-oss is published: blocks of 32 along what is summed over, two elements a byte."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = torch.cat([levels, -levels])
    stored, values = {}, {}
    for name, w in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = w
            continue
        blocks = w.transpose(1, 2).reshape(w.shape[0], w.shape[2], -1, 32)
        exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
        nearest = (blocks.unsqueeze(-1) / 2 ** exponent[..., None, None] - levels).abs().argmin(-1)
        stored[name + "_blocks"] = (nearest[..., 0::2] + 16 * nearest[..., 1::2]).to(torch.uint8)
        stored[name + "_scales"] = (exponent + 127).to(torch.uint8)
        wide = levels[nearest] * 2 ** exponent[..., None]
        values[name] = wide.reshape(w.shape[0], w.shape[2], w.shape[1]).transpose(1, 2).contiguous()
    save_file({**{n: w for n, w in stored.items() if w.dtype != torch.uint8}, **values},
              folder / "model.safetensors", {"format": "pt"})
    logits = logits_of(folder, model_class, tokens)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    expect(folder, tokens, logits, values)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "models")
    for name, (model_class, config_class, keys) in MODELS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(3)
        tokens = torch.randint(0, VOCABULARY, (2, POSITIONS))
        model = model_class(config_class(**{**SHAPE, **keys}))
        randomised(model)
        model = model.to(STORED.get(name, torch.float32))
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if name == "bailing_moe_v2":
            as_bailing(folder, tokens, logits_of(folder, model_class, tokens))
            continue
        if name == "kimi_k2":  # no class has this name
            logits = logits_of(folder, model_class, tokens)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(dict(config, model_type=name), indent=2) + "\n")
            expect(folder, tokens, logits, {})
            continue
        logits = logits_of(folder, model_class, tokens)
        values = load_file(folder / "model.safetensors") if STORED.get(name) == torch.float16 else {}
        expect(folder, tokens, logits, {n: value.to(torch.float32) for n, value in values.items()})
        if name in PACKED:
            packed = root / f"{name}_packed"
            shutil.rmtree(packed, ignore_errors=True)
            shutil.copytree(folder, packed)
            pack(packed)
        for one in (name, f"{name}_packed"):
            if one in FP8:
                in_fp8(root / one, root / f"{name}_fp8", model_class, tokens, FP8[one])
        if name == "qwen3_moe":
            in_fp8(root / f"{name}_packed", root / f"{name}_fp8_whole", model_class, tokens, block=None)
        if name.endswith("_mxfp4"):
            in_mxfp4(folder, model_class, tokens)
        print(name, json.dumps({k: v for k, v in keys.items()}, default=str)[:60], float(logits.abs().max()))


if __name__ == "__main__":
    main()
