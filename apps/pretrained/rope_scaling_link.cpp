#include "apps/pretrained/rope_scaling_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "core/config/value_text.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;

// What is read of one object of rope_scaling.
class Scaling {
 public:
  Scaling(ConfigLink& link, const Theirs& object) : link_(link), object_(object) {}

  Theirs take(const char* key) {
    known_.insert(key);
    return object_.contains(key) ? Theirs(object_[key]) : Theirs();
  }
  // Nothing: it is not said, or was refused. needed: a type does not go without.
  std::optional<double> number(const char* key, bool needed = false) {
    const Theirs value = take(key);
    if (value.is_number() && std::isfinite(value.get<double>())) {
      return value.get<double>();
    }
    if (needed || !value.is_null()) {
      link_.refuse(fmt::format("rope_scaling.{} = {}: a number was expected", key, value.dump()));
    }
    return {};
  }
  // As the classes take it: 0 stands for what they have by themselves.
  std::optional<double> number_but_zero(const char* key) {
    const std::optional<double> found = number(key);
    return found.has_value() && *found != 0 ? found : std::nullopt;
  }
  // A number that is multiplied with: 0 would leave no position, and is no way to say nothing.
  std::optional<double> factor_above_zero(const char* key) {
    const std::optional<double> found = number(key);
    if (found.has_value() && !(*found > 0)) {
      link_.refuse(
          fmt::format("rope_scaling.{} = {}: a number above 0 was expected, or null for the one that follows "
                      "from the others",
                      key, take(key).dump()));
      return {};
    }
    return found;
  }
  void set(const char* ours, const std::optional<double>& value) {
    if (value.has_value()) {
      link_.set(ours, toml_text(Value(*value)));
    }
  }
  void refuse_others(const std::string& type) { refuse_other_rope_keys(link_, type, object_, known_); }

 private:
  ConfigLink& link_;
  const Theirs& object_;
  std::set<std::string> known_;
};

std::optional<std::int64_t> whole_above_zero(const Theirs& value) {
  return value.is_number_integer() && value > 0 && value <= INT32_MAX ? std::optional(value.get<std::int64_t>())
                                                                      : std::nullopt;
}

// The length of the first training's sequences: outside where the class looks there first, else inside, else that of
// the model.
std::optional<std::int64_t> original_positions(ConfigLink& link, Scaling& scaling) {
  constexpr const char* key = "original_max_position_embeddings";
  const Theirs inside = scaling.take(key), outside = link.take(key), all = link.take("max_position_embeddings");
  if (!inside.is_null() && !outside.is_null() && inside != outside) {
    link.refuse(fmt::format("{} = {}, but rope_scaling.{} = {}", key, outside.dump(), key, inside.dump()));
    return {};
  }
  const Theirs& said = !outside.is_null() ? outside : !inside.is_null() ? inside : all;
  const std::optional<std::int64_t> found = whole_above_zero(said);
  if (found.has_value()) {
    link.set("model.rope_original_positions", std::to_string(*found));
  } else {
    link.refuse(fmt::format("rope_scaling.{} = {}: a whole number was expected", key, said.dump()));
  }
  return found;
}

// Where it is not said: how many times as long as the original ones the model's sequences are.
std::optional<double> factor_by_length(ConfigLink& link, const std::optional<std::int64_t>& original) {
  const std::optional<std::int64_t> all = whole_above_zero(link.take("max_position_embeddings"));
  if (!all.has_value() || !original.has_value()) {
    link.refuse("rope_scaling.factor = null: a number was expected, or a whole max_position_embeddings");
    return {};
  }
  return static_cast<double>(*all) / static_cast<double>(*original);
}

void read_llama3(ConfigLink& link, Scaling& scaling) {
  scaling.set("model.rope_factor", scaling.number("factor", true));
  original_positions(link, scaling);
  scaling.set("model.rope_low_freq_factor", scaling.number("low_freq_factor", true));
  scaling.set("model.rope_high_freq_factor", scaling.number("high_freq_factor", true));
}

void read_yarn(ConfigLink& link, Scaling& scaling) {
  const std::optional<std::int64_t> original = original_positions(link, scaling);
  const std::optional<double> factor = scaling.number("factor");
  scaling.set("model.rope_factor",
              factor.has_value() || !scaling.take("factor").is_null() ? factor : factor_by_length(link, original));
  scaling.set("model.rope_beta_fast", scaling.number_but_zero("beta_fast"));
  scaling.set("model.rope_beta_slow", scaling.number_but_zero("beta_slow"));
  scaling.set("model.rope_attention_factor", scaling.factor_above_zero("attention_factor"));
  const std::optional<double> mscale = scaling.number_but_zero("mscale"),
                              all = scaling.number_but_zero("mscale_all_dim");
  scaling.set("model.rope_mscale_all_dim", all);
  if (all.has_value()) {  // without the one the classes take no notice of the other
    scaling.set("model.rope_mscale", mscale);
  }
  const Theirs truncate = scaling.take("truncate");
  if (truncate.is_boolean()) {
    link.set("model.rope_truncate", truncate.get<bool>() ? "true" : "false");
  } else if (!truncate.is_null()) {
    link.refuse(fmt::format("rope_scaling.truncate = {}: true or false was expected", truncate.dump()));
  }
}

std::string list_text(ConfigLink& link, const char* key, const Theirs& list) {
  std::vector<double> numbers;
  for (const Theirs& one : list.is_array() ? list : Theirs::array()) {
    if (one.is_number()) {
      numbers.push_back(one.get<double>());
    }
  }
  if (!list.is_array() || list.empty() || numbers.size() != list.size()) {
    link.refuse(fmt::format("rope_scaling.{}: a list of numbers was expected", key));
  }
  return toml_text(Value(numbers));
}

void read_longrope(ConfigLink& link, Scaling& scaling, const RopeKeys& keys) {
  const std::optional<std::int64_t> original = original_positions(link, scaling);
  link.set("model.rope_short_factors", list_text(link, "short_factor", scaling.take("short_factor")));
  link.set("model.rope_long_factors", list_text(link, "long_factor", scaling.take("long_factor")));
  const std::optional<double> factor = scaling.number("factor");
  const bool said = !scaling.take("factor").is_null();
  const std::optional<double> length = said ? factor : factor_by_length(link, original);
  scaling.set("model.rope_factor", length.has_value() ? std::optional(std::max(*length, 1.0)) : length);
  std::optional<double> magnitude = scaling.factor_above_zero("attention_factor");
  if (keys.mscales) {
    magnitude = scaling.factor_above_zero("short_mscale");
    const std::optional<double> of_long = scaling.factor_above_zero("long_mscale");
    if (!magnitude.has_value() || magnitude != of_long) {
      link.refuse(fmt::format("rope_scaling.short_mscale = {}, long_mscale = {}: one number for both was expected",
                              scaling.take("short_mscale").dump(), scaling.take("long_mscale").dump()));
    }
  }
  scaling.set("model.rope_attention_factor", magnitude);
}

void read_dynamic(ConfigLink& link, Scaling& scaling, const RopeKeys& keys) {
  const std::optional<double> alpha = keys.alpha ? scaling.number_but_zero("alpha") : std::nullopt;
  if (alpha.has_value()) {
    scaling.set("model.rope_alpha", scaling.factor_above_zero("alpha"));
    for (const char* unread : {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
      scaling.take(unread);
    }
    return;
  }
  scaling.set("model.rope_factor", scaling.number("factor", true));
  const std::optional<std::int64_t> length = whole_above_zero(link.take("max_position_embeddings"));
  if (length.has_value()) {
    link.set("model.rope_original_positions", std::to_string(*length));
  } else {
    link.refuse("max_position_embeddings: a whole number was expected, as the type \"dynamic\" counts from it");
  }
}

}  // namespace

void refuse_other_rope_keys(ConfigLink& link, const std::string& type, const Theirs& scaling,
                            std::set<std::string> known) {
  known.insert({"rope_type", "type", "rope_theta", "partial_rotary_factor"});
  for (const auto& [key, value] : scaling.items()) {
    if (!known.contains(key) && !value.is_null()) {
      link.refuse(
          fmt::format("rope_scaling.{} = {}: this key is not known for the type \"{}\"", key, value.dump(), type));
    }
  }
}

void read_rope_scaling(ConfigLink& link, const Theirs& object, const std::string& type, const RopeKeys& keys) {
  Scaling scaling(link, object);
  const bool phi3 = keys.phi3 && (type == "su" || type == "yarn");
  const std::string name = phi3 ? "longrope" : type;
  link.set("model.rope_scaling", fmt::format("\"{}\"", name));
  if (name == "linear") {
    scaling.set("model.rope_factor", scaling.number("factor", true));
  } else if (name == "llama3") {
    read_llama3(link, scaling);
  } else if (name == "yarn") {
    read_yarn(link, scaling);
  } else if (name == "longrope") {
    read_longrope(link, scaling, keys);
  } else if (name == "dynamic") {
    read_dynamic(link, scaling, keys);
  } else {
    link.refuse(fmt::format(
        "rope_scaling.rope_type = \"{}\": default, linear, llama3, yarn, longrope and dynamic are known", type));
    return;
  }
  scaling.refuse_others(type);
}

namespace {

void write_longrope(ConfigLink& link, Theirs& scaling, const RopeKeys& keys) {
  const std::int64_t original = link.our_integer("model.rope_original_positions");
  const double factor = link.our_number("model.rope_factor"), length = factor * static_cast<double>(original);
  scaling["short_factor"] = link.our_numbers("model.rope_short_factors");
  scaling["long_factor"] = link.our_numbers("model.rope_long_factors");
  if (length == std::round(length)) {  // how long sequences are says it
    link.put("max_position_embeddings", static_cast<std::int64_t>(length));
  } else {
    scaling["factor"] = factor;
  }
  link.put("original_max_position_embeddings", original);
  if (!keys.phi3) {
    scaling["original_max_position_embeddings"] = original;
  }
  const double stated = link.our_number("model.rope_attention_factor");
  const double own = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
  if (keys.mscales) {
    scaling["short_mscale"] = scaling["long_mscale"] = stated > 0 ? stated : own;
  } else if (stated > 0) {
    scaling["attention_factor"] = stated;
  }
}

void write_yarn(ConfigLink& link, Theirs& scaling) {
  scaling["factor"] = link.our_number("model.rope_factor");
  scaling["original_max_position_embeddings"] = link.our_integer("model.rope_original_positions");
  scaling["beta_fast"] = link.our_number("model.rope_beta_fast");
  scaling["beta_slow"] = link.our_number("model.rope_beta_slow");
  for (const auto& [theirs, ours] :
       {std::pair("attention_factor", "model.rope_attention_factor"), std::pair("mscale", "model.rope_mscale"),
        std::pair("mscale_all_dim", "model.rope_mscale_all_dim")}) {
    if (const double value = link.our_number(ours); value != 0) {
      scaling[theirs] = value;
    }
  }
  scaling["truncate"] = link.our_flag("model.rope_truncate");
}

}  // namespace

void write_rope_scaling(ConfigLink& link, const RopeKeys& keys) {
  const std::string type = link.our_text("model.rope_scaling");
  if (type == "none") {
    return;
  }
  Theirs scaling = {{"rope_type", type}};
  if (type == "yarn") {
    write_yarn(link, scaling);
  } else if (type == "longrope") {
    write_longrope(link, scaling, keys);
  } else {
    scaling["factor"] = link.our_number("model.rope_factor");
  }
  if (type == "llama3") {
    scaling["original_max_position_embeddings"] = link.our_integer("model.rope_original_positions");
    scaling["low_freq_factor"] = link.our_number("model.rope_low_freq_factor");
    scaling["high_freq_factor"] = link.our_number("model.rope_high_freq_factor");
  }
  const double alpha = type == "dynamic" ? link.our_number("model.rope_alpha") : 0;
  if (alpha > 0 && keys.alpha) {
    scaling["alpha"] = alpha;
  } else if (alpha > 0) {
    link.refuse(fmt::format("model.rope_alpha = {}", alpha));
  } else if (type == "dynamic") {
    link.put("max_position_embeddings", link.our_integer("model.rope_original_positions"));
  }
  // Of both forms a file may have one: phi3's class knows no type but this.
  if (keys.phi3 && type != "longrope") {
    link.refuse(fmt::format("model.rope_scaling = \"{}\"", type));
  }
  link.put("rope_scaling", scaling);
}

}  // namespace orthant
