// orthant route RUN: what a run's recorded routing would have made of other settings. The table's rows are all
// combinations of what is asked for; the first is the run as it was.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/route/route_answers.h"
#include "apps/route/specialisation.h"
#include "core/base/output.h"
#include "core/checkpoint/disk.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

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
  if (a.on_machine.has_value()) {
    json["machine"] = {
        {"mean_seconds", a.on_machine->mean}, {"p50_seconds", a.on_machine->p50}, {"p99_seconds", a.on_machine->p99}};
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
  put("step {}{}, all layers together{}\n", run.step(),
      run.recorded().size() > 1 ? fmt::format(" of those recorded ({})", fmt::join(run.recorded(), ", ")) : "",
      run.measured().has_value() ? fmt::format("; the run's steps take {:.1f} ms", 1e3 * *run.measured()) : "");
  if (run.step() == 1) {
    put("Step 1 is that of routers that have learnt nothing yet.\n");
  }
  put("{:<36} {:>8} {:>8} {:>7} {:>7} {:>12} {:>12} {:>9}\n", "settings", "choices", "dropped", "busiest", "rank",
      "bytes inside", "between", options.machine.empty() ? "ms a step" : "p50 (p99) ms on the machine");
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
        a.on_machine.has_value() ? fmt::format("{:.1f} ({:.1f})", 1e3 * a.on_machine->p50, 1e3 * a.on_machine->p99)
        : a.seconds.has_value()  ? fmt::format("{:.1f}", 1e3 * *a.seconds)
                                 : "-");
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

struct ExpertsOptions {
  bool asked = false;
  std::size_t listed = 10;
  int threads = 1;
};

// '"e" 12%': so many of a token's occurrences chose the expert.
std::string tokens_text(const std::vector<ChosenToken>& tokens, const Specialisation& found) {
  std::vector<std::string> texts;
  for (const ChosenToken& token : tokens) {
    const std::string& text = found.texts.at(static_cast<std::size_t>(token.id));
    texts.push_back(fmt::format(
        "{} {:.0f}%",
        text.empty() ? std::to_string(token.id) : Json(text).dump(-1, ' ', true, Json::error_handler_t::replace),
        100 * token.share));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void print(const Specialisation& found) {
  std::vector<std::string> sets;
  for (std::size_t i = 0; i < found.sets.size(); ++i) {
    sets.push_back(fmt::format("{} ({} tokens)", found.sets[i], found.tokens[i]));
  }
  put("step {}; a token chooses {:.3g} experts; measured on {}\n", found.step, found.chosen, fmt::join(sets, ", "));
  for (const LayerUse& layer : found.layers) {
    put("\nblock {}\n{:>6} {:>9}", layer.block, "expert", "choices");
    for (const std::string& set : found.sets) {
      put(" {:>12}", set);
    }
    put("  most frequent tokens, with the share of each that chooses the expert\n");
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      const ExpertUse& use = layer.experts[e];
      put("{:>6} {:>9}", e, use.choices);
      for (const double share : use.of_sets) {
        put(" {:>11.1f}%", 100 * share);
      }
      put("  {}\n", tokens_text(use.frequent, found));
    }
  }
  if (!found.saturation.empty()) {
    put("\nsaturation: of a token's experts at step {}, those that it had before\n{:>10}", found.step, "step");
    for (const LayerUse& layer : found.layers) {
      put(" {:>10}", fmt::format("block {}", layer.block));
    }
    put("\n");
    for (const Saturation& at : found.saturation) {
      put("{:>10}", at.step);
      for (const double share : at.layers) {
        put(" {:>9.1f}%", 100 * share);
      }
      put("\n");
    }
  }
}

int experts(const RouteOptions& options, const ExpertsOptions& asked) {
  const std::filesystem::path run = options.run;
  const Specialisation found = specialisation_of({.run = run, .listed = asked.listed, .threads = asked.threads},
                                                 keys_of_plugin, kinds_of_plugin);
  const Disk disk;
  disk.create_folder(specialisation_file(run).parent_path());
  disk.replace_file(specialisation_file(run), to_json(found));
  if (options.json) {
    put("{}", to_json(found));
  } else {
    print(found);
    put("\n{} has all of it; orthant report shows it\n", specialisation_file(run).string());
  }
  return 0;
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
  CLI::App* command = app.add_subcommand("route");
  add_examples(*command,
               "  orthant launch configs/quickstart.toml --set run.record_routing=1\n"
               "  orthant route runs/quickstart --capacity-factor 1.0,1.25,0");
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
  command->add_option("--step", o->step, "The recorded step; without it the last")->check(CLI::Range(1, 1 << 30));
  command->add_option("--rate-inside", o->rate_inside, "Bytes a second inside a node; else as this machine copies");
  command->add_option("--rate-between", o->rate_between, "Bytes a second between nodes; likewise");
  command
      ->add_option("--machine", o->machine,
                   "Predict steps on this machine, a file as those of configs/machines, by the model of plan --search; "
                   "nothing is timed here")
      ->type_name("FILE");
  command->add_flag("--json", o->json, "Print JSON, with every layer");
  command->add_flag_callback(
      "--no-time", [o] { o->time = false; }, "Do not time experts on this machine");
  auto asked = std::make_shared<ExpertsOptions>();
  CLI::Option* by_experts = command->add_flag(
      "--experts", asked->asked,
      "What each expert is chosen for, by the checkpoints: tokens, validation sets, saturation of the routers");
  command->add_option("--tokens", asked->listed, "With --experts: tokens listed of each")
      ->check(CLI::Range(1, 1000))
      ->needs(by_experts);
  command->add_option("--threads", asked->threads, "With --experts: threads of the CPU")
      ->check(CLI::Range(1, 4096))
      ->needs(by_experts);
  command->callback([o, asked, &exit_code] { exit_code = asked->asked ? experts(*o, *asked) : route(*o); });
}

}  // namespace orthant
