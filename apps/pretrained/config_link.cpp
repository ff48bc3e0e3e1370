#include "apps/pretrained/config_link.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "core/arch/links.h"
#include "core/config/registry.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;

// Keys of ours that say nothing about a model's forward pass.
const std::set<std::string> of_training = {
    "model.dropout", "model.init_std",      "model.mtp_depth",  "moe.aux_loss",    "moe.balance_over",    "moe.z_loss",
    "moe.jitter",    "moe.capacity_factor", "moe.group_tokens", "moe.drop_policy", "moe.bias_update_rate"};

std::string shown(const Theirs& value) {
  const std::string text = value.dump();
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

bool same(const Theirs& a, const Theirs& b) {
  return a.is_number() && b.is_number() ? a.get<double>() == b.get<double>() : a == b;
}

bool is_integer(const Theirs& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
}

std::pair<std::string, std::string> split_key(const std::string& key) {
  const std::size_t dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

bool only_trains(const std::string& key) {
  return of_training.contains(key);
}

bool of_forward_pass(const CoreKey& key, const Settings& settings) {
  const std::string name = key.table + "." + key.spec.name;
  const bool of_model = key.table == "model" || (key.table == "moe" && settings.moe.experts > 0);
  const bool d_ff = name == "model.d_ff";
  const std::vector<Link> links = d_ff ? links_of(settings) : std::vector<Link>();
  const bool idle = d_ff && routed_in(links) == blocks_in(links);
  return of_model && !idle && !only_trains(name);
}

template <class T, class Fits>
void ConfigLink::take_value(const char* theirs, const char* ours, const char* kind, const std::optional<T>& absent,
                            Fits fits) {
  const Theirs found = take(theirs);
  if (!found.is_null() && fits(found)) {
    set(ours, toml_text(Value(found.get<T>())));
  } else if (!found.is_null()) {
    refuse(fmt::format("{} = {}: {} was expected", theirs, shown(found), kind));
  } else if (absent.has_value()) {
    set(ours, toml_text(Value(*absent)));
  } else {
    refuse(fmt::format("{} is missing: {} was expected", theirs, kind));
  }
}

void ConfigLink::integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent) {
  if (reading()) {
    take_value(theirs, ours, "a whole number", absent, is_integer);
  } else {
    put(theirs, our_integer(ours));
  }
}

void ConfigLink::number(const char* theirs, const char* ours, std::optional<double> absent) {
  if (reading()) {
    take_value(theirs, ours, "a number", absent,
               [](const Theirs& value) { return value.is_number() && std::isfinite(value.get<double>()); });
  } else {
    put(theirs, our_number(ours));
  }
}

void ConfigLink::flag(const char* theirs, const char* ours, std::optional<bool> absent) {
  if (reading()) {
    take_value(theirs, ours, "true or false", absent, [](const Theirs& value) { return value.is_boolean(); });
  } else {
    put(theirs, our_flag(ours));
  }
}

void ConfigLink::theirs(const char* key, const Theirs& value) {
  if (!reading()) {
    put(key, value);
  } else if (const Theirs found = take(key); !found.is_null() && !same(found, value)) {
    refuse(fmt::format("{} = {}: only {} can be computed here", key, shown(found), shown(value)));
  }
}

void ConfigLink::ours(const char* key, const std::string& value) {
  if (reading()) {
    set(key, value);
  } else if (const std::string is = toml_text(our(key)); is != value) {
    refuse(fmt::format("{} = {}", key, is));
  }
}

Theirs ConfigLink::take(const char* key) {
  named_.insert(key);
  const auto found = theirs_.find(key);
  return found == theirs_.end() ? Theirs() : *found;
}

std::int64_t ConfigLink::stated(const std::string& key, std::int64_t otherwise) const {
  const auto found = std::find_if(keys_.rbegin(), keys_.rend(), [&](const auto& one) { return one.first == key; });
  std::int64_t value = otherwise;
  if (found != keys_.rend()) {
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  }
  return value;
}

namespace {

// Of a key that no family names: whether nothing computes by it. Those of PretrainedConfig are written into every
// config.json by older versions of transformers, and tools leave marks of their own.
bool is_harmless(const std::string& key, const Theirs& value) {
  static const std::set<std::string> whatever = {"_attn_implementation",
                                                 "_attn_implementation_autoset",
                                                 "_attn_implementation_internal",
                                                 "_commit_hash",
                                                 "_flash_attn_2_enabled",
                                                 "attn_implementation",
                                                 "bad_words_ids",
                                                 "begin_suppress_tokens",
                                                 "cache_implementation",
                                                 "decoder_start_token_id",
                                                 "diversity_penalty",
                                                 "do_sample",
                                                 "early_stopping",
                                                 "encoder_no_repeat_ngram_size",
                                                 "exponential_decay_length_penalty",
                                                 "finetuning_task",
                                                 "forced_bos_token_id",
                                                 "forced_eos_token_id",
                                                 "id2label",
                                                 "is_llama_config",
                                                 "label2id",
                                                 "length_penalty",
                                                 "max_length",
                                                 "min_length",
                                                 "model_name",
                                                 "name_or_path",
                                                 "no_repeat_ngram_size",
                                                 "num_beam_groups",
                                                 "num_beams",
                                                 "num_return_sequences",
                                                 "output_router_logits",
                                                 "output_scores",
                                                 "prefix",
                                                 "problem_type",
                                                 "remove_invalid_values",
                                                 "repetition_penalty",
                                                 "return_dict_in_generate",
                                                 "sep_token_id",
                                                 "suppress_tokens",
                                                 "task_specific_params",
                                                 "tf_legacy_loss",
                                                 "tokenizer_class",
                                                 "torchscript",
                                                 "typical_p"};
  // Words that may mean something else elsewhere, and switches of what no class here computes.
  static const std::map<std::string, Theirs> at_their_defaults = {{"add_cross_attention", false},
                                                                  {"chunk_size_feed_forward", 0},
                                                                  {"cross_attention_hidden_size", nullptr},
                                                                  {"is_decoder", false},
                                                                  {"is_encoder_decoder", false},
                                                                  {"mlp_bias", false},
                                                                  {"mrope_section", nullptr},
                                                                  {"pruned_heads", Theirs::object()},
                                                                  {"quantization_config", nullptr},
                                                                  {"rope_interleaved", false},
                                                                  {"rope_scaling", nullptr},
                                                                  {"sliding_window", nullptr},
                                                                  {"temperature", 1.0},
                                                                  {"tie_encoder_decoder", false},
                                                                  {"top_k", 50},
                                                                  {"top_p", 1.0},
                                                                  {"use_bfloat16", false},
                                                                  {"use_mrope", false},
                                                                  {"use_sliding_window", false}};
  const auto found = at_their_defaults.find(key);
  return key.starts_with("unsloth_") || whatever.contains(key) ||
         (found != at_their_defaults.end() && (value.is_null() || same(value, found->second)));
}

}  // namespace

OurKeys ConfigLink::read(const std::string& where, const std::vector<std::string>& passed_over) {
  for (const std::string& key : passed_over) {
    if (!theirs_.contains(key) || named_.contains(key)) {
      refuse(fmt::format("{}: passed over, but it {}", key,
                         theirs_.contains(key) ? "is understood: leave --pass-over out, or change the file"
                                               : "is not there: leave --pass-over out"));
    }
  }
  const auto passed = [&](const std::string& key) {
    return std::find(passed_over.begin(), passed_over.end(), key) != passed_over.end();
  };
  for (const auto& [key, value] : theirs_.items()) {
    if (!named_.contains(key) && !passed(key) && !is_harmless(key, value)) {
      refuse(fmt::format(
          "{} = {}: this key is not known for such a model, so that it might change what it computes (--pass-over "
          "{}, where it does not)",
          key, shown(value), key));
    }
  }
  if (!refused_.empty()) {
    throw ConfigError(fmt::format("{} cannot be read as a model of ours:\n  {}", where, fmt::join(refused_, "\n  ")));
  }
  return keys_;
}

const Value& ConfigLink::our(const std::string& key) {
  named_.insert(key);
  const auto [table, name] = split_key(key);
  const auto& entries = config_->table(table).entries();
  const auto found = entries.find(name);
  require(found != entries.end(), "there is no key {}", key);
  return found->second.value;
}

std::int64_t ConfigLink::our_integer(const char* key) {
  const Settings& s = config_->settings;
  const std::int64_t stated = std::get<std::int64_t>(our(key));
  const std::string name = key;
  return name == "model.kv_heads"          ? kv_heads_of(s)
         : name == "model.head_dim"        ? head_dim_of(s)
         : name == "model.rotary_channels" ? rotary_channels_of(s)
         : name == "model.d_ff"            ? d_ff_of(s)
         : name == "moe.d_expert"          ? d_expert_of(s)
         : name == "moe.d_shared"          ? d_shared_of(s)
                                           : stated;
}

std::vector<std::string> ConfigLink::unsaid() {
  std::vector<std::string> all = refused_;
  for (const CoreKey& key : declared_keys(*config_->settings.catalogue)) {
    const std::string name = key.table + "." + key.spec.name;
    if (named_.contains(name) || !of_forward_pass(key, config_->settings)) {
      continue;
    }
    const Value& is = config_->table(key.table).entries().at(key.spec.name).value;
    if (is != key.spec.default_value) {
      all.push_back(fmt::format("{} = {}", name, toml_text(is)));
    }
  }
  return all;
}

}  // namespace orthant
