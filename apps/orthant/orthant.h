// The `orthant` program: the commands that are built into it, and those that are programs of their own.
#pragma once

namespace orthant {

// main(). Returns the exit code.
int run_orthant(int argc, const char* const* argv);

}  // namespace orthant
