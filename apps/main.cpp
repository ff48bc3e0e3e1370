// main() of libexec's orthant-NAME. CMake compiles it for each (apps/CMakeLists.txt), with ORTHANT_COMMAND, its NAME as
// a word, and with ORTHANT_ABOUT, what `orthant --help` says of it.
#include "core/command/run_command.h"

#define ORTHANT_JOIN(a, b, c) a##b##c
#define ORTHANT_ADD(name) ORTHANT_JOIN(add_, name, _command)
#define ORTHANT_TEXT(name) #name
#define ORTHANT_NAME(name) ORTHANT_TEXT(name)

namespace orthant {
void ORTHANT_ADD(ORTHANT_COMMAND)(CLI::App& app, int& exit_code);
}

int main(int argc, char** argv) {
  return orthant::run_command(ORTHANT_NAME(ORTHANT_COMMAND), ORTHANT_ABOUT, orthant::ORTHANT_ADD(ORTHANT_COMMAND), argc,
                              argv);
}
