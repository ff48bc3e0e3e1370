// What every program of the tree does around its commands: reads the words, and turns failures into a message and an
// exit code (docs/guides/cluster.md lists the codes).
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace orthant {

// Adds commands to the parser. The chosen one's callback does the work and sets exit_code; a failure is thrown as
// Error.
using ProgramSetup = std::function<void(CLI::App& app, int& exit_code)>;
using AddCommand = void (*)(CLI::App& app, int& exit_code);

// main() of a program with several commands. Returns its exit code.
int run_program(const ProgramSetup& setup, int argc, const char* const* argv);

// main() of libexec's orthant-NAME: as `orthant NAME`, in its help and messages too. about: what --help says of it.
int run_command(const char* name, const char* about, AddCommand add, int argc, const char* const* argv);

}  // namespace orthant
