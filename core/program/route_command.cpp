// orthant route RUN: what a run's recorded routing would have made of other settings. The table's rows are all
// combinations of what is asked for; the first is the run as it was.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>

#include "core/base/bytes_text.h"
#include "core/base/output.h"
#include "core/plan/batch_share.h"
#include "core/plan/recompute_rule.h"
#include "core/program/commands.h"
#include "core/route/step_time.h"
#include "core/run/text_file.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct RouteOptions {
  std::string run;
  std::vector<std::string> overrides, capacity_factors, routers, policies;
  std::vector<int> ranks, levels;
  std::vector<std::string> placements;
  std::int64_t experts_per_rank = 0, step = 0;
  int node_ranks = 0;
  double rate_inside = 0, rate_between = 0;
  bool json = false, time = true;
};

// What is changed in one row of the table.
struct Question {
  std::string capacity_factor, router, policy, placement;
  int ranks = 0, level = 0;  // 0: as the run
  bool own = false;          // the run as it was, whatever --set says
};

Question as_it_was() {
  Question q;
  q.own = true;
  return q;
}

struct Answer {
  Question question;
  std::string refused;  // why there is no answer
  std::int64_t choices = 0, dropped_by_capacity = 0, dropped_by_chance = 0;
  std::vector<Decisions> layers;  // of the first step that was asked for
  double expert_load = 0;         // the busiest expert's choices over the mean, in the worst layer
  double rank_load = 0;           // the busiest rank's rows over the mean, likewise
  std::int64_t bytes_inside = 0, bytes_between = 0;
  std::optional<double> seconds;
};

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
  ConfigArguments arguments{run_config(options.run), {"data.source=\"synthetic\""}};
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
  return load_config(arguments);
}

// How the configuration lays out its batch and its experts; nothing where other axes have a part in it.
std::optional<ExpertLayout> layout_of(const Config& config) {
  Session session(config);
  session.plan(0, nullptr, nullptr);
  const Plan& plan = session.plan();
  ExpertLayout layout;
  for (const AxisId axis : plan.axes_of(Dim::batch, Region::embedding)) {
    layout.ranks *= plan.mesh().axes()[static_cast<std::size_t>(axis)].size;
  }
  layout.expert_ranks = static_cast<int>(plan.mesh().members(plan.axes_of(Dim::expert, Region::experts), 0).size());
  if (layout.ranks != session.world_size()) {
    return {};
  }
  const BatchShare share = batch_share(plan);
  const std::vector<Instr> program = plan.schedule().steps(0, 1, share.micro_batches);
  const RecomputeRule rule(config.settings.memory, program);
  for (int m = 0; m < share.micro_batches; ++m) {
    layout.recomputed.push_back(rule.of(0, m) == Recompute::full);
  }
  layout.width = config.settings.model.d_model;
  layout.element_bytes = config.settings.run.dtype == ComputeType::fp32 ? 4 : 2;
  return layout;
}

// The same with the ranks of a row. The micro-batches are those that such ranks have.
ExpertLayout changed(ExpertLayout layout, const RouteOptions& options, const Question& q, const Settings& settings) {
  if (q.ranks > 0) {
    const std::int64_t micro = settings.batch.micro_batch, sequences = settings.batch.sequences;
    if (sequences % q.ranks != 0 || (micro > 0 && sequences / q.ranks % micro != 0)) {
      throw ConfigError(
          fmt::format("{} sequences in micro-batches of {} do not divide among {} ranks", sequences, micro, q.ranks));
    }
    layout.ranks = layout.expert_ranks = q.ranks;
    const std::int64_t batches = micro > 0 ? sequences / q.ranks / micro : 1;
    const bool full = settings.memory.recompute == "full" && settings.memory.keep_micro_batches == 0;
    layout.recomputed.assign(static_cast<std::size_t>(batches), full);
  }
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

class RecordedRun {
 public:
  explicit RecordedRun(const RouteOptions& options) : options_(options), base_(config_of(options, as_it_was())) {
    const std::vector<std::int64_t> steps = recorded_steps(options.run);
    if (options.step > 0 && std::find(steps.begin(), steps.end(), options.step) == steps.end()) {
      throw ConfigError(fmt::format("--step {}: it was not recorded; step {} was", options.step, steps.front()));
    }
    step_ = options.step > 0 ? options.step : steps.front();
    recording_ = read_recording(options.run, step_, base_.settings);
    layout_ = layout_of(base_);
    measured_ = median_step_seconds(steps);
  }

  std::int64_t step() const { return step_; }
  std::optional<double> measured() const { return measured_; }
  bool has_layout() const { return layout_.has_value(); }

  Answer answer(const Question& q) {
    Answer answer;
    answer.question = q;
    try {
      fill(answer);
    } catch (const Error& refused) {
      answer.refused = refused.what();
    }
    return answer;
  }

 private:
  void fill(Answer& answer) {
    const Config config = config_of(options_, answer.question);
    answer.layers = replay(recording_, config.settings);
    for (const Decisions& layer : answer.layers) {
      answer.choices += layer.choices;
      answer.dropped_by_capacity += layer.dropped_by_capacity;
      answer.dropped_by_chance += layer.dropped_by_chance;
      answer.expert_load = std::max(answer.expert_load, over_mean(layer.load));
    }
    const std::optional<ExpertLayout> own = layout_of(config);
    if (!own.has_value() && answer.question.ranks == 0) {
      return;
    }
    const ExpertLayout layout = changed(own.value_or(bare_layout()), options_, answer.question, config.settings);
    std::vector<Travel> travels;
    for (const Decisions& layer : answer.layers) {
      travels.push_back(travel_of(layer, layout));
      answer.bytes_inside += travels.back().bytes_inside;
      answer.bytes_between += travels.back().bytes_between;
      answer.rank_load = std::max(answer.rank_load, over_mean(travels.back().rows_of_ranks()));
    }
    if (options_.time && measured_.has_value() && layout_.has_value()) {
      answer.seconds = predict(travels, layout, config.settings);
    }
  }

  ExpertLayout bare_layout() const {
    return {.place_of_expert = {},
            .recomputed = {false},
            .width = base_.settings.model.d_model,
            .element_bytes = base_.settings.run.dtype == ComputeType::fp32 ? 4 : 2};
  }

  double predict(const std::vector<Travel>& travels, const ExpertLayout& layout, const Settings& settings) {
    if (timer_ == nullptr) {
      timer_ = std::make_unique<ExpertTimer>(base_.settings);
      const double rate = timer_->copy_rate();
      rates_ = {.inside = options_.rate_inside > 0 ? options_.rate_inside : rate,
                .between = options_.rate_between > 0 ? options_.rate_between : rate};
      std::vector<Travel> own;
      const ExpertLayout as_run = changed(*layout_, options_, as_it_was(), base_.settings);
      for (const Decisions& layer : replay(recording_, base_.settings)) {
        own.push_back(travel_of(layer, as_run));
      }
      own_ = routed_work(own, as_run, rates_, slots(layout_->ranks, base_.settings), *timer_);
    }
    const RoutedWork work = routed_work(travels, layout, rates_, slots(layout.ranks, settings), *timer_);
    return predicted_seconds(*measured_, own_, work);
  }

  // Ranks of the CPU that compute at once; other devices have one each.
  static int slots(int ranks, const Settings& settings) {
    const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int threads = static_cast<int>(settings.run.threads);
    return settings.run.device == "cpu" ? std::min(ranks, std::max(1, processors / threads)) : ranks;
  }

  // Of the logged steps that were not recorded, but the first.
  std::optional<double> median_step_seconds(const std::vector<std::int64_t>& recorded) const {
    std::vector<double> seconds;
    std::istringstream lines(read_text_file(fs::path(options_.run) / "metrics.jsonl").value_or(""));
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line, nullptr, false);
      if (json.is_object() && json.value("step", std::int64_t{1}) > 1 && json.contains("step_seconds") &&
          std::find(recorded.begin(), recorded.end(), json["step"].get<std::int64_t>()) == recorded.end()) {
        seconds.push_back(json["step_seconds"].get<double>());
      }
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds.empty() ? std::optional<double>() : seconds[seconds.size() / 2];
  }

  const RouteOptions& options_;
  Config base_;
  std::int64_t step_ = 0;
  RecordedStep recording_;
  std::optional<ExpertLayout> layout_;
  std::optional<double> measured_;
  std::unique_ptr<ExpertTimer> timer_;
  Rates rates_;
  RoutedWork own_;
};

// All combinations. Where a list is empty, the run's own.
std::vector<Question> questions_of(const RouteOptions& options, std::int64_t experts) {
  std::vector<int> ranks = options.ranks;
  if (options.experts_per_rank > 0) {
    if (experts % options.experts_per_rank != 0) {
      throw ConfigError(
          fmt::format("--experts-per-rank {}: it does not divide {} experts", options.experts_per_rank, experts));
    }
    ranks.push_back(static_cast<int>(experts / options.experts_per_rank));
  }
  std::vector<Question> all = {{}};
  const auto cross = [&](const auto& values, auto member) {
    std::vector<Question> more;
    for (const Question& q : all) {
      for (const auto& value : values) {
        more.push_back(q);
        more.back().*member = value;
      }
    }
    all = values.empty() ? all : more;
  };
  cross(options.routers, &Question::router);
  cross(options.capacity_factors, &Question::capacity_factor);
  cross(options.policies, &Question::policy);
  cross(ranks, &Question::ranks);
  cross(options.placements, &Question::placement);
  cross(options.levels, &Question::level);
  const bool asks =
      !(options.routers.empty() && options.capacity_factors.empty() && options.policies.empty() && ranks.empty() &&
        options.placements.empty() && options.levels.empty() && options.overrides.empty());
  if (asks) {
    all.insert(all.begin(), as_it_was());
  }
  return all;
}

std::string text_of(const Question& q, const RouteOptions& options) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (!q.router.empty()) {
    add(q.router);
  }
  if (!q.capacity_factor.empty()) {
    add("capacity " + q.capacity_factor);
  }
  if (!q.policy.empty()) {
    add("by " + q.policy);
  }
  if (q.ranks > 0) {
    add(fmt::format("{} rank{}", q.ranks, q.ranks == 1 ? "" : "s"));
  }
  if (!q.placement.empty()) {
    add(fs::path(q.placement).filename().string());
  }
  if (q.level > 0) {
    add(fmt::format("{} level{}", q.level, q.level == 1 ? "" : "s"));
  }
  for (std::size_t i = 0; !q.own && i < options.overrides.size(); ++i) {
    add(options.overrides[i]);
  }
  return text.empty() ? "as it was" : text;
}

Json json_of(const Answer& a, const RouteOptions& options) {
  Json json;
  json["settings"] = text_of(a.question, options);
  if (!a.refused.empty()) {
    json["refused"] = a.refused;
    return json;
  }
  json["choices"] = a.choices;
  json["dropped_by_capacity"] = a.dropped_by_capacity;
  json["dropped_by_chance"] = a.dropped_by_chance;
  json["expert_load_max_over_mean"] = a.expert_load;
  if (a.rank_load > 0) {
    json["rank_load_max_over_mean"] = a.rank_load;
    json["bytes_inside_nodes"] = a.bytes_inside;
    json["bytes_between_nodes"] = a.bytes_between;
  }
  if (a.seconds.has_value()) {
    json["step_seconds"] = *a.seconds;
  }
  for (const Decisions& layer : a.layers) {
    json["layers"][std::to_string(layer.layer - 1)] = {{"load", layer.load},
                                                       {"expert_tokens", layer.computed},
                                                       {"dropped_by_capacity", layer.dropped_by_capacity},
                                                       {"dropped_by_chance", layer.dropped_by_chance}};
  }
  return json;
}

void print(const std::vector<Answer>& answers, const RecordedRun& run, const RouteOptions& options) {
  put("step {}, all layers together{}\n", run.step(),
      run.measured().has_value() ? fmt::format("; the run's steps take {:.1f} ms", 1e3 * *run.measured()) : "");
  put("{:<36} {:>8} {:>8} {:>7} {:>7} {:>12} {:>12} {:>9}\n", "settings", "choices", "dropped", "busiest", "rank",
      "bytes inside", "between", "ms a step");
  for (const Answer& a : answers) {
    if (!a.refused.empty()) {
      put("{:<36} {}\n", text_of(a.question, options), a.refused);
      continue;
    }
    const double share = a.choices == 0 ? 0
                                        : static_cast<double>(a.dropped_by_capacity + a.dropped_by_chance) /
                                              static_cast<double>(a.choices);
    const bool travels = a.rank_load > 0;
    put("{:<36} {:>8} {:>7.2f}% {:>7.2f} {:>7} {:>12} {:>12} {:>9}\n", text_of(a.question, options), a.choices,
        100 * share, a.expert_load, travels ? fmt::format("{:.2f}", a.rank_load) : "-",
        travels ? fmt::format("{}", a.bytes_inside) : "-", travels ? fmt::format("{}", a.bytes_between) : "-",
        a.seconds.has_value() ? fmt::format("{:.1f}", 1e3 * *a.seconds) : "-");
  }
  if (!run.has_layout()) {
    put("Bytes and loads of ranks are told for layouts of the batch and of experts alone; give --ranks for one.\n");
  }
}

int route(const RouteOptions& options) {
  RecordedRun run(options);
  const Config base = config_of(options, as_it_was());
  std::vector<Answer> answers;
  for (const Question& q : questions_of(options, base.settings.moe.experts)) {
    answers.push_back(run.answer(q));
  }
  if (!options.json) {
    print(answers, run, options);
    return 0;
  }
  Json json = {{"step", run.step()}, {"answers", Json::array()}};
  for (const Answer& a : answers) {
    json["answers"].push_back(json_of(a, options));
  }
  put("{}\n", json.dump(2));
  return 0;
}

}  // namespace

void add_route_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("route", "What recorded routing would have made of other settings");
  auto o = std::make_shared<RouteOptions>();
  command->add_option("RUN", o->run, "The folder of a run with run.record_routing")->required();
  const auto list = [&](const char* name, auto& to, const char* help) {
    return command->add_option(name, to, help)->delimiter(',');
  };
  list("--capacity-factor", o->capacity_factors, "Capacity factors; 0: dropless");
  list("--router", o->routers, "Gates, by name");
  list("--drop-policy", o->policies, "position, probability")->check(CLI::IsMember({"position", "probability"}));
  list("--ranks", o->ranks, "Ranks that share the batch and the experts")->check(CLI::Range(1, 1 << 20));
  command->add_option("--experts-per-rank", o->experts_per_rank, "The same, by what each of them holds")
      ->check(CLI::Range(1, 1 << 20));
  list("--placement", o->placements, "Files: a line of experts for each rank that shares them");
  list("--levels", o->levels, "Exchange in one level or in two")->check(CLI::Range(1, 2));
  command->add_option("--node-ranks", o->node_ranks, "Consecutive ranks of a node; without it there is one node")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--set", o->overrides, "Any other key, as for train: model and data stay as they are")
      ->allow_extra_args(false);
  command->add_option("--step", o->step, "The recorded step; without it the first")->check(CLI::Range(1, 1 << 30));
  command->add_option("--rate-inside", o->rate_inside, "Bytes a second inside a node; else as this machine copies");
  command->add_option("--rate-between", o->rate_between, "Bytes a second between nodes; likewise");
  command->add_flag("--json", o->json, "Print JSON, with every layer");
  command->add_flag("!--no-time", o->time, "Do not time experts on this machine");
  command->callback([o, &exit_code] { exit_code = route(*o); });
}

}  // namespace orthant
