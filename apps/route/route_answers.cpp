#include "apps/route/route_answers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <thread>

#include "apps/report/step_seconds.h"
#include "apps/route/exchange_trial.h"
#include "core/arch/links.h"
#include "core/command/arguments.h"
#include "core/dry_run/promise.h"
#include "core/plan/batch_share.h"
#include "core/plan/recompute_rule.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

std::string run_config(const std::string& run) {
  const fs::path file = fs::path(run) / "config.resolved.toml";
  std::error_code error;
  if (!fs::exists(file, error)) {
    throw ConfigError(fmt::format("'{}' is no run: it has no config.resolved.toml; give a run's folder", run));
  }
  return file.string();
}

// The run's settings with those of a row. Nothing is read from the data, which may be gone.
Config config_of(const RouteOptions& options, const Question& q) {
  ConfigArguments arguments{run_config(options.run), {"data.source=\"none\""}};
  auto& sets = arguments.overrides;
  if (!q.router.empty()) {
    sets.push_back(fmt::format("moe.router=\"{}\"", q.router));
    if (q.router != "topk" && q.router != "bias") {
      sets.push_back("moe.top_k=0");
    }
  }
  if (!q.capacity_factor.empty()) {
    sets.push_back("moe.capacity_factor=" + q.capacity_factor);
  }
  if (!q.policy.empty()) {
    sets.push_back(fmt::format("moe.drop_policy=\"{}\"", q.policy));
  }
  if (!q.own) {
    sets.insert(sets.end(), options.overrides.begin(), options.overrides.end());
  }
  Config config = load_config(arguments);
  promise_memory(config);  // what "fit" stands for
  return config;
}

// Which of a rank's micro-batches compute their forward pass twice.
std::vector<bool> recomputed(const Plan& plan, const MemorySettings& memory, int micro_batches) {
  const std::vector<Instr> program = plan.schedule().steps(0, 1, micro_batches);
  const RecomputeRule rule(memory, program);
  std::vector<bool> twice;
  for (int m = 0; m < micro_batches; ++m) {
    twice.push_back(rule.of(0, m) == Recompute::full);
  }
  return twice;
}

// The micro-batches of a rank in a step, counted from 1, where so many share the batch.
int micro_batches_of(const BatchSettings& batch, int ranks, std::int64_t step) {
  const std::int64_t sequences = sequences_of_step(batch, step - 1);
  const std::int64_t micro = batch.micro_batch.or_else(std::max<std::int64_t>(batch.sequences / ranks, 1));
  if (batch.sequences % ranks != 0 || sequences % (ranks * micro) != 0) {
    throw ConfigError(fmt::format("{} sequences{} do not divide among {} ranks", sequences,
                                  batch.micro_batch != 0 ? fmt::format(" in micro-batches of {}", micro) : "", ranks));
  }
  return static_cast<int>(sequences / ranks / micro);
}

// How the configuration lays out the batch of the step and its experts, with the ranks of the row where it names some.
// Nothing where it names none and other axes have a part in the layout.
std::optional<ExpertLayout> layout_of(const Config& config, const RouteOptions& options, const Question& q,
                                      std::int64_t step) {
  const Settings& settings = config.settings;
  Session session(config);
  session.plan(0, nullptr, nullptr);
  const Plan& plan = session.plan();
  ExpertLayout layout;
  if (q.ranks > 0) {
    layout.ranks = layout.expert_ranks = q.ranks;
  } else {
    for (const AxisId axis : plan.axes_of(Dim::batch, Region::embedding)) {
      layout.ranks *= plan.mesh().axes()[static_cast<std::size_t>(axis)].size;
    }
    if (layout.ranks != session.world_size()) {
      return {};
    }
    layout.expert_ranks = static_cast<int>(plan.mesh().members(plan.axes_of(Dim::expert, Region::experts), 0).size());
  }
  layout.recomputed = recomputed(plan, settings.memory, micro_batches_of(settings.batch, layout.ranks, step));
  layout.width = settings.model.d_model;
  layout.element_bytes = settings.run.dtype == ComputeType::fp32 ? 4 : 2;
  layout.node_ranks = options.node_ranks;
  layout.two_levels = q.level == 2;
  if (q.level == 2 && options.node_ranks == 0) {
    throw ConfigError("two levels of exchange need nodes: give --node-ranks N");
  }
  if (!q.placement.empty()) {
    layout.place_of_expert = read_placement(q.placement, settings.moe.experts, layout.expert_ranks);
  }
  return layout;
}

template <class T>
double over_mean(const std::vector<T>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? static_cast<double>(*std::max_element(values.begin(), values.end())) *
                       static_cast<double>(values.size()) / sum
                 : 0;
}

// Ranks of the CPU that compute at once; other devices have one each.
int slots(int ranks, const Settings& settings) {
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = static_cast<int>(settings.run.threads);
  return settings.run.device == "cpu" ? std::min(ranks, std::max(1, processors / threads)) : ranks;
}

}  // namespace

RecordedRun::RecordedRun(const RouteOptions& options) : options_(options), base_(config_of(options, as_it_was())) {
  if (routed_in(links_of(base_.settings)) == 0) {
    throw ConfigError(
        fmt::format("'{}': its model has no routed layers, so there is no routing to ask about; give a run whose "
                    "moe.experts is above 0",
                    options.run));
  }
  const std::vector<std::int64_t> steps = recorded_steps(options.run);
  if (options.step > 0 && std::find(steps.begin(), steps.end(), options.step) == steps.end()) {
    throw ConfigError(
        fmt::format("--step {}: it was not recorded; recorded are {}", options.step, fmt::join(steps, ", ")));
  }
  step_ = options.step > 0 ? options.step : steps.back();
  recorded_ = steps;
  recording_ = read_recording(options.run, step_, base_.settings);
  layout_ = layout_of(base_, options, as_it_was(), step_);
  measured_ = median_step_seconds(steps);
  if (!options.machine.empty()) {
    machine_.emplace(options.machine);
  }
}

Answer RecordedRun::answer(const Question& q) {
  Answer answer;
  answer.question = q;
  try {
    fill(answer);
  } catch (const Error& refused) {
    answer.refused = refused.what();
  }
  return answer;
}

void RecordedRun::fill(Answer& answer) {
  const Config config = config_of(options_, answer.question);
  answer.layers = replay(recording_, config.settings);
  for (const Decisions& layer : answer.layers) {
    answer.choices += layer.choices;
    answer.dropped_by_capacity += layer.dropped_by_capacity;
    answer.dropped_by_chance += layer.dropped_by_chance;
    answer.expert_load = std::max(answer.expert_load, over_mean(layer.load));
  }
  const std::optional<ExpertLayout> layout = layout_of(config, options_, answer.question, step_);
  if (!layout.has_value()) {
    return;
  }
  const std::vector<Travel> travels = travels_of(config, answer.question, *layout, answer.layers);
  for (const Travel& travel : travels) {
    answer.bytes_inside += travel.bytes_inside;
    answer.bytes_between += travel.bytes_between;
    answer.rank_load = std::max(answer.rank_load, over_mean(travel.rows_of_ranks()));
  }
  if (machine_.has_value() && !travels.empty()) {
    answer.on_machine = machine_->of(config, *layout, travels);
  } else if (options_.time && measured_.has_value() && layout_.has_value()) {
    answer.seconds = predict(answer, travels, *layout, config);
  }
}

bool RecordedRun::is_tried(const Config& config, const Question& q, const ExpertLayout& layout) const {
  return q.ranks == 0 && q.level == 0 && q.placement.empty() && ExchangeTrial::possible(config, layout);
}

std::vector<Travel> RecordedRun::travels_of(const Config& config, const Question& q, const ExpertLayout& layout,
                                            const std::vector<Decisions>& layers) const {
  if (is_tried(config, q, layout)) {
    return ExchangeTrial(config, layout).travels(layers);
  }
  std::vector<Travel> travels;
  for (const Decisions& layer : layers) {
    travels.push_back(travel_of(layer, layout));
  }
  return travels;
}

RoutedWork RecordedRun::work_of(const Config& config, const std::vector<Decisions>& layers,
                                const std::vector<Travel>& travels, const ExpertLayout& layout, bool tried) {
  return routed_work(recording_, config.settings, travels, layout, rates_,
                     tried ? std::optional(ExchangeTrial(config, layout).seconds(layers)) : std::nullopt,
                     slots(layout.ranks, config.settings), *timer_);
}

double RecordedRun::predict(const Answer& answer, const std::vector<Travel>& travels, const ExpertLayout& layout,
                            const Config& config) {
  if (timer_ == nullptr) {
    timer_ = std::make_unique<WorkTimer>(base_.settings);
    const double rate = timer_->copy_rate();
    rates_ = {.inside = options_.rate_inside.value_or(rate), .between = options_.rate_between.value_or(rate)};
  }
  // Both sides by one rule: where the exchange of one of them cannot be tried, both are their bytes over the same
  // rates.
  const Question own = as_it_was();
  const bool by_rates = options_.rate_inside || options_.rate_between || config.settings.run.device != "cpu";
  const bool travels_here = layout.expert_ranks > 1;
  const bool own_travels = layout_->expert_ranks > 1;
  const bool tried = !by_rates && (!travels_here || is_tried(config, answer.question, layout)) &&
                     (!own_travels || is_tried(base_, own, *layout_));
  if (!own_.contains(tried)) {
    const std::vector<Decisions> layers = replay(recording_, base_.settings);
    own_[tried] = work_of(base_, layers, travels_of(base_, own, *layout_, layers), *layout_, tried && own_travels);
  }
  const RoutedWork work = work_of(config, answer.layers, travels, layout, tried && travels_here);
  return predicted_seconds(*measured_, own_.at(tried), work);
}

// Of the logged steps that were not recorded, but the first, with as large a batch as the one that is replayed.
std::optional<double> RecordedRun::median_step_seconds(const std::vector<std::int64_t>& recorded) const {
  std::vector<double> seconds;
  for (const report::StepSeconds& one : report::step_seconds_in(options_.run)) {
    const BatchSettings& batch = base_.settings.batch;
    const bool alike = times_grown(batch, one.step - 1) == times_grown(batch, step_ - 1);
    if (one.step > 1 && alike && std::find(recorded.begin(), recorded.end(), one.step) == recorded.end()) {
      seconds.push_back(one.seconds);
    }
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds.empty() ? std::optional<double>() : seconds[seconds.size() / 2];
}

}  // namespace orthant
