// ParamSpec, Param: one named weight as the model declares it, and as a rank holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/mesh.h>
#include <orthant/tensor.h>

namespace orthant {

enum class Init { zeros, ones, normal };

// One named weight as the model declares it. Names are those of the checkpoint and of the export.
struct ParamSpec {
  std::string name;
  Shape global;  // 1-D or 2-D
  Region region = Region::embedding;
  std::optional<Dim> split[2] = {};  // which dim of the model each dimension is, if any
  std::int64_t units[2] = {0, 0};    // what is divided (heads, not channels); 0: elements
  // What happens if an axis has more ranks than there are units. True: neighbours hold the same unit, and each has its
  // own part of the gradient (the keys and values of grouped queries). False: the layout is refused.
  bool repeats = false;
  std::optional<std::int64_t> expert = {};  // the expert whose parameter it is; nothing: it belongs to no routed expert
  // The links of the chain that use it, by number (orthant/model.h). Several share it (tied embeddings); none: the
  // link that declares it.
  std::vector<int> layers = {};
  Init init = Init::normal;
  float std = 0.02f;
  bool decay = true;  // false for what optimizer.no_decay names: the core sets that
  // What the learning rate is multiplied by (optimizer.lr_of). The core sets it.
  double lr_scale = 1;
  // It keeps its value (train.freeze, [lora]): no update, no optimizer state, no part in norms. The core sets it.
  bool frozen = false;
  // Its product reads W + scale B A, with A and B parameters of their own ([lora]). The core sets it.
  bool adapted = false;
};

struct Param {
  ParamSpec spec;
  std::int64_t offset[2] = {0, 0};  // of this rank's slice in the global tensor
  std::int64_t size[2] = {0, 0};    // of the slice; size[1] = 1 for 1-D
  std::int64_t begin = 0;           // first element in the group's flat buffers
  // Whether this rank's sum group counts the slice in norms. Several groups may hold the same slice; the one with the
  // lowest-numbered holder counts it, by its owners (owner, below). Checkpoints are written by all holders, each a
  // part.
  bool counted = false;
  std::int64_t elements() const { return size[0] * size[1]; }
};

}  // namespace orthant
