#include "apps/pretrained/rope_link.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "apps/pretrained/rope_scaling_link.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;

constexpr const char* full_layers = "full_attention";
constexpr const char* window_layers = "sliding_attention";

// The object of both versions; empty where neither is there. Nothing where it was refused.
std::optional<Theirs> scaling_object(ConfigLink& link, const RopeKeys& keys) {
  Theirs parameters = link.take("rope_parameters");
  const Theirs old = link.take("rope_scaling");
  if (keys.layers && parameters.is_object() && parameters.contains(full_layers)) {
    const Theirs inner = parameters[full_layers];
    parameters = inner;
  } else if (keys.layers && parameters.is_object() && parameters.contains(window_layers)) {
    parameters = Theirs();
  }
  for (const auto& [name, value] : {std::pair("rope_parameters", parameters), std::pair("rope_scaling", old)}) {
    if (!value.is_null() && !value.is_object()) {
      link.refuse(fmt::format("{} = {}: an object was expected", name, value.dump()));
      return {};
    }
  }
  if (parameters.is_object() && old.is_object() && !old.empty() && parameters != old) {
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

void read_rope(ConfigLink& link, double default_theta, const RopeKeys& keys) {
  Theirs theta = link.take("rope_theta");
  const std::optional<Theirs> found = scaling_object(link, keys);
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
  read_part(link, member("partial_rotary_factor"), keys.part);
  const Theirs said = !member("rope_type").is_null() ? member("rope_type") : member("type");
  const std::string type = said.is_null() ? "default" : said.is_string() ? said.get<std::string>() : said.dump();
  if (type == "default") {
    refuse_other_rope_keys(link, type, scaling, {});
    link.besides({"original_max_position_embeddings"});
    return;
  }
  read_rope_scaling(link, scaling, type, keys);
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

void write_rope(ConfigLink& link, const RopeKeys& keys) {
  link.put("rope_theta", link.our_number("model.rope_theta"));
  write_part(link, keys.part);
  write_rope_scaling(link, keys);
}

}  // namespace

void link_rope(ConfigLink& link, double theta, const RopeKeys& keys) {
  link.reading() ? read_rope(link, theta, keys) : write_rope(link, keys);
}

void link_local_rope(ConfigLink& link, bool slides, double theta) {
  constexpr const char* key = "rope_local_base_freq";
  if (!link.reading()) {
    const double local = link.our_number("model.rope_local_theta");
    link.put(key, local > 0 ? local : slides ? link.our_number("model.rope_theta") : theta);
    if (slides && local == 0 && link.our_text("model.rope_scaling") != "none") {
      link.refuse("model.rope_local_theta = 0.0");  // it stands for the scaled angles of the other blocks
    }
    return;
  }
  const Theirs parameters = link.take("rope_parameters"), old = link.take(key);
  const bool named = parameters.is_object() && parameters.contains(window_layers);
  const Theirs own = named && parameters[window_layers].is_object() ? parameters[window_layers] : Theirs::object();
  for (const auto& [name, value] : own.items()) {
    const bool known = name == "rope_theta" || (name == "rope_type" && value == "default");
    if (!known && !value.is_null()) {
      link.refuse(fmt::format("rope_parameters.{}.{} = {}: these layers have plain angles here", window_layers, name,
                              value.dump()));
    }
  }
  const Theirs inner = own.contains("rope_theta") ? Theirs(own["rope_theta"]) : Theirs();
  if (!inner.is_null() && !old.is_null() && inner != old) {
    link.refuse(
        fmt::format("{} = {}, but rope_parameters.{}.rope_theta = {}", key, old.dump(), window_layers, inner.dump()));
  }
  const Theirs said = inner.is_null() ? old : inner;
  if (!said.is_null() && !said.is_number()) {
    link.refuse(fmt::format("{} = {}: a number was expected", key, said.dump()));
  } else if (slides) {
    link.set("model.rope_local_theta", toml_text(Value(said.is_null() ? theta : said.get<double>())));
  }
}

}  // namespace orthant
