// The `orthant` program: chooses the subcommand, and turns failures into a message and an exit code.
#include <fmt/format.h>
#include <orthant/error.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/output.h"
#include "core/program/commands.h"

namespace {

constexpr int bad_usage = 2;

// No memory is left to make a text of.
constexpr std::string_view out_of_memory =
    "orthant: out of memory: the system gives this process no more (ulimit -d, ulimit -v, a cgroup's limit, or the "
    "machine's memory is full). Use fewer ranks on this machine or a smaller batch.micro_batch; memory.limit and "
    "memory.host_limit tell before a run starts what its tensors need\n";

constexpr const char* no_more_threads =
    "the system starts no more threads for this process: raise the limit of threads (ulimit -u), or of memory for "
    "their stacks (ulimit -d, ulimit -v, a cgroup's), or use fewer ranks on this machine";

void say_out_of_memory() {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, out_of_memory.data(), out_of_memory.size());
}

// A thread that gets no memory within a parallel loop can tell nobody, and ends the process.
[[noreturn]] void end_of_a_thread() {
  try {
    if (std::current_exception() != nullptr) {
      std::rethrow_exception(std::current_exception());
    }
  } catch (const std::bad_alloc&) {
    say_out_of_memory();
    std::_Exit(static_cast<int>(orthant::ExitCode::failure));
  } catch (const std::exception& error) {
    orthant::say("orthant: internal error: {}", error.what());
  } catch (...) {
  }
  std::abort();
}

struct Command {
  void (*add)(CLI::App&, int&);
  const char* group;     // the heading in --help
  const char* examples;  // the end of the command's own --help
};

constexpr const char* to_train = "Train";
constexpr const char* to_look = "Before a run, and after it";
constexpr const char* to_use = "Use a model";
constexpr const char* to_bring = "Models and texts in and out";

// As --help lists them: what a newcomer needs first.
constexpr Command commands[] = {
    {orthant::add_launch_command, to_train,
     "  orthant launch configs/quickstart.toml\n"
     "  orthant launch configs/quickstart.toml --set run.steps=400 --resume auto"},
    {orthant::add_train_command, to_train,
     "  orthant train configs/quickstart.toml --set run.name=mine\n"
     "  torchrun --no-python --nproc-per-node 4 orthant train configs/quickstart.toml"},
    {orthant::add_config_command, to_look, "  orthant config configs/quickstart.toml --resolved"},
    {orthant::add_plan_command, to_look,
     "  orthant plan configs/quickstart.toml\n"
     "  orthant plan configs/pipeline.toml --schedule"},
    {orthant::add_verify_command, to_look, "  orthant verify configs/quickstart.toml --set plugins.expert.size=4"},
    {orthant::add_report_command, to_look, "  orthant report runs/a runs/b -o compared.html"},
    {orthant::add_route_command, to_look,
     "  orthant launch configs/quickstart.toml --set run.record_routing=1\n"
     "  orthant route runs/quickstart --capacity-factor 1.0,1.25,0"},
    {orthant::add_checkpoint_command, to_look,
     "  orthant checkpoint list runs/quickstart\n"
     "  orthant checkpoint verify runs/quickstart"},
    {orthant::add_generate_command, to_use,
     "  orthant generate runs/quickstart --prompt \"The router\" --max-tokens 40"},
    {orthant::add_serve_command, to_use, "  orthant serve runs/quickstart --port 8000"},
    {orthant::add_eval_command, to_use, "  orthant eval runs/quickstart README.md"},
    {orthant::add_data_command, to_bring,
     "  orthant data prepare texts/*.txt -o tokens.bin --tokenizer tokenizer.json\n"
     "  orthant data check tokens.bin"},
    {orthant::add_import_command, to_bring, "  orthant import OLMoE-1B-7B-0924 -o runs/olmoe"},
    {orthant::add_upcycle_command, to_bring, "  orthant upcycle runs/dense --experts 8 -o runs/mixture"},
    {orthant::add_distil_command, to_bring, "  orthant distil runs/mixture -o runs/student"},
    {orthant::add_export_command, to_bring, "  orthant export runs/quickstart -o quickstart-hf"},
    {orthant::add_plugins_command, "Build and measure",
     "  orthant plugins\n"
     "  orthant plugins --check liborthant_plugin_mine.so"},
    {orthant::add_bench_command, "Build and measure",
     "  orthant bench step configs/bench_mixtral_small.toml\n"
     "  orthant bench compare runs/a runs/b"},
};

void add_commands(CLI::App& app, int& exit_code) {
  for (const Command& command : commands) {
    command.add(app, exit_code);
    app.get_subcommands({}).back()->group(command.group)->footer(fmt::format("Examples:\n{}", command.examples));
  }
  app.footer(
      "Examples:\n"
      "  orthant launch configs/quickstart.toml        train on four ranks of this machine\n"
      "  orthant plan configs/zero.toml                what each rank would hold and send\n"
      "  orthant report runs/quickstart                a page about a run\n"
      "  orthant generate runs/quickstart --prompt A   go on with a text\n"
      "orthant COMMAND --help has the options of each, and docs/README.md lists the pages about them.");
}

// Says it, and returns the exit code. The parser helps before it looks for words that it does not know, and asks for a
// command before it says that it does not know the one that was given.
int exit_of(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const bool hidden = dynamic_cast<const CLI::Success*>(&error) != nullptr ||
                      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (hidden && !unknown.empty()) {
    app.exit(CLI::ExtrasError(unknown));
    return bad_usage;
  }
  return app.exit(error) == 0 ? 0 : bad_usage;  // --help and --version are "errors" of code 0
}

// What the user asked for, with its exit code.
int run(CLI::App& app, int argc, char** argv, const int& exit_code) {
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return exit_of(app, error);
  } catch (const orthant::Error& error) {
    orthant::say("orthant: {}", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    say_out_of_memory();
    return static_cast<int>(orthant::ExitCode::failure);
  } catch (const std::filesystem::filesystem_error& error) {
    orthant::say("orthant: cannot use '{}': {}", error.path1().string(), error.code().message());
    return static_cast<int>(orthant::ExitCode::failure);
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    orthant::say("orthant: {}", no_thread ? no_more_threads : error.what());
    return static_cast<int>(orthant::ExitCode::failure);
  } catch (const std::exception& error) {
    orthant::say("orthant: internal error: {}", error.what());
    return static_cast<int>(orthant::ExitCode::failure);
  } catch (...) {
    orthant::say("orthant: internal error: something was thrown that is no std::exception, perhaps by a plugin");
    return static_cast<int>(orthant::ExitCode::failure);
  }
}

}  // namespace

int main(int argc, char** argv) {
  orthant::prepare_standard_streams();
  std::set_terminate(end_of_a_thread);
  CLI::App app("Orthant trains Mixture-of-Experts transformers.", "orthant");
  app.set_version_flag("--version", "orthant " ORTHANT_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  add_commands(app, exit_code);
  const int code = run(app, argc, argv, exit_code);
  // What training prints is for whoever looks; of the other commands it is what they were run for.
  const bool launches = app.got_subcommand("launch") && app.get_subcommand("launch")->count("--dry-run") == 0;
  const bool trains = launches || app.got_subcommand("train");
  if (!orthant::finish_output() && !trains && code == 0) {
    orthant::say("orthant: the standard output could not be written to its end: is it closed, or its disk full?");
    return static_cast<int>(orthant::ExitCode::failure);
  }
  return code;
}
