// orthant plan CONFIG --search --machine FILE: the best layouts of a model on a machine that one may not have.
#pragma once

#include <string>

#include "core/command/arguments.h"

namespace orthant {

struct SearchOptions {
  std::string machine;
  int ranks = 0;       // 0: those of the configuration's layout
  std::string memory;  // as memory.limit; empty: what the configuration or the machine says
  int top = 5;
  bool json = false;
  std::string svg, out, routing;  // files and a run's folder; empty: none
};

// Prints the answer and writes the files. False: nothing fits, and the answer says what binds.
// Errors: ConfigError for files, sizes of memory and models that are not right, or where no layout is possible.
bool run_search(const ConfigArguments& arguments, const SearchOptions& options);

}  // namespace orthant
