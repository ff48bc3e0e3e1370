#include "core/run/export.h"

#include <orthant/gate.h>

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/arch/parameter_table.h"
#include "core/checkpoint/checkpoint.h"
#include "core/device/cpu/bf16.h"
#include "core/run/run_ids.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

std::string model_type(const Settings& s) {
  return !without_twin(s).empty() ? "orthant" : routed_blocks(s) > 0 ? "mixtral" : "mistral";
}

const char* text(NormKind k) {
  return k == NormKind::rmsnorm ? "rmsnorm" : "layernorm";
}
const char* text(Activation a) {
  return a == Activation::swiglu ? "swiglu" : a == Activation::gelu ? "gelu" : "relu";
}
const char* text(Positions p) {
  return p == Positions::rotary ? "rotary" : "learned";
}
const char* text(RopeScaling r) {
  switch (r) {
    case RopeScaling::none: return "none";
    case RopeScaling::linear: return "linear";
    case RopeScaling::llama3: return "llama3";
    case RopeScaling::yarn: return "yarn";
  }
  return "";
}
const char* text(ScoreKind s) {
  return s == ScoreKind::softmax ? "softmax" : "sigmoid";
}

void add_rotary_keys(OrderedJson& json, const ModelSettings& m) {
  json["rope_interleaved"] = m.rope_interleaved;
  json["rope_scaling"] = text(m.rope_scaling);
  if (m.rope_scaling != RopeScaling::none) {
    json["rope_factor"] = m.rope_factor;
  }
  if (m.rope_scaling == RopeScaling::llama3 || m.rope_scaling == RopeScaling::yarn) {
    json["rope_original_positions"] = m.rope_original_positions;
  }
  if (m.rope_scaling == RopeScaling::llama3) {
    json["rope_low_freq_factor"] = m.rope_low_freq_factor;
    json["rope_high_freq_factor"] = m.rope_high_freq_factor;
  }
  if (m.rope_scaling == RopeScaling::yarn) {
    json["rope_beta_fast"] = m.rope_beta_fast;
    json["rope_beta_slow"] = m.rope_beta_slow;
    json["rope_truncate"] = m.rope_truncate;
    json["rope_attention_factor"] = m.rope_attention_factor;
    json["rope_mscale"] = m.rope_mscale;
    json["rope_mscale_all_dim"] = m.rope_mscale_all_dim;
  }
}

// The keys that transformers has no name for, as in a [model] and a [moe] table.
void add_own_keys(OrderedJson& json, const Settings& s) {
  json["norm"] = text(s.model.norm);
  json["activation"] = text(s.model.activation);
  json["positions"] = text(s.model.positions);
  json["attention"] = s.model.attention;
  json["ffn"] = s.model.ffn;
  json["qk_norm"] = s.model.qk_norm;
  json["qk_norm_over"] = s.model.qk_norm_over == QkNormOver::head ? "head" : "all";
  json["attention_bias"] = s.model.biases;
  json["output_bias"] = s.model.output_bias;
  add_rotary_keys(json, s.model);
  if (s.model.attention == "latent") {
    json["q_lora_rank"] = s.model.q_lora_rank;
    json["kv_lora_rank"] = s.model.kv_lora_rank;
    json["qk_nope_head_dim"] = s.model.qk_nope_head_dim;
    json["qk_rope_head_dim"] = s.model.qk_rope_head_dim;
    json["v_head_dim"] = s.model.v_head_dim;
  }
  if (routed_blocks(s) > 0) {
    json["every"] = s.moe.every;
    json["first_dense"] = s.moe.first_dense;
    json["router"] = s.moe.router;
    json["score"] = text(s.moe.score);
    json["normalize_weights"] = s.moe.normalize_weights;
    json["weight_scale"] = s.moe.weight_scale;
    json["capacity_factor"] = s.moe.capacity_factor;
    json["group_tokens"] = group_tokens_of(s);
    json["drop_policy"] = s.moe.drop_policy == DropPolicy::position ? "position" : "probability";
    json["expert_groups"] = s.moe.expert_groups;
    json["groups_per_token"] = s.moe.groups_per_token;
    json["group_score"] = s.moe.group_score == GroupScore::max ? "max" : "top2_sum";
    json["shared_experts"] = s.moe.shared_experts;
    json["shared_expert_intermediate_size"] = d_shared_of(s);
    json["shared_gate"] = s.moe.shared_gate;
    json["expert_intermediate_size"] = d_expert_of(s);
  }
}

// Where the checkpoint and the configuration of a run lie.
struct Exported {
  fs::path checkpoint, config;
  std::vector<std::string> passed_over;
};

std::optional<fs::path> newest_in(const fs::path& run, std::vector<std::string>& skipped) {
  try {
    return latest_checkpoint(run / "checkpoints", &skipped);
  } catch (const CheckpointUnreadable& failed) {
    fail("{}. It may be readable later; to export another checkpoint, give that one's folder", failed.what());
  }
}

Exported find_source(const fs::path& given) {
  const fs::path path = fs::absolute(given / "").lexically_normal().parent_path();
  if (!fs::is_directory(path)) {
    const fs::path usual = fs::path("runs") / given;
    fail("'{}' is not a folder: give a run's folder or a checkpoint's{}", given.string(),
         given.is_relative() && fs::is_directory(usual) ? ", here '" + usual.string() + "'" : "");
  }
  Exported source;
  if (fs::exists(path / "manifest.json")) {
    source = {path, path.parent_path().parent_path() / "config.resolved.toml", {}};
  } else {
    std::vector<std::string> skipped;
    const auto latest = newest_in(path, skipped);
    require(latest.has_value(), "'{}' has no complete checkpoint under checkpoints/{}{}", given.string(),
            skipped.empty() ? "" : "; passed over:\n  ", fmt::join(skipped, "\n  "));
    source = {*latest, path / "config.resolved.toml", skipped};
  }
  require(fs::exists(source.config), "'{}' is missing: it tells the shape of the model, and the run writes it",
          source.config.string());
  return source;
}

// The parameters of the model in the table's order, as the file is to hold them.
std::vector<FileTensor> tensors_of(const Settings& settings, DType dtype, const CheckpointReader& reader) {
  std::vector<FileTensor> tensors;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& p : layer.params) {
      require(reader.has(p.name), "the checkpoint of step {} has no '{}': it is not of this run's configuration",
              reader.step(), p.name);
      const CheckpointReader::TensorInfo info = reader.info(p.name);
      require(info.shape == p.global && info.dtype == DType::f32,
              "the checkpoint's '{}' is {} {}, the configuration makes it f32 {}", p.name, name_of(info.dtype),
              info.shape.to_string(), p.global.to_string());
      FileTensor tensor{.name = p.name, .dtype = dtype, .sizes = {}};
      for (int i = 0; i < p.global.rank(); ++i) {
        tensor.sizes.push_back(p.global[i]);
      }
      tensors.push_back(std::move(tensor));
    }
  }
  const std::vector<std::string> names = reader.names();
  const auto weights = std::count_if(names.begin(), names.end(), [](const std::string& name) {
    return !name.starts_with("optimizer/") && !name.starts_with(gate_state_prefix) && !name.starts_with("plugins/") &&
           !name.starts_with("worker");
  });
  require(static_cast<std::size_t>(weights) == tensors.size(),
          "the checkpoint of step {} has {} parameters, the configuration makes {}", reader.step(), weights,
          tensors.size());
  return tensors;
}

// Returns the number of parameters.
std::int64_t write_weights(const fs::path& path, const CheckpointReader& reader, const std::vector<FileTensor>& tensors,
                           const Disk& disk) {
  DiskFile file(disk, path);
  SafetensorsWriter writer(file, tensors, {{"format", "pt"}});  // transformers refuses a file without it
  std::vector<float> values;
  std::vector<BFloat16> rounded;
  std::int64_t parameters = 0;
  for (const FileTensor& t : tensors) {
    const Shape shape = reader.info(t.name).shape;
    values.resize(shape.elements());
    reader.read(t.name, std::vector<std::int64_t>(t.sizes.size(), 0), t.sizes, values.data());
    if (t.dtype == DType::bf16) {
      rounded.resize(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
      writer.write(std::as_bytes(std::span(rounded)));
    } else {
      writer.write(std::as_bytes(std::span(values)));
    }
    parameters += shape.elements();
  }
  writer.finish();
  file.sync_and_close();
  return parameters;
}

void write_text(const fs::path& path, const std::string& content, const Disk& disk) {
  DiskFile file(disk, path);
  file.write(std::as_bytes(std::span(content)));
  file.sync_and_close();
}

// A folder beside the output, gone at the end unless it was renamed.
class Workshop {
 public:
  Workshop(const Disk& disk, const fs::path& output) : path_(output.string() + fmt::format(".tmp-{}", getpid())) {
    disk.create_folder(path_);
  }
  ~Workshop() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool check_output(const fs::path& output, bool replace_existing) {
  if (!fs::exists(output)) {
    return false;
  }
  require(fs::is_directory(output), "'{}' is a file: give a folder to export into", output.string());
  const bool filled = !fs::is_empty(output);
  require(!filled || replace_existing, "'{}' holds files already: give another folder, or --force to replace the model",
          output.string());
  return filled;
}

std::vector<std::string> notes_on(const Settings& s) {
  std::vector<std::string> notes;
  for (const std::string& reason : without_twin(s)) {
    notes.push_back("no twin in transformers: " + reason);
  }
  if (!notes.empty()) {
    notes.push_back("exported under Orthant's names (model_type \"orthant\"): transformers will not load it");
  } else if (routed_blocks(s) > 0 && s.moe.capacity_factor > 0) {
    notes.push_back(
        fmt::format("trained with moe.capacity_factor = {}: transformers drops no token, so its loss differs "
                    "from the one measured here where tokens were dropped",
                    s.moe.capacity_factor));
  }
  return notes;
}

}  // namespace

std::vector<std::string> without_twin(const Settings& s) {
  std::vector<std::string> reasons;
  auto expect = [&](bool same, std::string otherwise) {
    if (!same) {
      reasons.push_back(std::move(otherwise));
    }
  };
  expect(s.model.norm == NormKind::rmsnorm, fmt::format("model.norm = \"{}\"", text(s.model.norm)));
  expect(s.model.activation == Activation::swiglu, fmt::format("model.activation = \"{}\"", text(s.model.activation)));
  expect(s.model.attention == "multi_head", fmt::format("model.attention = \"{}\"", s.model.attention));
  expect(s.model.ffn == "mlp", fmt::format("model.ffn = \"{}\"", s.model.ffn));
  expect(!s.model.qk_norm, "model.qk_norm = true");
  expect(!s.model.biases, "model.biases = true");
  expect(!s.model.output_bias, "model.output_bias = true");
  expect(s.model.rope_scaling == RopeScaling::none,
         fmt::format("model.rope_scaling = \"{}\"", text(s.model.rope_scaling)));
  expect(!s.model.rope_interleaved, "model.rope_interleaved = true");
  expect(s.model.positions == Positions::rotary, fmt::format("model.positions = \"{}\"", text(s.model.positions)));
  const int routed = routed_blocks(s);
  if (routed > 0) {
    expect(routed == s.model.layers, fmt::format("experts in {} of {} blocks", routed, s.model.layers));
    const Gate& gate = gate_of(s);
    const bool greatest = gate.greatest_logits(s.moe);
    expect(greatest, fmt::format("moe.router = \"{}\"", s.moe.router));
    expect(!greatest || gate.config(s).normalize_weights, "moe.normalize_weights = false");
    expect(s.moe.score == ScoreKind::softmax, fmt::format("moe.score = \"{}\"", text(s.moe.score)));
    expect(s.moe.weight_scale == 1, fmt::format("moe.weight_scale = {}", s.moe.weight_scale));
    expect(s.moe.shared_experts == 0, fmt::format("moe.shared_experts = {}", s.moe.shared_experts));
  }
  return reasons;
}

std::string export_config(const Settings& s, DType dtype) {
  const std::string type = model_type(s);
  const bool routed = routed_blocks(s) > 0;
  OrderedJson json;
  json["model_type"] = type;
  json["architectures"] = OrderedJson::array();
  if (type != "orthant") {
    json["architectures"].push_back(type == "mixtral" ? "MixtralForCausalLM" : "MistralForCausalLM");
  }
  json["vocab_size"] = s.model.vocab_size;
  json["hidden_size"] = s.model.d_model;
  json["intermediate_size"] = type == "mixtral" ? d_expert_of(s) : d_ff_of(s);
  json["num_hidden_layers"] = s.model.layers;
  json["num_attention_heads"] = s.model.heads;
  json["num_key_value_heads"] = kv_heads_of(s);
  json["head_dim"] = head_dim_of(s);
  json["max_position_embeddings"] = s.data.sequence_length;
  json["rope_theta"] = s.model.rope_theta;
  json["rms_norm_eps"] = s.model.norm_eps;
  json["hidden_act"] = s.model.activation == Activation::swiglu ? "silu" : text(s.model.activation);
  json["initializer_range"] = s.model.init_std;
  json["attention_dropout"] = 0.0;
  json["sliding_window"] = s.model.sliding_window > 0 ? OrderedJson(s.model.sliding_window) : OrderedJson();
  json["tie_word_embeddings"] = s.model.tie_embeddings;
  if (routed) {
    json["num_local_experts"] = s.moe.experts;
    json["num_experts_per_tok"] = s.moe.top_k;
    json["router_aux_loss_coef"] = s.moe.aux_loss;
    json["router_jitter_noise"] = s.moe.jitter;
    json["output_router_logits"] = false;
  }
  if (type == "orthant") {
    add_own_keys(json, s);
  }
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = dtype == DType::bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

ExportResult export_run(const ExportOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  const fs::path output = fs::absolute(options.output / "").lexically_normal().parent_path();
  const bool filled = check_output(output, options.replace_existing);
  const Exported source = find_source(options.run);
  // The data may be gone by now, and nothing is read from it.
  const Config config = load_config(source.config.string(), {"data.source=\"synthetic\""}, plugin_keys, plugin_kinds);
  const CheckpointReader reader(source.checkpoint);
  const fs::path run_folder = source.config.parent_path();
  require_same_run(source.checkpoint, reader.state(), run_folder, ids_in(run_folder).run);
  const std::vector<FileTensor> tensors = tensors_of(config.settings, options.dtype, reader);

  const Disk disk;
  const Workshop workshop(disk, output);
  const std::int64_t parameters = write_weights(workshop.path() / "model.safetensors", reader, tensors, disk);
  write_text(workshop.path() / "config.json", export_config(config.settings, options.dtype), disk);
  disk.sync_folder(workshop.path());
  if (filled) {
    for (const char* name : {"model.safetensors", "config.json"}) {
      disk.rename(workshop.path() / name, output / name);
    }
    disk.sync_folder(output);
  } else {
    disk.rename(workshop.path(), output);
    disk.sync_folder(output.parent_path());
  }
  return {.checkpoint = source.checkpoint,
          .step = reader.step(),
          .parameters = parameters,
          .model_type = model_type(config.settings),
          .notes = notes_on(config.settings),
          .passed_over = source.passed_over};
}

}  // namespace orthant
