#include "apps/report/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "apps/report/scale.h"

namespace orthant::report {
namespace {

// Lists are "[a, b]": their elements' file names.
std::string file_names(const std::string& list) {
  std::string inside = list.size() > 1 && list.front() == '[' ? list.substr(1, list.size() - 2) : list;
  std::vector<std::string> names;
  for (std::size_t at = 0; at < inside.size();) {
    const std::size_t end = std::min(inside.find(", ", at), inside.size());
    names.push_back(std::filesystem::path(inside.substr(at, end - at)).filename().string());
    at = end + 2;
  }
  constexpr std::size_t most = 4;
  if (names.size() > most) {
    return fmt::format("{} and {} more files", fmt::join(names.begin(), names.begin() + most, ", "),
                       names.size() - most);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Of a setting as it is written: what is no number is not one.
bool is_one(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  return std::from_chars(text.data(), end, value).ptr == end && value == 1;
}

class Sentences {
 public:
  explicit Sentences(const FlatSettings& settings) : settings_(settings) {}

  std::string get(const std::string& key) const {
    const std::string value = setting(settings_, key);
    return value.empty() ? "(unstated)" : value;
  }
  bool zero(const std::string& key) const {
    const std::string value = setting(settings_, key);
    return value.empty() || value.find_first_not_of("0.") == std::string::npos;
  }

  std::string model() const {
    std::string text = fmt::format(
        "The model is a decoder-only transformer of {} layers with width {}, {} attention heads{}, {} activations, {} "
        "and "
        "{} positions, over a vocabulary of {}.",
        get("model.layers"), get("model.d_model"), get("model.heads"),
        zero("model.kv_heads") ? "" : " (" + get("model.kv_heads") + " for keys and values)", get("model.activation"),
        get("model.norm"), get("model.positions"), get("model.vocab_size"));
    if (get("model.attention") == "latent") {
      text += " Attention is latent, with " + get("model.kv_lora_rank") + " channels for keys and values.";
    }
    if (!zero("model.sliding_window")) {
      const std::string every = zero("model.full_attention_every") ? "" : get("model.full_attention_every");
      text += fmt::format(" A token sees the {} before it{}.", get("model.sliding_window"),
                          every.empty() ? "" : "; all of them in every block whose number " + every + " divides");
    }
    if (get("model.attention_sinks") == "true") {
      text += " Each head has an attention sink.";
    }
    if (get("moe.expert_bias") == "true") {
      text += " Experts have biases.";
    }
    if (const std::string scaling = get("model.rope_scaling"); scaling != "none" && scaling != "(unstated)") {
      text += fmt::format(" Rotary positions are scaled by \"{}\" with factor {}.", scaling, get("model.rope_factor"));
    }
    if (const std::string objective = setting(settings_, "train.objective"); !objective.empty()) {
      text += fmt::format(" Its objective is \"{}\".", objective);
    }
    if (!zero("model.mtp_depth")) {
      text +=
          fmt::format(" It learns to predict {} further token(s) by multi-token prediction, whose loss has weight {}.",
                      get("model.mtp_depth"), get("train.mtp_weight"));
    }
    if (!zero("model.dropout")) {
      text += " Dropout is " + get("model.dropout") + ".";
    }
    return text;
  }

  std::string experts() const {
    if (zero("moe.experts")) {
      return zero("model.d_ff") ? "It is dense." : "It is dense, with an FFN of width " + get("model.d_ff") + ".";
    }
    const std::string every = get("moe.every");
    const bool all = every == "1" || zero("moe.every");
    const std::string dense = zero("moe.first_dense") ? "" : " the first " + get("moe.first_dense");
    std::string text = fmt::format("{}{} has {} experts{}; the gate \"{}\" takes {} of them for each token",
                                   all ? "Every layer" : "One layer in " + every,
                                   dense.empty() ? "" : (all ? " but" : " after") + dense, get("moe.experts"),
                                   zero("moe.d_expert") ? "" : " of width " + get("moe.d_expert"), get("moe.router"),
                                   get("moe.top_k"));
    text += zero("moe.capacity_factor")
                ? ", and none is dropped."
                : fmt::format(", with capacity factor {} (beyond it choices are dropped by {}).",
                              get("moe.capacity_factor"), get("moe.drop_policy"));
    if (!zero("moe.shared_experts")) {
      text += fmt::format(" {} experts{} are shared by all tokens{}.", get("moe.shared_experts"),
                          zero("moe.d_shared") ? "" : ", together of width " + get("moe.d_shared") + ",",
                          get("moe.shared_gate") == "true" ? ", each token with a weight of its own" : "");
    }
    if (const std::string scale = get("moe.weight_scale"); scale != "(unstated)" && !is_one(scale)) {
      text += " The weights of a token's experts are multiplied by " + scale + ".";
    }
    text += fmt::format(" The balance loss has coefficient {}, the router's z loss {}.", get("moe.aux_loss"),
                        get("moe.z_loss"));
    return text;
  }

  std::string growth() const {
    const std::string to = setting(settings_, "batch.grow_to"), after = setting(settings_, "batch.grow_after");
    return to.size() <= std::string("[]").size() ? "" : fmt::format(" at first, {} after {} steps", to, after);
  }

  std::string data() const {
    std::string text = "It is trained on ";
    text += get("data.source") == "synthetic"
                ? "synthetic tokens"
                : fmt::format("{} ({})", get("data.source"), file_names(get("data.path")));
    text += fmt::format(" in sequences of {} tokens, {} sequences a step{}, for {} steps.", get("data.sequence_length"),
                        get("batch.sequences"), growth(), get("run.steps"));
    const std::string sets = setting(settings_, "data.validation_path");
    const bool by_name = sets.size() > std::string("[]").size();
    const bool held_out = !by_name || !zero("data.validation_fraction");
    const std::string count = get("data.validation_sequences");
    return text + fmt::format(" Validation is on {}{}{}.", held_out ? count + " sequences held out" : "",
                              held_out && by_name ? ", and on " : "",
                              by_name ? fmt::format("up to {} sequences of each of {}", count, file_names(sets)) : "");
  }

  std::string preferences() const {
    if (get("data.source") != "pairs") {
      return "";
    }
    const std::string reference = setting(settings_, "preference.reference");
    return fmt::format(
        " Of each pair of answers it learns to prefer the chosen one: loss \"{}\", beta {}, compared with {}.",
        get("preference.loss"), get("preference.beta"), reference.empty() ? get("train.from") : reference);
  }

  std::string optimizer() const {
    std::string text = fmt::format(
        "The optimizer is {} with learning rate {} ({} schedule, {} warm-up steps, down to {})", get("optimizer.name"),
        get("optimizer.lr"), get("optimizer.schedule"), get("optimizer.warmup_steps"), get("optimizer.min_lr"));
    text += fmt::format(", betas {}, weight decay {}", get("optimizer.betas"), get("optimizer.weight_decay"));
    if (const std::string of = get("optimizer.lr_of"); of != "(unstated)" && of != "[]") {
      text += fmt::format(", learning rates of {} times {}", of, get("optimizer.lr_scales"));
    }
    if (const std::string none = get("optimizer.no_decay"); none != "(unstated)" && none != "[]") {
      text += ", no decay of " + none;
    }
    if (!zero("optimizer.ema_decay")) {
      text += ", averages of the weights with decay " + get("optimizer.ema_decay");
    }
    text += zero("optimizer.clip_grad_norm")
                ? "; gradients are not clipped."
                : "; the gradient's norm is clipped at " + get("optimizer.clip_grad_norm") + ".";
    return text;
  }

  std::string run() const {
    std::string axes;
    for (const auto& [key, value] : settings_) {
      const std::size_t end =
          key.size() > 5 && key.ends_with(".size") && key.starts_with("plugins.") ? key.size() - 5 : 0;
      if (end > 0) {
        axes += (axes.empty() ? "" : ", ") + key.substr(8, end - 8) + " " + value;
      }
    }
    return fmt::format("Numbers are {} on device \"{}\" with {} thread(s) a rank, seed {}; {}.", get("run.dtype"),
                       get("run.device"), get("run.threads"), get("run.seed"),
                       axes.empty() ? "one rank" : "axes of parallelism: " + axes);
  }

 private:
  const FlatSettings& settings_;
};

}  // namespace

std::string methods_of(const FlatSettings& settings, std::optional<double> parameters,
                       std::optional<double> active_parameters, std::optional<double> flops_per_token) {
  if (settings.empty()) {
    return "";
  }
  const Sentences s(settings);
  std::string text = s.model() + " " + s.experts();
  if (parameters) {
    text += fmt::format(" It has {} parameters", number_text(*parameters));
    text += active_parameters && *active_parameters != *parameters
                ? fmt::format(", of which {} work on a token", number_text(*active_parameters))
                : "";
    text += flops_per_token
                ? fmt::format(", and takes {} FLOPs a token forward and backward.", number_text(*flops_per_token))
                : ".";
  }
  return text + " " + s.data() + s.preferences() + " " + s.optimizer() + " " + s.run();
}

Grid differences(const std::vector<RunData>& runs) {
  Grid grid{{"setting"}, {}};
  std::vector<std::string> keys;  // in the order of the files
  std::set<std::string> known = {"run.name", "run.directory"};
  for (const RunData& run : runs) {
    grid.head.push_back(run.name);
    for (const auto& [key, value] : run.settings) {
      if (known.insert(key).second) {
        keys.push_back(key);
      }
    }
  }
  for (const std::string& key : keys) {
    std::vector<std::string> row = {key};
    for (const RunData& run : runs) {
      row.push_back(setting(run.settings, key));
    }
    if (std::adjacent_find(row.begin() + 1, row.end(), std::not_equal_to<>()) != row.end()) {
      grid.rows.push_back(row);
    }
  }
  return grid;
}

}  // namespace orthant::report
