// Which kernels compute an expert's products, and whether its layer is fused: pure rules, tested without a GPU.
#pragma once

#include <orthant/error.h>
#include <orthant/tensor.h>

#include <string_view>

#include "experts/cuda/choose_tile.h"

namespace orthant::cuda {

// ORTHANT_CUDA_EXPERTS, which is for measuring one against the other.
//   packed: rows are packed by a kernel of their own, products are those of the fastest library, activations follow.
//   fused:  rows are gathered and activations applied by products of our own, and so are all others: a GPU then
//           shows each of them beside the library's.
enum class ExpertSetting { automatic, packed, fused };

// Errors: ConfigError for any other text.
inline ExpertSetting expert_setting(std::string_view given) {
  if (!given.empty() && given != "packed" && given != "fused") {
    throw ConfigError(
        fmt::format("ORTHANT_CUDA_EXPERTS={}: expected packed (rows are packed for the experts' products) or fused "
                    "(products gather rows and apply activations), or nothing",
                    given));
  }
  return given.empty() ? ExpertSetting::automatic : given == "packed" ? ExpertSetting::packed : ExpertSetting::fused;
}

// What there is to choose from. architecture: 80 for sm_80, 90 for Hopper, 100 and 103 for Blackwell. Each of the
// latter two has matrix instructions that no other GPU has, sm_120 among them, and CUTLASS alone calls them here.
struct ExpertMeans {
  int architecture = 0;
  bool cutlass = false;  // built with CUTLASS's kernels for this GPU
  ExpertSetting setting = ExpertSetting::automatic;

  bool hopper() const { return architecture == 90; }
  bool blackwell() const { return architecture == 100 || architecture == 103; }
};

// What our kernels on matrix units take: bf16 in; addresses divisible by 16 bytes, sizes by 8.
inline bool matrix_units_take(const GroupedProblem& p, DType in) {
  const auto fits = [](std::int64_t size) { return size > 0 && size % 8 == 0 && size < (std::int64_t{1} << 31); };
  const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  return in == DType::bf16 && fits(p.n) && fits(p.layout == GroupedLayout::tn ? p.m : p.k) && aligned(p.a) &&
         aligned(p.b) && aligned(p.c);
}

enum class ExpertProducts { cutlass, mma, plain };

inline ExpertProducts choose_products(const ExpertMeans& means, const GroupedProblem& p, DType in, DType out) {
  if ((means.hopper() || means.blackwell()) && means.cutlass && means.setting != ExpertSetting::fused &&
      cutlass_takes(p, in, out)) {
    return ExpertProducts::cutlass;
  }
  return matrix_units_take(p, in) ? ExpertProducts::mma : ExpertProducts::plain;
}

// Whether expert_ffn is fused, of whose products `up` and `down` are two. Where nobody says: if the library has none.
// On Hopper and Blackwell it has some, by instructions that are faster than those of ours.
inline bool choose_fused(const ExpertMeans& means, const GroupedProblem& up, const GroupedProblem& down, DType dtype) {
  if (means.setting == ExpertSetting::packed || up.experts == 0) {
    return false;
  }
  const auto own = [&](const GroupedProblem& p) {
    return choose_products(means, p, dtype, dtype) == ExpertProducts::mma;
  };
  const auto takes = [&](const GroupedProblem& p) { return matrix_units_take(p, dtype); };
  return takes(up) && takes(down) && (own(up) || own(down));
}

}  // namespace orthant::cuda
