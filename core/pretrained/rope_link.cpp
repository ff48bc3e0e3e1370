#include "core/pretrained/rope_link.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <set>

#include "core/config/value_text.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;

// A number of rope_scaling, and which of ours it is. needed: a type does not go without.
struct ScalingKey {
  const char* theirs;
  const char* ours;
  bool needed = false;
  bool whole = false;
};

struct ScalingType {
  const char* name;
  std::vector<ScalingKey> keys;
};

const std::vector<ScalingType>& scaling_types() {
  static const ScalingKey factor{"factor", "model.rope_factor", true};
  static const ScalingKey original{"original_max_position_embeddings", "model.rope_original_positions", true, true};
  static const std::vector<ScalingType> all = {
      {"linear", {factor}},
      {"llama3",
       {factor,
        original,
        {"low_freq_factor", "model.rope_low_freq_factor", true},
        {"high_freq_factor", "model.rope_high_freq_factor", true}}},
      {"yarn",
       {factor,
        original,
        {"beta_fast", "model.rope_beta_fast"},
        {"beta_slow", "model.rope_beta_slow"},
        {"attention_factor", "model.rope_attention_factor"},
        {"mscale", "model.rope_mscale"},
        {"mscale_all_dim", "model.rope_mscale_all_dim"}}},
  };
  return all;
}

// truncate is the only key that is no number.
void read_truncate(ConfigLink& link, const Theirs& scaling) {
  const auto found = scaling.find("truncate");
  if (found != scaling.end() && found->is_boolean()) {
    link.set("model.rope_truncate", found->get<bool>() ? "true" : "false");
  } else if (found != scaling.end()) {
    link.refuse(fmt::format("rope_scaling.truncate = {}: true or false was expected", found->dump()));
  }
}

// What stands in any of them besides the keys of its type.
const std::set<std::string> common_keys = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};

void refuse_others(ConfigLink& link, const std::string& type, const Theirs& scaling, std::set<std::string> known) {
  known.insert(common_keys.begin(), common_keys.end());
  for (const auto& [key, value] : scaling.items()) {
    if (!known.contains(key) && !value.is_null()) {
      link.refuse(
          fmt::format("rope_scaling.{} = {}: this key is not known for the type \"{}\"", key, value.dump(), type));
    }
  }
}

void read_scaling(ConfigLink& link, const ScalingType& type, const Theirs& scaling) {
  link.set("model.rope_scaling", fmt::format("\"{}\"", type.name));
  std::set<std::string> known;
  for (const ScalingKey& key : type.keys) {
    known.insert(key.theirs);
    const Theirs value = scaling.contains(key.theirs) ? scaling[key.theirs] : Theirs();
    if (key.whole ? value.is_number_integer() : value.is_number()) {
      link.set(key.ours, key.whole ? value.dump() : toml_text(Value(value.get<double>())));
    } else if (key.needed || !value.is_null()) {
      link.refuse(fmt::format("rope_scaling.{} = {}: a {}number was expected", key.theirs, value.dump(),
                              key.whole ? "whole " : ""));
    }
  }
  if (std::string(type.name) == "yarn") {
    known.insert("truncate");
    read_truncate(link, scaling);
  }
  refuse_others(link, type.name, scaling, known);
}

// The object of both versions; empty where neither is there. Nothing where it was refused.
std::optional<Theirs> scaling_object(ConfigLink& link) {
  const Theirs parameters = link.take("rope_parameters"), old = link.take("rope_scaling");
  for (const Theirs* value : {&parameters, &old}) {
    if (!value->is_null() && !value->is_object()) {
      link.refuse(fmt::format("{} = {}: an object was expected",
                              value == &parameters ? "rope_parameters" : "rope_scaling", value->dump()));
      return {};
    }
  }
  if (parameters.is_object() && old.is_object() && parameters != old) {
    link.refuse("rope_scaling says something else than rope_parameters");
    return {};
  }
  return parameters.is_object() ? parameters : old.is_object() ? old : Theirs::object();
}

// How many channels of a head are rotated. inner: rope_parameters.partial_rotary_factor.
void read_part(ConfigLink& link, const Theirs& inner, const PartialRotary* part) {
  if (part == nullptr) {
    if (!inner.is_null() && inner != 1.0) {
      link.refuse(
          fmt::format("rope_scaling.partial_rotary_factor = {}: this family rotates whole heads", inner.dump()));
    }
    return;
  }
  const Theirs outer = link.take("partial_rotary_factor");
  const Theirs channels = part->channels_key == nullptr ? Theirs() : link.take(part->channels_key);
  if (!inner.is_null() && !outer.is_null() && inner != outer) {
    link.refuse("partial_rotary_factor says something else than rope_parameters.partial_rotary_factor");
    return;
  }
  const Theirs head = link.take("head_dim"), width = link.take("hidden_size"), heads = link.take("num_attention_heads");
  const auto whole = [](const Theirs& value) { return value.is_number_integer() && value.get<std::int64_t>() > 0; };
  const std::int64_t head_dim = whole(head)                            ? head.get<std::int64_t>()
                                : head.is_null() && part->head_dim > 0 ? part->head_dim
                                : whole(width) && whole(heads) ? width.get<std::int64_t>() / heads.get<std::int64_t>()
                                                               : 0;  // refused by its own key
  const Theirs share = inner.is_null() ? outer : inner;
  if (share.is_null() && whole(channels)) {
    link.set("model.rotary_channels", channels == head_dim ? "0" : channels.dump());
  } else if (share.is_null() || share.is_number()) {
    // A null is no missing key: the class takes it for whole heads.
    const double missing = link.says("partial_rotary_factor") ? 1 : part->missing;
    const double of = share.is_null() ? missing : share.get<double>();
    const auto turned = static_cast<std::int64_t>(static_cast<double>(head_dim) * of);  // cut off, as the class does
    if (!(of > 0 && of <= 1) || turned < 1) {
      link.refuse(
          fmt::format("partial_rotary_factor = {}: a part of {} channels was expected", share.dump(), head_dim));
      return;
    }
    if (whole(channels) && channels != turned) {
      link.refuse(fmt::format("{} = {}, but partial_rotary_factor = {} of {} channels", part->channels_key,
                              channels.dump(), share.dump(), head_dim));
      return;
    }
    link.set("model.rotary_channels", std::to_string(turned == head_dim ? 0 : turned));
  } else {
    link.refuse(fmt::format("partial_rotary_factor = {}: a number was expected", share.dump()));
  }
}

void read_rope(ConfigLink& link, double default_theta, const PartialRotary* part) {
  Theirs theta = link.take("rope_theta");
  const std::optional<Theirs> found = scaling_object(link);
  if (!found.has_value()) {
    return;
  }
  const Theirs& scaling = *found;
  const auto member = [&](const char* key) { return scaling.contains(key) ? scaling[key] : Theirs(); };
  if (!member("rope_theta").is_null()) {
    if (!theta.is_null() && theta != member("rope_theta")) {
      link.refuse("rope_theta says something else than rope_parameters.rope_theta");
      return;
    }
    theta = member("rope_theta");
  }
  if (!theta.is_null() && !theta.is_number()) {
    link.refuse(fmt::format("rope_theta = {}: a number was expected", theta.dump()));
    return;
  }
  link.set("model.rope_theta", toml_text(Value(theta.is_null() ? default_theta : theta.get<double>())));
  read_part(link, member("partial_rotary_factor"), part);
  const Theirs said = !member("rope_type").is_null() ? member("rope_type") : member("type");
  const std::string type = said.is_null() ? "default" : said.is_string() ? said.get<std::string>() : said.dump();
  if (type == "default") {
    refuse_others(link, type, scaling, {});
    return;
  }
  for (const ScalingType& known : scaling_types()) {
    if (type == known.name) {
      read_scaling(link, known, scaling);
      return;
    }
  }
  link.refuse(fmt::format("rope_scaling.rope_type = \"{}\": default, linear, llama3 and yarn are known", type));
}

// The share of a head's channels, such that share * all, cut off to a whole number as the classes do it, is `turned`:
// 44 * (30.0 / 44) is a little less than 30.
double share_of(std::int64_t turned, std::int64_t all) {
  const double share = static_cast<double>(turned) / static_cast<double>(all);
  const bool short_of_it = share * static_cast<double>(all) < static_cast<double>(turned);
  return short_of_it ? std::nextafter(share, 1.0) : share;
}

void write_part(ConfigLink& link, const PartialRotary* part) {
  const std::int64_t turned = link.our_integer("model.rotary_channels"), all = link.our_integer("model.head_dim");
  if (part == nullptr) {
    if (turned != all) {
      link.refuse(fmt::format("model.rotary_channels = {}", turned));
    }
    return;
  }
  link.put("partial_rotary_factor", share_of(turned, all));
  if (part->channels_key != nullptr) {
    link.put(part->channels_key, turned);
  }
}

void write_rope(ConfigLink& link, const PartialRotary* part) {
  link.put("rope_theta", link.our_number("model.rope_theta"));
  write_part(link, part);
  const std::string type = link.our_text("model.rope_scaling");
  if (type == "none") {
    return;
  }
  Theirs scaling = {{"rope_type", type}};
  for (const ScalingType& known : scaling_types()) {
    if (type != known.name) {
      continue;
    }
    for (const ScalingKey& key : known.keys) {
      if (key.whole) {
        scaling[key.theirs] = link.our_integer(key.ours);
      } else if (const double value = link.our_number(key.ours); key.needed || value != 0) {
        scaling[key.theirs] = value;  // 0 of the others: not said
      }
    }
  }
  if (type == "yarn") {
    scaling["truncate"] = link.our_flag("model.rope_truncate");
  }
  link.put("rope_scaling", scaling);
}

}  // namespace

void link_rope(ConfigLink& link, double theta, const PartialRotary* part) {
  link.reading() ? read_rope(link, theta, part) : write_rope(link, part);
}

}  // namespace orthant
