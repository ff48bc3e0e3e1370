// What a search looks for: the best layout of a model on a machine, among those that the program takes.
//
// A Problem holds all that is asked of sizes, as the configuration and the plugins ask it. It knows no configuration:
// problem_reader.h makes one of it.
//
// Thread safety: values; `cut` and `programs` are called from one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/cost/machine.h"
#include "apps/cost/model_shape.h"
#include "apps/cost/skew.h"
#include "apps/cost/step_time.h"

namespace orthant::search {

// So many of something that an axis shares out evenly: {"heads", 32}.
struct Units {
  std::string name;
  std::int64_t count = 0;
};

// How stages work through their micro-batches. layered: one stage, all micro-batches layer by layer.
enum class Course : std::uint8_t { one_forward_one_backward, gpipe, interleaved, layered };

// How rows travel to their experts. in_parts: one part travels beside the products of another.
enum class Travel : std::uint8_t { at_once, in_parts, two_levels, two_levels_in_parts };

// What a layout may not have with this configuration, and the program's words for it. Features that a plugin of this
// machine lacks or that this model refuses.
enum class Feature { tensor, split, folded, sequence_parallel, ulysses, ring, pipeline, zero, layered, host_states };

const char* name_of(Feature feature);

struct Problem {
  cost::ModelShape model;
  cost::Machine machine;
  cost::Practice practice;
  cost::Routing routing;
  cost::Loads loads;                      // of a run, newest first; empty: none was asked for
  std::map<int, cost::Routing> recorded;  // what `loads` are to so many ranks that share the experts out
  cost::Layout base;                      // what no layout changes: types of numbers, the batch, ranks
  double memory = 0;                      // bytes that a rank may take

  std::vector<Units> tensor;        // each divides among the tensor axis ...
  std::vector<Units> tensor_split;  // ... and these where it splits experts
  std::int64_t heads = 1, key_heads = 1;
  std::int64_t positions = 1;              // of a sequence
  std::int64_t most_tokens = 1;            // of a micro-batch
  std::int64_t group_tokens = 0;           // divide a micro-batch's tokens; 0: nothing is asked
  std::vector<std::int64_t> batches;       // sequences of a step, each size that the batch grows to
  int chain = 1;                           // layers that stages share out, embedding and head among them
  std::map<Feature, std::string> refuses;  // why not
  // Blocks of each piece, for so many stages of so many chunks. REQUIRES: at least as many layers of the chain.
  std::function<std::vector<int>(int stages, int chunks)> cut;
  cost::MakePrograms programs = cost::published_programs;

  const cost::Routing& routing_for(int expert) const {
    const auto found = recorded.find(expert);
    return found == recorded.end() ? routing : found->second;
  }
  bool has(Feature feature) const { return !refuses.contains(feature); }
};

}  // namespace orthant::search
