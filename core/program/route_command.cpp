// orthant route RUN: what a run's recorded routing would have made of other settings. The table's rows are all
// combinations of what is asked for; the first is the run as it was.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/output.h"
#include "core/program/commands.h"
#include "core/program/route_answers.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

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

// Whether something was asked, and nothing of it has an answer. The run as it was is there unasked.
bool refused_all(const std::vector<Answer>& answers) {
  return std::all_of(answers.begin(), answers.end(),
                     [&](const Answer& a) { return !a.refused.empty() || (a.question.own && answers.size() > 1); });
}

int route(const RouteOptions& options) {
  check_options(options);
  RecordedRun run(options);
  std::vector<Answer> answers;
  for (const Question& q : questions_of(options, run.experts())) {
    answers.push_back(run.answer(q));
  }
  const int code = static_cast<int>(refused_all(answers) ? ExitCode::bad_configuration : ExitCode::ok);
  if (!options.json) {
    print(answers, run, options);
    return code;
  }
  Json json = {{"step", run.step()}, {"answers", Json::array()}};
  for (const Answer& a : answers) {
    json["answers"].push_back(json_of(a, options));
  }
  put("{}\n", json.dump(2));
  return code;
}

}  // namespace

void add_route_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("route", "What recorded routing would have made of other settings");
  auto o = std::make_shared<RouteOptions>();
  command->add_option("RUN", o->run, "The folder of a run with run.record_routing")->required()->check(not_empty);
  const auto list = [&](const char* name, auto& to, const char* help) {
    return command->add_option(name, to, help)->delimiter(',')->check(not_empty);
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
  command->add_option("--set", o->overrides, "Another key of [moe]'s routing, [plugins.*] or [memory], as for train")
      ->allow_extra_args(false);
  command->add_option("--step", o->step, "The recorded step; without it the first")->check(CLI::Range(1, 1 << 30));
  command->add_option("--rate-inside", o->rate_inside, "Bytes a second inside a node; else as this machine copies");
  command->add_option("--rate-between", o->rate_between, "Bytes a second between nodes; likewise");
  command->add_flag("--json", o->json, "Print JSON, with every layer");
  command->add_flag_callback(
      "--no-time", [o] { o->time = false; }, "Do not time experts on this machine");
  command->callback([o, &exit_code] { exit_code = route(*o); });
}

}  // namespace orthant
