// The layouts of this machine's ranks that `orthant bench own-machine` trains, each as the settings of a run and as
// what the model of time takes: those that the fit sees, and those that it is held against.
#pragma once

#include <string>
#include <vector>

#include "apps/cost/model_shape.h"

namespace orthant::machine {

struct OwnLayout {
  std::string size;  // of the model: "A", "B", "C", with the number of experts behind it
  std::string communicator = "local";
  bool seen = false;  // the fit sees it
  int pipeline = 1, data = 1, tensor = 1, sequence = 1, expert = 1;
  int zero = 0;
  int micro_batch = 0;  // sequences of a rank; 0: all that it has
  int chunks = 1;
  bool all_at_once = false;  // GPipe; else 1F1B
  bool sequence_parallel = false;

  int ranks() const { return pipeline * data * tensor * sequence; }
};

std::vector<OwnLayout> own_layouts();

std::vector<std::string> settings_of(const OwnLayout& layout);  // as --set takes them
cost::ModelShape shape_of(const OwnLayout& layout);
cost::Layout layout_of(const OwnLayout& layout);
std::string text_of(const OwnLayout& layout);

}  // namespace orthant::machine
