#include "core/command/run_command.h"

#include <fmt/format.h>
#include <orthant/error.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/build.h"
#include "core/base/cut_files.h"
#include "core/base/output.h"
#include "core/command/program.h"
#include "core/config/suggest.h"
#include "orthant_build.h"

namespace orthant {
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
    std::_Exit(static_cast<int>(ExitCode::failure));
  } catch (const std::exception& error) {
    say("orthant: internal error: {}", error.what());
  } catch (...) {
  }
  std::abort();
}

// The command that was given, or the program.
const CLI::App& chosen(const CLI::App& app) {
  const std::vector<const CLI::App*> given =
      app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  return given.empty() ? app : chosen(*given.front());
}

std::string of_unexpected(const CLI::App& app, const std::vector<std::string>& unknown) {
  std::vector<std::string> known;
  for (const CLI::Option* option : chosen(app).get_options()) {
    for (const std::string& name : option->get_lnames()) {
      known.push_back("--" + name);
    }
  }
  const std::string& first = unknown.front();
  const std::string word = first.substr(0, first.find('='));
  const std::optional<std::string> meant = word.starts_with("--") ? nearest(word, known) : std::nullopt;
  return fmt::format("not expected: {}{}", fmt::join(unknown, " "), meant ? ": did you mean '" + *meant + "'?" : "");
}

// Says it, and returns the exit code. The parser helps before it looks for words that it does not know, and asks for a
// command before it says that it does not know the one that was given.
int exit_of(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const bool hidden = dynamic_cast<const CLI::Success*>(&error) != nullptr ||
                      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const bool unexpected = !unknown.empty() && (hidden || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr);
  if (!unexpected && error.get_exit_code() == 0) {
    return app.exit(error);  // --help and --version are "errors" of code 0
  }
  say("orthant: {}\nRun with --help for more information.", unexpected ? of_unexpected(app, unknown) : error.what());
  return bad_usage;
}

// What the user asked for, with its exit code.
int run(const std::function<void()>& setup, CLI::App& app, int argc, const char* const* argv, const int& exit_code) {
  try {
    setup();
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return exit_of(app, error);
  } catch (const Error& error) {
    say("orthant: {}", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    say_out_of_memory();
    return static_cast<int>(ExitCode::failure);
  } catch (const std::filesystem::filesystem_error& error) {
    say("orthant: cannot use '{}': {}", error.path1().string(), error.code().message());
    return static_cast<int>(ExitCode::failure);
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    say("orthant: {}", no_thread ? no_more_threads : error.what());
    return static_cast<int>(ExitCode::failure);
  } catch (const std::exception& error) {
    say("orthant: internal error: {}", error.what());
    return static_cast<int>(ExitCode::failure);
  } catch (...) {
    say("orthant: internal error: something was thrown that is no std::exception, perhaps by a plugin");
    return static_cast<int>(ExitCode::failure);
  }
}

bool got(const CLI::App& app, const std::string& name) {
  const std::vector<const CLI::App*> given =
      app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  return std::any_of(given.begin(), given.end(), [&](const CLI::App* command) { return command->get_name() == name; });
}

// Programs of the tree use headers that no version protects.
void require_same_build() {
  require(std::string_view(ORTHANT_TREE) == build_of_library(),
          "this program was built with other headers than liborthant.so ({} and {}): build or install both again (in a "
          "build folder: cmake --build {})",
          ORTHANT_TREE, build_of_library(), main_program().parent_path().parent_path().string());
}

}  // namespace

int run_program(const ProgramSetup& setup, int argc, const char* const* argv) {
  prepare_standard_streams();
  explain_cut_files();
  std::set_terminate(end_of_a_thread);
  CLI::App app("Orthant trains Mixture-of-Experts transformers.", "orthant");
  app.set_version_flag("--version", "orthant " ORTHANT_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  int code = run([&] { setup(app, exit_code); }, app, argc, argv, exit_code);
  // What training prints is for whoever looks; of the other commands it is what they were run for.
  const bool launches = got(app, "launch") && app.get_subcommand("launch")->count("--dry-run") == 0;
  if (!finish_output() && !launches && !got(app, "train") && code == 0) {
    say("orthant: the standard output could not be written to its end: is it closed, or its disk full?");
    code = static_cast<int>(ExitCode::failure);
  }
  return code;
}

int run_command(const char* name, const char* about, AddCommand add, int argc, const char* const* argv) {
  std::vector<const char*> words = {"orthant", name};
  words.insert(words.end(), argv + 1, argv + argc);
  return run_program(
      [&](CLI::App& app, int& exit_code) {
        require_same_build();
        add(app, exit_code);
        app.get_subcommands({}).back()->description(about);
      },
      static_cast<int>(words.size()), words.data());
}

}  // namespace orthant
