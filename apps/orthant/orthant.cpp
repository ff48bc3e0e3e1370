#include "apps/orthant/orthant.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/orthant/commands.h"
#include "core/base/output.h"
#include "core/command/external.h"
#include "core/command/run_command.h"
#include "core/config/suggest.h"

namespace orthant {
namespace {

struct Command {
  const char* name;
  AddCommand add;
  const char* group;     // the heading in --help
  const char* examples;  // the end of the command's own --help
};

constexpr const char* to_train = "Train";
constexpr const char* to_look = "Before a run, and after it";
constexpr const char* to_use = "Use a model";
constexpr const char* to_bring = "Models and texts in and out";
constexpr const char* to_build = "Build and measure";

std::string group_of(const ExternalCommand& command) {
  return command.group.empty() ? "Others that were found" : command.group;
}

// As --help lists them: what a newcomer needs first.
constexpr Command commands[] = {
    {"launch", add_launch_command, to_train,
     "  orthant launch configs/quickstart.toml\n"
     "  orthant launch configs/quickstart.toml --set run.steps=400 --resume auto"},
    {"train", add_train_command, to_train,
     "  orthant train configs/quickstart.toml --set run.name=mine\n"
     "  torchrun --no-python --nproc-per-node 4 orthant train configs/quickstart.toml"},
};

bool is_built_in(const std::string& name) {
  return std::any_of(std::begin(commands), std::end(commands), [&](const Command& one) { return name == one.name; });
}

// Those that a built-in one does not hide.
std::vector<ExternalCommand> other_commands() {
  std::vector<ExternalCommand> found = external_commands();
  std::erase_if(found, [](const ExternalCommand& command) { return is_built_in(command.name); });
  return found;
}

// Built-in ones have their callbacks; the others only a line in --help.
void add_commands(CLI::App& app, int& exit_code, const std::vector<ExternalCommand>& external) {
  std::vector<std::string> groups = {to_train, to_look, to_use, to_bring, to_build};
  for (const ExternalCommand& command : external) {
    if (std::find(groups.begin(), groups.end(), group_of(command)) == groups.end()) {
      groups.push_back(group_of(command));
    }
  }
  for (const std::string& group : groups) {
    for (const Command& command : commands) {
      if (group == command.group) {
        command.add(app, exit_code);
        CLI::App* added = app.get_subcommands({}).back();
        const std::string before = added->get_footer();
        added->group(group)->footer(
            fmt::format("{}{}Examples:\n{}", before, before.empty() ? "" : "\n", command.examples));
      }
    }
    for (const ExternalCommand& command : external) {
      if (group == group_of(command)) {
        app.add_subcommand(command.name, command.about)->group(group);
      }
    }
  }
  app.footer(
      "Examples:\n"
      "  orthant launch configs/quickstart.toml        train on four ranks of this machine\n"
      "  orthant plan configs/zero.toml                what each rank would hold and send\n"
      "  orthant report runs/quickstart                a page about a run\n"
      "  orthant generate runs/quickstart --prompt A   go on with a text\n"
      "orthant COMMAND --help has the options of each, and docs/README.md lists the pages about them.");
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

// The word is no built-in command.
[[noreturn]] void run_other(const std::string& word, std::vector<std::string> known,
                            const std::vector<std::string>& words) {
  for (const ExternalCommand& command : other_commands()) {
    if (command.name == word) {
      run_external(command, words);
    }
    known.push_back(command.name);
  }
  const std::optional<std::string> meant = nearest(word, known);
  throw CLI::ParseError(
      fmt::format("there is no command '{}'{}", word, meant ? ": did you mean '" + *meant + "'?" : ""),
      CLI::ExitCodes::ExtrasError);
}

}  // namespace

int run_orthant(int argc, const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  if (words.size() > 1 && std::string_view(words[1]) == "help") {
    words[1] = "--help";
  }
  const std::string word = words.size() > 1 ? words[1] : "";
  if ((word == "--help" || word == "-h") && words.size() > 2 && *words[2] != '-') {
    std::swap(words[1], words[2]);  // help NAME is NAME --help
  }
  return run_program(
      [&](CLI::App& app, int& exit_code) {
        const std::string first = words.size() > 1 ? words[1] : "";
        const bool asks = first.empty() || first.starts_with("-");
        add_commands(app, exit_code, asks ? other_commands() : std::vector<ExternalCommand>());
        const std::vector<std::string> built_in = names_of(app);
        if (!asks && std::find(built_in.begin(), built_in.end(), first) == built_in.end()) {
          run_other(first, built_in, {words.begin() + 2, words.end()});
        }
      },
      static_cast<int>(words.size()), words.data());
}

}  // namespace orthant
