#include "apps/pretrained/tensor_names.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/arch/decoder.h"
#include "core/arch/trained.h"

namespace orthant {
namespace {

constexpr const char* our_moe = ".block_sparse_moe";

void replace(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) {
    text.replace(at, from.size(), to);
  }
}

// Behind the name of a block: the experts of a layer in one tensor, gate above up, and down.
std::string packed_in(const Family& family) {
  return family.packed_in.empty() ? ".mlp.experts.gate_up_proj" : family.packed_in;
}
std::string packed_out(const Family& family) {
  return family.packed_out.empty() ? ".mlp.experts.down_proj" : family.packed_out;
}

std::vector<std::int64_t> sizes_of(const Shape& shape) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < shape.rank(); ++i) {
    sizes.push_back(shape[i]);
  }
  return sizes;
}

// Packed experts stand under mlp, whatever the family calls them otherwise.
std::string their_name(const Family& family, ExpertForm form, std::string name) {
  for (const auto& [ours, theirs] : family.renamed) {
    replace(name, ours, theirs);
  }
  if (family.names == MoeNames::gpt_oss) {
    replace(name, std::string(our_moe) + ".gate.", ".mlp.router.");
    return name;
  }
  if (family.names != MoeNames::mlp && (form != ExpertForm::packed || !family.packed_in.empty())) {
    return name;
  }
  if (name.find(std::string(our_moe) + ".experts.") != std::string::npos) {
    replace(name, ".w1.", ".gate_proj.");
    replace(name, ".w3.", ".up_proj.");
    replace(name, ".w2.", ".down_proj.");
  }
  replace(name, ".shared_experts.", "." + family.shared + ".");
  replace(name, our_moe, ".mlp");
  return name;
}

// "model.layers.3.block_sparse_moe.experts.5.w1.weight": the layer's stem, 5, "w1", "weight".
struct ExpertName {
  std::string stem, matrix, kind;
  std::int64_t expert = -1;
};
ExpertName expert_name(const std::string& name) {
  const std::string mark = std::string(our_moe) + ".experts.";
  const std::size_t at = name.find(mark);
  if (at == std::string::npos) {
    return {};
  }
  const std::size_t number = at + mark.size(), dot = name.find('.', number);
  const std::size_t end = name.find('.', dot + 1);
  return {name.substr(0, at), name.substr(dot + 1, end - dot - 1), name.substr(end + 1),
          std::stoll(name.substr(number, dot - number))};
}

// "mtp.0.block.self_attn.q_proj.weight" is "model.layers.61.self_attn.q_proj.weight" of a model of 61 layers.
std::string as_further_layer(const Family& family, const Settings& settings, const std::string& name) {
  if (family.mtp.empty() || !is_mtp(name)) {
    return name;
  }
  const std::size_t number = std::string("mtp.").size(), dot = name.find('.', number);
  const std::int64_t depth = std::stoll(name.substr(number, dot - number));
  std::string rest = name.substr(dot + 1);
  if (rest.starts_with("block.")) {
    rest = rest.substr(std::string("block.").size());
  } else if (rest.starts_with("norm.")) {
    rest = "shared_head." + rest;
  }
  return fmt::format("model.layers.{}.{}", settings.model.layers + depth, rest);
}

TensorPlace packed_place(const Family& family, const ParamSpec& spec, const ExpertName& name, std::int64_t experts) {
  const std::int64_t rows = spec.global[0], columns = spec.global[1];
  const bool down = name.matrix == "w2";
  const std::int64_t stacked = down ? rows : 2 * rows;
  const std::int64_t row = name.expert * stacked + (name.matrix == "w3" ? rows : 0);
  return {.ours = spec.name,
          .shape = sizes_of(spec.global),
          .theirs = name.stem + (down ? packed_out(family) : packed_in(family)),
          .sizes = {experts, stacked, columns},
          .begin = row * columns};
}

// A matrix that is one of several in a tensor of theirs becomes a part of that.
void join(const Family& family, const std::vector<ParamSpec>& params, TensorPlace& place) {
  for (const Family::Joined& joined : family.joined) {
    const auto part = std::find_if(joined.ours.begin(), joined.ours.end(),
                                   [&](const std::string& end) { return place.ours.ends_with(end); });
    if (part == joined.ours.end()) {
      continue;
    }
    const std::string stem = place.ours.substr(0, place.ours.size() - part->size());
    std::int64_t rows = 0;
    for (const std::string& end : joined.ours) {
      const auto of = std::find_if(params.begin(), params.end(),
                                   [&, name = stem + end](const ParamSpec& spec) { return spec.name == name; });
      const std::int64_t here = of == params.end() ? 0 : of->global[0];
      place.begin += &end < &*part ? here * (place.shape.size() > 1 ? place.shape[1] : 1) : 0;
      rows += here;
    }
    place.theirs.replace(place.theirs.size() - part->size(), part->size(), joined.theirs);
    place.sizes[0] = rows;
    return;
  }
}

// gpt-oss in blocks of 32: not turned, the rows of gate and up in turns.
TensorPlace blocks_place(const ParamSpec& spec, const ExpertName& name, std::int64_t experts) {
  const bool down = name.matrix == "w2";
  const std::int64_t rows = spec.global[0], columns = spec.global[1], halves = down ? 1 : 2;
  return {.ours = spec.name,
          .shape = sizes_of(spec.global),
          .theirs = name.stem + ".mlp.experts." + (down ? "down_proj_blocks" : "gate_up_proj_blocks"),
          .sizes = {experts, halves * rows, columns / 32, 16},
          .begin = name.expert * halves * rows * columns + (name.matrix == "w3" ? columns : 0),
          .row_step = halves * columns,
          .column_step = 1};
}

// gpt-oss: turned, gate and up in turns.
TensorPlace turned_place(const ParamSpec& spec, const ExpertName& name, std::int64_t experts) {
  const bool down = name.matrix == "w2", bias = name.kind == "bias";
  const std::int64_t rows = spec.global[0], columns = bias ? 1 : spec.global[1], halves = down ? 1 : 2;
  TensorPlace place{
      .ours = spec.name,
      .shape = sizes_of(spec.global),
      .theirs = fmt::format("{}.mlp.experts.{}{}", name.stem, down ? "down_proj" : "gate_up_proj", bias ? "_bias" : ""),
      .sizes = {experts, halves * rows},
      .begin = name.expert * halves * rows * columns + (name.matrix == "w3" ? 1 : 0),
      .row_step = halves,
      .column_step = halves * rows};
  if (!bias) {
    place.sizes.insert(place.sizes.begin() + 1, columns);
  }
  return place;
}

}  // namespace

std::int64_t TensorPlace::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t TensorPlace::at(std::int64_t i) const {
  const std::int64_t columns = shape.size() > 1 ? shape[1] : 1;
  return in_order() ? i : i / columns * row_step + i % columns * column_step;
}

Shape TensorPlace::our_shape() const {
  return shape.size() == 1 ? Shape{shape[0]} : Shape{shape.at(0), shape.at(1)};
}

std::vector<TensorPlace> tensor_places(const Family& family, const Settings& settings, ExpertForm form) {
  std::vector<TensorPlace> places;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      if (family.theirs) {
        places.push_back({.ours = spec.name,
                          .shape = sizes_of(spec.global),
                          .theirs = family.theirs(settings, spec.name),
                          .sizes = sizes_of(spec.global)});
        continue;
      }
      const std::string name = as_further_layer(family, settings, spec.name);
      const ExpertName expert = expert_name(name);
      if (family.names == MoeNames::gpt_oss && expert.expert >= 0) {
        const bool blocks = form == ExpertForm::mxfp4 && expert.kind == "weight";
        places.push_back((blocks ? blocks_place : turned_place)(spec, expert, settings.moe.experts));
        continue;
      }
      if (form == ExpertForm::packed && expert.expert >= 0) {
        places.push_back(packed_place(family, spec, expert, settings.moe.experts));
        continue;
      }
      places.push_back({.ours = spec.name,
                        .shape = sizes_of(spec.global),
                        .theirs = their_name(family, form, name),
                        .sizes = sizes_of(spec.global)});
      join(family, layer.params, places.back());
    }
  }
  for (const GateStateSpec& state : gate_state_table(settings)) {
    const std::string layer =
        as_further_layer(family, settings, state.name.substr(std::string(gate_state_prefix).size()));
    places.push_back({.ours = state.name,
                      .shape = {settings.moe.experts},
                      .theirs = their_name(family, form, layer) + family.gate_bias,
                      .sizes = family.gate_bias_is_row ? std::vector<std::int64_t>{1, settings.moe.experts}
                                                       : std::vector<std::int64_t>{settings.moe.experts}});
  }
  return places;
}

std::vector<std::pair<std::string, std::string>> mtp_copies(const Family& family, const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> copies;
  const std::string embedding = "model.embed_tokens.weight";
  for (std::int64_t k = 0; k < settings.model.mtp_depth && !family.mtp.empty(); ++k) {
    const std::string layer = fmt::format("model.layers.{}.", settings.model.layers + k);
    copies.emplace_back(embedding, layer + "embed_tokens.weight");
    copies.emplace_back(settings.model.tie_embeddings ? embedding : "lm_head.weight",
                        layer + "shared_head.head.weight");
  }
  return copies;
}

std::string packed_name(const Family& family, const Settings& settings) {
  if (family.names == MoeNames::none) {
    return "";
  }
  for (int block = 0; block < settings.model.layers; ++block) {
    if (block_has_experts(settings, block)) {
      return block_stem(block) + packed_in(family);
    }
  }
  return "";
}

}  // namespace orthant
