#include "apps/plan/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "apps/search/axis_names.h"
#include "apps/search/layout_sets.h"
#include "apps/search/problem_reader.h"
#include "apps/search/search_output.h"
#include "core/base/output.h"
#include "core/data/write_file.h"
#include "core/session/session.h"

namespace orthant {
namespace {

double memory_of(const std::string& text) {
  const std::optional<std::int64_t> bytes = text.empty() ? std::optional<std::int64_t>(0) : parse_bytes(text);
  if (!bytes) {
    throw ConfigError(fmt::format("--memory {}: write a number of bytes, as in \"80 GiB\"", text));
  }
  return static_cast<double>(*bytes);
}

std::vector<std::string> notes_of(const Config& config, const SearchOptions& options) {
  std::vector<std::string> notes;
  for (const PluginRequest& plugin : config.plugins) {
    if (std::find(search::named::all.begin(), search::named::all.end(), plugin.name) == search::named::all.end()) {
      notes.push_back(fmt::format("[plugins.{}] stays as it is written; what it costs is not counted.", plugin.name));
    }
  }
  if (config.settings.moe.experts > 0 && options.routing.empty()) {
    notes.emplace_back("Routing is taken to be balanced; --routing RUN takes that of a run.");
  }
  return notes;
}

void write(const std::string& name, const std::string& text) {
  std::ofstream file(name, std::ios::binary);
  file << text;
  file.close();
  require(file.good(), "cannot write {}", name);
}

// The program's own word on the best layout, which the search has found by rules of its own.
void check_best(const ConfigArguments& arguments, const Config& config, const search::Problem& problem,
                const search::Candidate& best, std::vector<std::string>& notes) {
  ConfigArguments with = arguments;
  const std::vector<std::string> sets = search::sets_of(problem, best, config);
  with.overrides.insert(with.overrides.end(), sets.begin(), sets.end());
  try {
    check_layout(load_config(with));
  } catch (const Error& refused) {
    notes.push_back(fmt::format("The program refuses the first layout: {}", refused.what()));
  }
}

}  // namespace

bool run_search(const ConfigArguments& arguments, const SearchOptions& options) {
  // Its own layout need not fit: what is asked for is another.
  const Config config = load_config(arguments.file, arguments.overrides, keys_of_plugin, kinds_of_plugin);
  const auto begin = std::chrono::steady_clock::now();
  const search::Problem problem = search::read_problem(
      {arguments, options.machine, options.ranks, memory_of(options.memory), options.routing}, config);
  if (!options.svg.empty()) {
    check_output_file(options.svg);
    check_replaced(options.svg, "<svg ", "drawing of this program");
  }
  if (!options.out.empty()) {
    check_output_file(options.out);
    check_replaced(options.out, "# Found by orthant plan --search", "layout that a search has found");
  }
  const search::Answer answer = search::search(problem, {.top = static_cast<std::size_t>(options.top), .threads = 2});
  search::Shown shown{arguments.file,         options.machine, problem, answer, notes_of(config, options), 0,
                      problem.practice.spread};
  if (!answer.best.empty()) {
    shown.skew = search::skew_answers(problem, answer.best.front().candidate);
    check_best(arguments, config, problem, answer.best.front().candidate, shown.notes);
  }
  shown.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!options.svg.empty()) {
    write(options.svg, search::answer_svg(shown));
  }
  if (!options.out.empty() && !answer.best.empty()) {
    const search::Timed& best = answer.best.front();
    write(options.out, search::toml_of(problem, best.candidate, config, search::heading_of(shown, best)));
  }
  write_output(options.json ? search::answer_json(shown) : search::answer_text(shown));
  return !answer.best.empty();
}

}  // namespace orthant
