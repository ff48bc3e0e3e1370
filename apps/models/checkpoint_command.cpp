// orthant checkpoint list RUN: what a run has saved; verify RUN|CHECKPOINT...: whether it can be read, byte for byte;
// average RUN|CHECKPOINT... -o RUN: the mean of their weights.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/pretrained/average.h"
#include "apps/pretrained/run_source.h"
#include "core/base/bytes_text.h"
#include "core/base/output.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/model_folder.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

struct CheckpointOptions {
  std::vector<std::string> folders;
  bool json = false;
};

// A checkpoint as its folder and manifest describe it.
struct Described {
  fs::path path;
  std::int64_t step = 0;
  std::int64_t ranks = 0;
  std::int64_t bytes = 0;
  std::string tokens;
  std::string problem;  // empty: none is seen
};

// Of one that is not where it was written; resumes pass it over. Empty: none.
std::string renamed(const CheckpointReader& reader, const NamedCheckpoint& checkpoint) {
  return reader.step() == checkpoint.step
             ? ""
             : fmt::format("its manifest is of step {}: the folder was renamed", reader.step());
}

constexpr const char* unfinished = "not complete: a save that was killed, or is under way";

Described describe(const NamedCheckpoint& checkpoint) {
  Described found{.path = checkpoint.path, .step = checkpoint.step, .tokens = {}, .problem = {}};
  if (!checkpoint.finished()) {
    found.problem = unfinished;
    return found;
  }
  try {
    const CheckpointReader reader(checkpoint.path);
    found.ranks = reader.world();
    found.bytes = static_cast<std::int64_t>(reader.bytes());
    const auto tokens = reader.state().find("tokens");
    found.tokens = tokens == reader.state().end() ? "" : tokens->second;
    found.problem = renamed(reader, checkpoint);
  } catch (const Error& error) {
    found.problem = error.what();
  }
  return found;
}

// Of a run, its checkpoints, oldest first; a checkpoint's folder is itself.
std::vector<NamedCheckpoint> checkpoints_of(const std::string& given) {
  const fs::path folder = named_folder(given);
  if (const auto named = named_checkpoint(folder); named && (is_checkpoint(folder) || !named->finished())) {
    return {*named};
  }
  if (is_checkpoint(folder)) {  // under a name of its user's own
    return {{.step = CheckpointReader(folder).step(), .suffix = {}, .path = folder}};
  }
  std::vector<NamedCheckpoint> found = checkpoints_in(folder / "checkpoints");
  if (found.empty()) {
    throw ConfigError(fmt::format("'{}' has no checkpoints under checkpoints/{}", given, hint_of_published(folder)));
  }
  std::reverse(found.begin(), found.end());
  return found;
}

void print_list(const CheckpointOptions& o) {
  const std::vector<NamedCheckpoint> named = checkpoints_of(o.folders.front());
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!o.json) {
    put("{:>12} {:>16} {:>12} {:>7}  {}\n", "step", "tokens", "size", "ranks", "folder");
  }
  for (const NamedCheckpoint& checkpoint : named) {
    const Described one = describe(checkpoint);
    if (o.json) {
      all.push_back({{"step", one.step}, {"path", one.path.string()}, {"complete", one.problem.empty()}});
      if (one.ranks > 0) {
        all.back().update({{"tokens", nullptr}, {"bytes", one.bytes}, {"ranks", one.ranks}});
        if (const auto tokens = nlohmann::json::parse(one.tokens, nullptr, false); tokens.is_number_integer()) {
          all.back()["tokens"] = tokens;
        }
      }
      if (!one.problem.empty()) {
        all.back()["problem"] = one.problem;
      }
    } else {
      const bool known = one.ranks > 0;
      put("{:>12} {:>16} {:>12} {:>7}  {}{}\n", one.step, known ? one.tokens : "-", known ? bytes_text(one.bytes) : "-",
          known ? std::to_string(one.ranks) : "-", one.path.string(), one.problem.empty() ? "" : ": " + one.problem);
    }
  }
  if (o.json) {
    put("{}\n", all.dump(2));
  }
}

ExitCode verify(const CheckpointOptions& o) {
  std::vector<NamedCheckpoint> all;
  for (const std::string& folder : o.folders) {
    for (NamedCheckpoint& checkpoint : checkpoints_of(folder)) {
      all.push_back(std::move(checkpoint));
    }
  }
  std::size_t bad = 0;
  for (const NamedCheckpoint& checkpoint : all) {
    std::string problem, name;
    std::int64_t bytes = 0;
    try {
      const CheckpointReader reader(checkpoint.path);
      bytes = static_cast<std::int64_t>(reader.bytes());
      name = renamed(reader, checkpoint);
      reader.verify();
    } catch (const Error& error) {
      problem = error.what();
    }
    if (!checkpoint.finished()) {
      put("{}: {}\n", checkpoint.path.string(), unfinished);  // nobody takes it for one
    } else if (problem.empty()) {
      put("{}: ok, {} read{}{}\n", checkpoint.path.string(), bytes_text(bytes), name.empty() ? "" : "; but ", name);
    } else {
      ++bad;
      put("{}: {}\n", checkpoint.path.string(), problem);
    }
  }
  if (std::none_of(all.begin(), all.end(), [](const NamedCheckpoint& checkpoint) { return checkpoint.finished(); })) {
    throw ConfigError("none of them is a complete checkpoint: nothing was verified");
  }
  return bad == 0 ? ExitCode::ok : ExitCode::failure;
}

void print(const AverageOptions& o, const AverageResult& result) {
  put("{}: the mean of {} checkpoints, {} parameters\n", o.output.string(), result.checkpoints.size(),
      result.parameters);
  for (const fs::path& checkpoint : result.checkpoints) {
    put("  of          {}\n", checkpoint.string());
  }
  put("  model       {}\n", how_to_train(o.output));
}

void add_average(CLI::App& group, int& exit_code) {
  CLI::App* command = group.add_subcommand("average", "Write a run with the mean of the weights of checkpoints");
  auto o = std::make_shared<AverageOptions>();
  command->add_option("CHECKPOINT", o->sources, "A run's folder, or those of two checkpoints or more")
      ->required()
      ->check(not_empty);
  command->add_option("-o,--output", o->output, "The new run's folder, to be made")->required()->check(not_empty);
  command->add_option("--last", o->last, "Only the newest N checkpoints of the run")->check(CLI::Range(2, 1 << 20));
  command->callback([o, &exit_code] {
    print(*o, average_checkpoints(*o, keys_of_plugin, kinds_of_plugin));
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& exit_code) {
  CLI::App* group = app.add_subcommand("checkpoint");
  add_examples(*group,
               "  orthant checkpoint list runs/quickstart\n"
               "  orthant checkpoint verify runs/quickstart");
  group->require_subcommand(1);

  auto o = std::make_shared<CheckpointOptions>();
  CLI::App* list = group->add_subcommand("list", "What a run has saved, by its manifests");
  list->add_option("RUN", o->folders, "A run's folder, or a checkpoint's")->required()->expected(1)->check(not_empty);
  list->add_flag("--json", o->json, "As JSON");
  list->callback([o, &exit_code] {
    print_list(*o);
    exit_code = static_cast<int>(ExitCode::ok);
  });

  CLI::App* check = group->add_subcommand("verify", "Read every byte, and compare with the checksums");
  check->add_option("RUN", o->folders, "Folders of runs or of checkpoints")->required()->check(not_empty);
  check->callback([o, &exit_code] { exit_code = static_cast<int>(verify(*o)); });

  add_average(*group, exit_code);
}

}  // namespace orthant
