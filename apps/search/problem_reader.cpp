#include "apps/search/problem_reader.h"

#include <fmt/format.h>
#include <orthant/settings.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "apps/cost/machine_file.h"
#include "apps/search/axis_names.h"
#include "apps/search/executor.h"
#include "apps/search/layout_sets.h"
#include "apps/search/recorded_load.h"
#include "apps/search/space.h"
#include "core/arch/links.h"
#include "core/layers/attention.h"
#include "core/layers/latent_attention.h"
#include "core/session/session.h"

namespace orthant::search {
namespace {

constexpr double usable_memory = 0.94;  // of a device; the rest is its context's and its allocator's
constexpr double host_libraries = 8e6;  // bytes that a process without a device keeps for itself

void add_units(std::vector<Units>& units, const char* name, std::int64_t count) {
  if (count > 0) {
    units.push_back({name, count});
  }
}

void read_units(const Settings& s, Problem& problem) {
  problem.heads = s.model.heads;
  problem.key_heads = kv_heads_of(s);
  add_units(problem.tensor, "heads", s.model.heads);
  add_units(problem.tensor, "rows of the vocabulary", s.model.vocab_size);
  const bool some_dense = cost::routed_blocks(problem.model, 0, problem.model.layers) < problem.model.layers;
  add_units(problem.tensor, "channels of an FFN", some_dense ? d_ff_of(s) : 0);
  if (s.moe.experts > 0) {
    add_units(problem.tensor, "channels of shared experts", d_shared_of(s));
    add_units(problem.tensor_split, "channels of an expert", d_expert_of(s));
  }
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// The smallest layout that has this feature and nothing else, as far as sizes go. Nothing: sizes alone refuse it.
std::optional<Candidate> smallest_with(const Problem& problem, Feature feature) {
  Problem small = problem;
  small.refuses.clear();
  for (int size = 2; size <= 64; ++size) {
    Candidate one;
    switch (feature) {
      case Feature::tensor:
      case Feature::split:
      case Feature::folded:
      case Feature::sequence_parallel:
        one.tensor = size;
        one.folded = feature == Feature::folded || (feature == Feature::tensor && problem.model.experts > 0);
        one.sequence_parallel = feature == Feature::sequence_parallel;
        break;
      case Feature::ulysses:
      case Feature::ring:
        one.sequence = size;
        one.ulysses = feature == Feature::ulysses;
        break;
      case Feature::pipeline: one.pipeline = size; break;
      case Feature::zero:
      case Feature::layered:
      case Feature::host_states:
        one.data = size;
        one.zero = feature == Feature::zero || feature == Feature::layered ? 3 : 0;
        one.schedule = feature == Feature::layered ? Course::layered : Course::one_forward_one_backward;
        one.host_states = feature == Feature::host_states;
        break;
    }
    small.base.ranks = one.tensor * one.sequence * one.pipeline * one.data;
    for (const std::int64_t micro_batch : divisors(common_batch(problem))) {
      for (const bool folded : {one.folded, true}) {  // experts whose channels do not divide may fold
        one.micro_batch = micro_batch;
        one.folded = folded && problem.model.experts > 0 && one.tensor > 1;
        if (refusal(small, one).empty()) {
          return one;
        }
      }
    }
  }
  return std::nullopt;
}

void try_features(const Wanted& wanted, const Config& config, Problem& problem) {
  for (const Feature feature :
       {Feature::tensor, Feature::split, Feature::folded, Feature::sequence_parallel, Feature::ulysses, Feature::ring,
        Feature::pipeline, Feature::zero, Feature::layered, Feature::host_states}) {
    const std::optional<Candidate> one = smallest_with(problem, feature);
    if (!one || problem.refuses.contains(feature)) {
      continue;
    }
    ConfigArguments with = wanted.configuration;
    const std::vector<std::string> sets = sets_of(problem, *one, config);
    with.overrides.insert(with.overrides.end(), sets.begin(), sets.end());
    try {
      check_layout(load_config(with));
    } catch (const Error& refused) {
      problem.refuses[feature] = first_line(refused.what());
    }
  }
}

}  // namespace

cost::ModelShape shape_of(const Settings& s) {
  cost::ModelShape model;
  model.layers = static_cast<int>(s.model.layers);
  model.hidden = static_cast<double>(s.model.d_model);
  model.ffn = static_cast<double>(d_ff_of(s));
  model.heads = static_cast<int>(s.model.heads);
  model.kv_heads = static_cast<int>(kv_heads_of(s));
  model.head_size = static_cast<double>(head_dim_of(s));
  if (s.model.attention == "latent") {
    const LatentKeys latent = read_keys<LatentKeys>(s.model.own);
    model.query_rank = static_cast<double>(latent.q_lora_rank);
    model.kv_rank = static_cast<double>(latent.kv_lora_rank);
    model.rotary_size = static_cast<double>(latent.qk_rope_head_dim);
    model.value_size = static_cast<double>(latent.v_head_dim);
  }
  model.sequence = static_cast<double>(s.data.sequence_length);
  model.vocabulary = static_cast<double>(s.model.vocab_size);
  model.gated = is_gated(s.model.activation);
  model.tied = s.model.tie_embeddings;
  model.biases = false;
  model.learned_positions = s.model.positions == Positions::learned;
  model.extra_layers = static_cast<int>(s.model.mtp_depth);
  model.window = s.model.full_attention_every == 2 ? static_cast<double>(s.model.sliding_window) : 0;
  if (s.moe.experts > 0) {
    model.experts = static_cast<int>(s.moe.experts);
    model.top_k = static_cast<int>(s.moe.top_k);
    model.expert_ffn = static_cast<double>(d_expert_of(s));
    model.shared_ffn = static_cast<double>(d_shared_of(s));
    model.dense_layers = static_cast<int>(s.moe.first_dense);
    model.routed_every = static_cast<int>(s.moe.every);
  }
  return model;
}

cost::Layout base_layout(const Settings& s) {
  cost::Layout layout;
  const bool half = s.run.dtype == ComputeType::bf16;
  layout.precision = half ? cost::Precision::half : cost::Precision::fp32;
  layout.narrow_gradients = s.optimizer.gradient_dtype == ComputeType::bf16;
  const double moments = s.optimizer.state_dtype == StateType::eight_bits ? 2.06 : 8;
  const double master = half && s.optimizer.master_weights == MasterWeights::fp32 ? 4 : 0;
  layout.state_bytes = moments + master + (s.optimizer.ema_decay > 0 ? 4 : 0);
  layout.light_experts = true;
  layout.batched_experts = true;  // one product of groups for all experts of a rank
  layout.recorded = s.run.graphs;
  layout.global_batch = static_cast<double>(largest_batch(s.batch));
  if (s.run.device == "cpu") {
    layout.libraries = host_libraries;
  }
  return layout;
}

cost::Machine read_machine(const std::string& file, cost::Practice& practice) {
  const std::filesystem::path beside = std::filesystem::path(file).parent_path() / "factors.toml";
  const cost::FactorFile factors =
      std::filesystem::exists(beside) ? cost::load_factors(beside.string()) : cost::FactorFile{};
  cost::Machine machine = cost::load_machine(file, factors);
  practice = machine.practice.value_or(factors.practice);
  return machine;
}

std::vector<std::string> alone(const Config& config) {
  Problem one;
  one.model.experts = static_cast<int>(config.settings.moe.experts);
  one.batches = batch_sizes(config.settings.batch);
  Candidate whole;
  whole.micro_batch = common_batch(one);  // what divides a micro-batch's tokens divides these
  return sets_of(one, whole, config);
}

Problem read_problem(const Wanted& wanted, const Config& config) {
  const Settings& s = config.settings;
  for (const PluginRequest& plugin : config.plugins) {
    if (plugin.name == named::expert && s.moe.experts == 0) {
      throw ConfigError("the model has no experts (moe.experts = 0): remove [plugins.expert] or set moe.experts");
    }
  }
  Problem problem;
  problem.machine = read_machine(wanted.machine, problem.practice);
  problem.model = shape_of(s);
  problem.base = base_layout(s);
  problem.base.ranks = wanted.ranks > 0 ? wanted.ranks : Session(config).world_size();
  problem.memory = wanted.memory > 0    ? wanted.memory
                   : s.memory.limit > 0 ? static_cast<double>(s.memory.limit)
                                        : usable_memory * problem.machine.memory;
  problem.batches = batch_sizes(s.batch);
  problem.positions = s.data.sequence_length;
  problem.most_tokens = std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(1, s.moe.top_k);
  problem.group_tokens = s.moe.experts > 0 ? s.moe.group_tokens.written() : 0;
  problem.chain = static_cast<int>(links_of(s).size());
  read_units(s, problem);
  const auto executor = std::make_shared<Executor>(wanted.configuration, alone(config), config);
  problem.cut = [executor](int stages, int chunks) { return executor->blocks(stages, chunks); };
  problem.programs = [executor](const cost::Layout& layout, int micro_batches) {
    return executor->program(layout, micro_batches);
  };
  if (problem.machine.host.bandwidth <= 0) {
    problem.refuses[Feature::host_states] = fmt::format(
        "{} has no [host] table: what a state on the host costs is not "
        "known",
        wanted.machine);
  }
  try_features(wanted, config, problem);
  if (!wanted.routing.empty()) {
    problem.loads = recorded_loads(wanted.routing, s.moe.experts);
    if (s.moe.capacity_factor > 0) {
      double dropped = 0;
      problem.loads = cost::capped(std::move(problem.loads), s.moe.capacity_factor, dropped);
    }
    for (const std::int64_t ranks : divisors(s.moe.experts)) {
      const int size = static_cast<int>(ranks);
      problem.recorded[size] = cost::routing_of(problem.loads, cost::in_order(problem.loads, size), size);
    }
  }
  return problem;
}

}  // namespace orthant::search
