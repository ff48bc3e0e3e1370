#include "tests/parity/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "core/modules/module.h"
#include "tests/support/paths.h"

namespace orthant::test {
namespace {

const std::string carved_axis = "expert";

// Whether the axis's plugin is built, and declares the keys of a variant.
bool is_built(const std::string& axis, const std::string& keys) {
  static std::map<std::string, std::vector<KeySpec>> declared;
  if (!declared.contains(axis)) {
    const std::string file = paths::plugin("liborthant_plugin_" + axis + ".so");
    declared[axis] = std::filesystem::exists(file) ? plugin_keys(axis, file) : std::vector<KeySpec>();
  }
  const std::vector<KeySpec>& specs = declared[axis];
  std::istringstream lines("size = 1\n" + keys);
  for (std::string key; lines >> key; std::getline(lines, key)) {
    if (std::none_of(specs.begin(), specs.end(), [&](const KeySpec& spec) { return spec.name == key; })) {
      return false;
    }
  }
  return true;
}

// The variants of every axis, without size. Stage 3 shards small groups too: these models have no others.
struct AxisChoices {
  const char* axis;
  std::vector<std::pair<const char*, const char*>> variants;  // label, keys
};
std::vector<AxisChoices> all_choices() {
  return {
      {"data",
       {{"zero0", "zero = 0\n"},
        {"zero1", "zero = 1\n"},
        {"zero2", "zero = 2\n"},
        {"zero3", "zero = 3\nwhole_below = 0\n"}}},
      {"tensor",
       {{"split", ""},
        {"sp_split", "sequence_parallel = true\n"},
        {"fold", "experts = \"fold\"\n"},
        {"sp_fold", "sequence_parallel = true\nexperts = \"fold\"\n"}}},
      {"pipeline",
       {{"gpipe", "schedule = \"gpipe\"\n"},
        {"1f1b", "schedule = \"1f1b\"\n"},
        {"interleaved", "schedule = \"interleaved\"\nchunks = 2\n"}}},
      {"sequence", {{"ulysses", "method = \"ulysses\"\n"}, {"ring", "method = \"ring\"\n"}}},
      {"expert",
       {{"a2a", "dispatch = \"all_to_all\"\n"},
        {"hier", "dispatch = \"hierarchical\"\nnode_ranks = 2\n"},
        {"chunks", "chunks = 2\n"}}},
  };
}

// Those whose axis is built.
const std::vector<AxisChoices>& choices() {
  static const std::vector<AxisChoices> built = [] {
    std::vector<AxisChoices> choices = all_choices();
    for (AxisChoices& axis : choices) {
      std::erase_if(axis.variants, [&](const auto& variant) { return !is_built(axis.axis, variant.second); });
    }
    return choices;
  }();
  return built;
}

// Of the quick table's candidates; every variant is in far more layouts than there are models.
constexpr std::size_t models_of_each = 5;

// A fixed shuffle.
std::uint64_t hash(const std::string& text) {
  std::uint64_t h = 14695981039346656037u;  // FNV-1a
  for (const char c : text) {
    h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return h ^ (h >> 29);
}

// Extends `layout` by the axes from `next` on, in every way, up to `most` ranks.
void extend(TableLayout layout, std::size_t next, int most, std::vector<TableLayout>& to) {
  if (next == choices().size()) {
    if (!layout.axes.empty()) {
      // Any order of tables is a layout; each takes another one.
      const std::size_t turn = hash(layout.name()) % layout.axes.size();
      std::rotate(layout.axes.begin(), layout.axes.begin() + static_cast<std::ptrdiff_t>(turn), layout.axes.end());
      to.push_back(std::move(layout));
    }
    return;
  }
  const AxisChoices& axis = choices()[next];
  extend(layout, next + 1, most, to);
  for (const int size : {2, 4}) {
    for (const auto& [label, keys] : axis.variants) {
      TableLayout more = layout;
      more.axes.push_back({axis.axis, label, size, keys});
      if (more.ranks() <= most) {
        extend(std::move(more), next + 1, most, to);
      }
    }
  }
}

std::string variant_name(const AxisVariant& axis) {
  return fmt::format("{}{}_{}", axis.axis, axis.size, axis.label);
}

// What a cell brings together, as numbers: pairs of variants, and each variant with the model.
std::vector<std::uint64_t> pairs_of(const std::vector<std::uint64_t>& variants, std::uint64_t model) {
  std::vector<std::uint64_t> pairs;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    pairs.push_back(variants[i] * 31 + model);
    for (std::size_t j = i + 1; j < variants.size(); ++j) {
      pairs.push_back(variants[i] + variants[j]);
    }
  }
  return pairs;
}

}  // namespace

std::string TableLayout::name() const {
  std::string name;
  for (const AxisVariant& axis : axes) {
    name += (name.empty() ? "" : "_") + variant_name(axis);
  }
  return name;
}

std::string TableLayout::plugins() const {
  std::string text;
  for (const AxisVariant& axis : axes) {
    text += fmt::format("[plugins.{}]\nsize = {}\n{}", axis.axis, axis.size, axis.keys);
  }
  return text;
}

int TableLayout::ranks() const {
  int ranks = 1;
  for (const AxisVariant& axis : axes) {
    ranks *= axis.axis == carved_axis ? 1 : axis.size;
  }
  return ranks;
}

const AxisVariant* TableLayout::find(const std::string& axis) const {
  const auto found = std::find_if(axes.begin(), axes.end(), [&](const AxisVariant& a) { return a.axis == axis; });
  return found == axes.end() ? nullptr : &*found;
}

Overrides table_base() {
  return {"model.layers=6",          "moe.every=2",        "moe.experts=8",
          "data.sequence_length=16", "batch.sequences=16", "batch.micro_batch=2"};
}

Overrides TableCell::overrides() const {
  return joined(table_base(), model.overrides);
}

Config TableCell::config(const Overrides& more) const {
  return experiment(joined(overrides(), more), layout.plugins());
}

const std::vector<Model>& table_models() {
  static const std::vector<Model> models = {
      {"topk", {}},
      {"topk_capacity", {"moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"}},
      {"switch", {R"(moe.router="switch")", "moe.top_k=1"}},
      {"switch_capacity", {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"}},
      {"gshard", {R"(moe.router="gshard")"}},
      {"gshard_capacity", {R"(moe.router="gshard")", "moe.capacity_factor=1.0"}},
      {"expert_choice", {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=2.0"}},
      {"sigmoid", {R"(moe.score="sigmoid")", "moe.top_k=3", "moe.capacity_factor=1.0"}},
      {"shared_experts_tied", {"moe.shared_experts=1", "model.tie_embeddings=true"}},
      {"gpt2", {R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")"}},
      {"noise", {"model.dropout=0.2", "moe.jitter=0.2", "moe.capacity_factor=1.0"}},
      {"micro_batches_of_one", {"batch.micro_batch=1", "moe.aux_loss=1"}},
      {"clipped_sgd", {R"(optimizer.name="sgd")", "optimizer.clip_grad_norm=0.05"}},
      {"few_tokens", {"data.sequence_length=8", "moe.experts=16", "moe.capacity_factor=1.0"}},  // experts without any
      {"few_kv_heads", {"model.kv_heads=2"}},
      {"normed_heads", {"model.qk_norm=true", "model.head_dim=6", "model.kv_heads=2", "model.rotary_channels=4"}},
      {"norm_over_heads", {"model.qk_norm=true", R"(model.qk_norm_over="all")", "model.output_bias=true"}},
      {"deepseek", {R"(model.attention="latent")", "model.q_lora_rank=6",
                    "model.kv_lora_rank=5",        "model.qk_nope_head_dim=4",
                    "model.qk_rope_head_dim=4",    "model.v_head_dim=3",
                    "model.rope_interleaved=true", R"(model.rope_scaling="yarn")",
                    "model.rope_factor=8",         "model.rope_original_positions=16",
                    "model.rope_beta_fast=2",      "model.rope_beta_slow=0.25",
                    "model.rope_mscale=0.7",       "model.rope_mscale_all_dim=1.3",
                    R"(moe.router="bias")",        R"(moe.score="sigmoid")",
                    "moe.expert_groups=4",         "moe.groups_per_token=2",
                    "moe.weight_scale=2.5",        "moe.first_dense=2",
                    "moe.shared_experts=1"}},
      {"qwen2",
       {"model.biases=true", R"(model.rope_scaling="llama3")", "model.rope_factor=8", "model.rope_original_positions=8",
        "moe.normalize_weights=false", "moe.shared_experts=1", "moe.d_shared=24", "moe.shared_gate=true"}},
      {"biases_window", {"model.biases=true", "model.sliding_window=5", "model.kv_heads=2"}},
      {"gpt_oss",
       {"model.attention_sinks=true", "model.biases=true", "model.output_bias=true", "model.sliding_window=5",
        "model.kv_heads=2", "model.full_attention_every=2", R"(model.activation="clamped_swiglu")",
        "moe.router_bias=true", "moe.expert_bias=true"}},
      {"gpt_oss_in_part",  // biases and sinks train, the experts' matrices do not
       {"model.attention_sinks=true", "model.biases=true", "model.output_bias=true", "model.sliding_window=5",
        "model.full_attention_every=2", R"(model.activation="clamped_swiglu")", "moe.router_bias=true",
        "moe.expert_bias=true", R"(memory.recompute="selective")", R"(train.freeze=["*.experts.*.weight"])"}},
      // Norms behind branches make gradients small: eps stays above their rounding.
      {"gemma",
       {"optimizer.eps=1e-4", "model.attention_softcap=0.8", "model.logit_softcap=1.5", "model.attention_scale=0.9",
        "model.embedding_scale=3", "model.norm_plus_one=true", R"(model.norm_place="both")",
        R"(model.activation="geglu")", "model.sliding_window=5", "model.full_attention_every=2",
        "model.rope_local_theta=100", "model.kv_heads=2"}},
      // Likewise, and what Adam makes of their rounding flips no seat but moves gradients by 2e-4.
      {"phi",
       {R"(optimizer.name="sgd")", R"(moe.router="sparsemixer")", "moe.normalize_weights=false",
        "moe.sparsemixer_width=0.4", "moe.top_k=2", "model.head_bias=true", R"(model.norm="layernorm")",
        R"(model.norm_place="after")", "model.residual_scale=0.5", "model.logit_divisor=0.5", "model.qk_norm=true",
        "model.qk_norm_rotated=true"}},
      {"recompute_selective", {R"(memory.recompute="selective")", "moe.capacity_factor=1.0"}},
      {"recompute_full", {R"(memory.recompute="full")", "model.dropout=0.2", "moe.jitter=0.2"}},
      // Gradients of A are as small as B is after its first steps: eps stays above their rounding.
      {"adapted",
       {"lora.rank=3", R"(lora.targets=["*"])", "model.kv_heads=2", "moe.shared_experts=1", "optimizer.eps=1e-4"}},
      {"partly_frozen",
       {R"(train.freeze=["model.embed_tokens.weight", "*_proj.weight", "*norm.weight", "*.experts.[0-5].*"])"}},
      // Routing by bf16 sums is not exact, and Adam turns the rounding of gradients near zero into steps of full size.
      {"dense_bf16", {"moe.experts=0", R"(run.dtype="bf16")", R"(optimizer.name="sgd")"}},
  };
  return models;
}

const std::vector<TableLayout>& all_layouts(int most) {
  static std::map<int, std::vector<TableLayout>> known;
  const auto [found, is_new] = known.try_emplace(most);
  if (is_new) {
    extend({}, 0, most, found->second);
  }
  return found->second;
}

std::optional<std::string> refusal_of(const TableCell& cell) {
  const TableLayout& layout = cell.layout;
  auto size = [&](const char* axis) { return layout.find(axis) == nullptr ? 1 : layout.find(axis)->size; };
  auto label = [&](const char* axis) { return layout.find(axis) == nullptr ? "" : layout.find(axis)->label; };
  auto has = [&](const char* override_) {
    return std::find(cell.model.overrides.begin(), cell.model.overrides.end(), override_) != cell.model.overrides.end();
  };
  const std::string tensor = label("tensor");
  const int micro_batch = has("batch.micro_batch=1") ? 1 : 2, micro_batches = 16 / size("data") / micro_batch;
  if (layout.find("expert") != nullptr) {
    const bool folded = tensor == "fold" || tensor == "sp_fold";
    const int from = size("data") * size("sequence") * (folded ? size("tensor") : 1);
    if (from % size("expert") != 0) {
      return "is carved from";  // fewer ranks split tokens than would share experts
    }
    if (has("moe.experts=0")) {
      return "the model has no experts";
    }
  }
  if (label("pipeline") == "interleaved" && micro_batches % size("pipeline") != 0) {
    return "works in rounds of one micro-batch a stage";
  }
  if (label("sequence") == "ulysses" && 4 % (size("tensor") * size("sequence")) != 0) {
    return "do not divide among the";  // four heads
  }
  if (has(R"(model.qk_norm_over="all")") && layout.find("tensor") != nullptr) {
    return "1 unit of dim 'head' in region 'attention'";  // a norm over all heads
  }
  return std::nullopt;
}

const std::vector<TableCell>& quick_cells() {
  static const std::vector<TableCell> cells = [] {
    // Every process of the tests makes this list: names become numbers once, and cells are made where they are needed.
    struct Candidate {
      std::size_t axes;
      std::uint64_t order;
      const TableLayout* layout;
      const std::vector<std::uint64_t>* variants;
      std::size_t model;
    };
    std::vector<Candidate> candidates;
    const std::vector<Model>& models = table_models();
    const std::vector<TableLayout>& layouts = all_layouts(8);
    std::vector<std::vector<std::uint64_t>> variants(layouts.size());
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      const TableLayout& layout = layouts[l];
      for (const AxisVariant& axis : layout.axes) {
        variants[l].push_back(hash(variant_name(axis)));
      }
      const std::uint64_t order = hash(layout.name());
      for (std::size_t i = 0; i < models_of_each; ++i) {
        const std::size_t model = (order + i) % models.size();
        candidates.push_back({layout.axes.size(), order * 31 + model, &layout, &variants[l], model});
      }
    }
    // The richest layouts first: each brings many pairs together, so that few are needed.
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.axes != b.axes ? a.axes > b.axes : a.order < b.order;
    });
    std::vector<TableCell> chosen;
    std::unordered_set<std::uint64_t> seen, alone;
    for (const Candidate& candidate : candidates) {
      const std::vector<std::uint64_t> pairs = pairs_of(*candidate.variants, candidate.model);
      // An axis alone, each once whatever is seen.
      const bool fresh =
          (candidate.axes == 1 && !alone.contains(candidate.variants->front())) ||
          std::any_of(pairs.begin(), pairs.end(), [&](std::uint64_t pair) { return !seen.contains(pair); });
      if (!fresh) {
        continue;
      }
      TableCell cell{*candidate.layout, models[candidate.model]};
      if (refusal_of(cell).has_value()) {
        continue;
      }
      seen.insert(pairs.begin(), pairs.end());
      if (candidate.axes == 1) {
        alone.insert(candidate.variants->front());
      }
      chosen.push_back(std::move(cell));
    }
    return chosen;
  }();
  return cells;
}

std::vector<TableCell> full_cells(int ranks, std::size_t models) {
  std::vector<TableCell> cells;
  std::size_t turn = 0;
  for (const TableLayout& layout : all_layouts()) {
    if (layout.ranks() != ranks) {
      continue;
    }
    for (std::size_t i = 0; i < models; ++i) {
      TableCell cell{layout, table_models()[turn++ % table_models().size()]};
      if (!refusal_of(cell).has_value()) {
        cells.push_back(std::move(cell));
      }
    }
  }
  return cells;
}

}  // namespace orthant::test
