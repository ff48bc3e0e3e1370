// orthant plan CONFIG [--rank R] [--routing RUN] [--json]: what a layout would hold and send, without starting a rank;
// with --schedule who works when, with --search which layout is the best.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

#include "apps/plan/plan_output.h"
#include "apps/plan/plan_search.h"
#include "apps/plan/recorded_routing.h"
#include "apps/plan/schedule_drawing.h"
#include "core/arch/trained_text.h"
#include "core/base/output.h"
#include "core/data/source.h"
#include "core/data/write_file.h"

namespace orthant {
namespace {

struct PlanOptions {
  int rank = 0;
  std::int64_t step = 0;  // 0: the first of the largest batch
  bool json = false;
  bool schedule = false;
  bool search = false;
  std::string svg;      // empty: none
  std::string routing;  // of a run; empty: none
  SearchOptions searched;
};

void draw(const Config& config, const PlanOptions& options) {
  const Programs programs = planned_programs(config);
  if (!options.svg.empty()) {
    check_replaced(options.svg, "<svg ", "drawing of this program");
    std::ofstream file(options.svg, std::ios::binary);
    file << schedule_svg(programs);
    file.close();
    require(file.good(), "cannot write {}", options.svg);
  }
  write_output(schedule_text(programs));
}

// The largest peak of a rank if all parameters trained.
std::int64_t peak_of_all(Config config, std::int64_t step) {
  config.settings.train.freeze.clear();
  config.settings.train.train_only.clear();
  config.settings.lora = {};
  std::int64_t peak = 0;
  for (const RankClass& c : plan_classes(config, step)) {
    peak = std::max(peak, c.memory.peak);
  }
  return peak;
}

void run(const ConfigArguments& arguments, const PlanOptions& options) {
  Config config = load_config(arguments);
  checked_ranks(config, Ranks::elsewhere);
  if (!options.svg.empty()) {
    check_output_file(options.svg);
  }
  if (options.schedule) {
    return draw(config, options);
  }
  PlanOutput plan;
  plan.file = arguments.file;
  plan.step = options.step > 0 ? options.step : first_largest_step(config.settings.batch) + 1;
  plan.memory = config.settings.memory;
  plan.gradients = config.settings.optimizer.gradient_dtype;
  plan.batch = config.settings.batch;
  plan.mesh = plan_mesh(config);
  plan.rank = plan_rank(config, options.rank, plan.step - 1);
  const double recorded =
      options.routing.empty() ? 0 : recorded_share(options.routing, config.settings.moe.experts, expert_ranks(config));
  plan.classes = plan_classes(config, plan.step - 1, recorded);
  plan.trained = trained_text(config.settings);
  plan.rates = rates_text(config.settings);
  plan.peak_of_all = plan.trained.empty() ? 0 : peak_of_all(config, plan.step - 1);
  plan.steps = config.settings.run.steps;
  if (const std::optional<OpenedSize> data = data_size(config.settings, false)) {
    plan.data = data->size;
  }
  plan.advice = lighter_keys(arguments, plan);
  const std::string data = plan.data ? size_text(*plan.data, config.settings) + "\n" : "";
  write_output(options.json ? plan_json(plan) : plan_text(plan) + data);
}

bool search_layout(const ConfigArguments& arguments, const PlanOptions& options) {
  SearchOptions wanted = options.searched;
  wanted.json = options.json;
  wanted.svg = options.svg;
  wanted.routing = options.routing;
  return run_search(arguments, wanted);
}

void add_search_options(CLI::App& command, PlanOptions& options, CLI::Option* schedule) {
  CLI::Option* search =
      command
          .add_flag("--search", options.search,
                    "Look instead for the best layout on a machine, which nobody need have (docs/guides/search.md)")
          ->excludes(schedule);
  CLI::Option* machine = command
                             .add_option("--machine", options.searched.machine,
                                         "The machine to search for: a file as those of configs/machines")
                             ->needs(search)
                             ->type_name("FILE");
  search->needs(machine);
  command.add_option("--ranks", options.searched.ranks, "Ranks of it; without it those of the configuration's layout")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(search)
      ->type_name("N");
  command
      .add_option("--memory", options.searched.memory,
                  "What a rank may take; without it memory.limit, or 94 % of the machine's memory")
      ->needs(search)
      ->type_name("BYTES");
  command.add_option("--top", options.searched.top, "How many layouts are shown")
      ->check(CLI::Range(1, 1000))
      ->needs(search)
      ->type_name("K");
  command.add_option("--out", options.searched.out, "Write a configuration with the best layout, which `launch` takes")
      ->needs(search)
      ->type_name("FILE");
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan");
  add_examples(*command,
               "  orthant plan configs/quickstart.toml\n"
               "  orthant plan configs/pipeline.toml --schedule\n"
               "  orthant plan configs/olmoe_1b.toml --search --machine configs/machines/h100.toml --ranks 64");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<PlanOptions>();
  command->add_option("--rank", options->rank, "The rank whose slices and collectives are listed")
      ->check(CLI::Range(0, 1 << 30))
      ->type_name("R");
  command
      ->add_option("--step", options->step,
                   "The step whose collectives are listed, from 1: a plugin may do something every so many steps. "
                   "Without it the first one, where the batch grows the first with the largest batch")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->type_name("N");
  command
      ->add_option("--routing", options->routing,
                   "Show what ranks would need by the routing that this run has had, at its most uneven")
      ->type_name("RUN");
  CLI::Option* json = command->add_flag("--json", options->json, "Print everything as JSON (docs/guides/plan.md)");
  CLI::Option* schedule =
      command->add_flag("--schedule", options->schedule, "Draw instead in which order the stages work")->excludes(json);
  command->add_option("--svg", options->svg, "Draw it, or what the search has found, into this file too")
      ->type_name("FILE");
  add_search_options(*command, *options, schedule);
  command->callback([arguments, options, &exit_code] {
    if (!options->svg.empty() && !options->schedule && !options->search) {
      throw CLI::RequiresError("--svg", "--schedule or --search");
    }
    bool found = true;
    if (options->search) {
      found = search_layout(*arguments, *options);
    } else {
      run(*arguments, *options);
    }
    exit_code = static_cast<int>(found ? ExitCode::ok : ExitCode::bad_configuration);
  });
}

}  // namespace orthant
