// The names of the plugins whose keys a search varies, and so of their tables. Here alone.
#pragma once

#include <array>

#include "apps/cost/model_shape.h"

namespace orthant::search::named {

inline constexpr const char* pipeline = "pipeline";
inline constexpr const char* data = "data";
inline constexpr const char* sequence = "sequence";
inline constexpr const char* tensor = "tensor";
inline constexpr const char* expert = "expert";
inline constexpr const char* offload = "offload";
inline constexpr std::array all = {pipeline, data, sequence, tensor, expert, offload};

constexpr const char* of(cost::Axis axis) {
  switch (axis) {
    case cost::Axis::tensor: return tensor;
    case cost::Axis::context: return sequence;
    case cost::Axis::data: return data;
    case cost::Axis::pipeline: return pipeline;
  }
  return "";
}

}  // namespace orthant::search::named
