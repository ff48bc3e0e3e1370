// The `orthant` program: chooses the subcommand, and turns failures into a message and an exit code.
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

using AddCommand = void (*)(CLI::App&, int&);
constexpr AddCommand commands[] = {
    orthant::add_bench_command,   orthant::add_config_command,  orthant::add_data_command,
    orthant::add_export_command,  orthant::add_import_command,  orthant::add_launch_command,
    orthant::add_plan_command,    orthant::add_plugins_command, orthant::add_report_command,
    orthant::add_route_command,   orthant::add_train_command,   orthant::add_verify_command,
    orthant::add_upcycle_command, orthant::add_eval_command,    orthant::add_generate_command,
    orthant::add_serve_command,   orthant::add_distil_command,  orthant::add_checkpoint_command,
};

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
  for (const AddCommand add : commands) {
    add(app, exit_code);
  }
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
