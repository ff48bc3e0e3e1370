// Param, ParamGroup: weights, who holds which slice of them, and where their gradients are summed.
//
// A group is what a Keeper acts on: the parameters of one layer whose gradients are summed over the same ranks,
// laid out back to back in flat buffers. Layers read `weight` and add to `grad`; the optimizer updates `master`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <orthant/group.h>
#include <orthant/mesh.h>
#include <orthant/tensor.h>

namespace orthant {

// The part of the model a parameter or boundary belongs to; axes may split dims per region (Plan::split_in).
enum class Region { embedding, norm, attention, attention_core, ffn, router, experts, head };
const char* name_of(Region region);

enum class Init { zeros, ones, normal };

// One named weight as the model declares it. Names are those of the checkpoint and of the export.
struct ParamSpec {
  std::string name;
  Shape global;  // 1-D or 2-D
  Region region = Region::embedding;
  std::optional<Dim> split[2] = {};                       // which dim of the model each dimension is, if any
  std::int64_t units[2] = {0, 0};                         // what is divided (heads, not channels); 0: elements
  std::vector<std::pair<Dim, std::int64_t>> inside = {};  // whole parameters divided by number: expert 3, layer 2
  Init init = Init::normal;
  float std = 0.02f;
  bool decay = true;
};

struct Param {
  ParamSpec spec;
  std::int64_t offset[2] = {0, 0};  // of this rank's slice in the global tensor
  std::int64_t size[2] = {0, 0};    // of the slice; size[1] = 1 for 1-D
  std::int64_t begin = 0;           // first element in the group's flat buffers
  // This rank is the first of those that hold this slice: it counts it in norms and writes it to checkpoints.
  bool counted = false;
  std::int64_t elements() const { return size[0] * size[1]; }
};

struct ParamGroup {
  int id = 0;
  std::string name;  // "layer 3 experts"
  std::vector<Param> params;
  std::int64_t elements = 0;

  Tensor weight;   // [elements], compute dtype; may be undefined between Keeper::release and acquire
  Tensor grad;     // f32 [elements]
  Tensor master;   // f32 [owned]; the same memory as weight where that is f32 and whole
  Tensor moment1;  // f32 [owned]
  Tensor moment2;  // f32 [owned]; undefined for SGD
  // The flat range whose optimizer state and update this rank is responsible for. Whole unless a Keeper shards it.
  std::int64_t owned_begin = 0, owned_elements = 0;

  // Gradients are summed over these ranks (size 1: none to sum). Used on one stream only: the Keeper's that sums,
  // else the main one. See parallel/gradient_rule.h.
  Group* sum = nullptr;
  bool summed = false;  // set by the Keeper that sums it (Keeper::sum_grads): no other one sums it again

  Tensor weight_of(const Param& p) const { return weight.slice(p.begin, shape_of(p)); }
  Tensor grad_of(const Param& p) const { return grad.slice(p.begin, shape_of(p)); }
  static Shape shape_of(const Param& p) {
    return p.spec.global.rank() == 1 ? Shape{p.size[0]} : Shape{p.size[0], p.size[1]};
  }
};

}  // namespace orthant
