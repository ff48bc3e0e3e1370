#include "core/train/low_memory_update.h"

#include <algorithm>

#include "core/layers/owned_pieces.h"
#include "core/layers/parameter_state.h"
#include "core/layers/state_storage.h"

namespace orthant {
UpdateSlice WideElements::widen(const Treatment& treatment) {
  const Shape n{count_};
  UpdateSlice slice{.master = group_.master.slice(begin_, n),
                    .weight = group_.owned_weight.slice(begin_, n),
                    .grad = in_f32(group_.owned_grad.slice(begin_, n), home_),
                    .state = {},
                    .whole = {}};
  if (slice.master.dtype() != DType::f32) {
    master_ = wide();
    home_.cast(master_, slice.master);
    slice.master = slice.weight = master_;
  }
  for (const OptimizerState& spec : own_states(treatment)) {
    if (spec.over != StateOver::elements) {
      slice.state.emplace_back();
      continue;
    }
    const ParamState& state = state_of(group_, spec.name, begin_, count_);
    if (state.code == StateCode::none) {
      slice.state.push_back(state.slice(begin_, count_));
      continue;
    }
    const std::int64_t at = state.place(begin_, count_);
    slice.state.push_back(wide());
    home_.decode_state(slice.state.back(), state.codes(at, count_), state.exponents(at, count_), state.code);
    states_.push_back({&state, at, slice.state.back()});
  }
  return slice;
}

// work(p, piece, shape, at, here): of each parameter's rectangles, `here` elements behind the first.
template <class Work>
void WideElements::each_piece(Work work) const {
  const std::int64_t first = group_.owned_begin + begin_;
  for (const Param& p : group_.params) {
    for (const OwnedPiece& piece : owned_pieces(group_, p, first, first + count_)) {
      const SliceMap at{piece.offset[0], piece.offset[1], p.spec.global.rank() > 1 ? p.spec.global[1] : 1};
      work(p, piece, Shape{piece.size[0], piece.size[1]}, at, piece.begin - begin_);
    }
  }
}

void WideElements::narrow_states(std::int64_t step) {
  if (states_.empty()) {
    return;
  }
  each_piece([&](const Param& p, const OwnedPiece& piece, const Shape& shape, const SliceMap& at, std::int64_t here) {
    for (const WideState& wide : states_) {
      const ParamState& state = *wide.stored;
      home_.encode_state(state.codes(wide.at + here, piece.elements()).view(shape),
                         state.exponents(wide.at + here, piece.elements()), wide.numbers.slice(here, shape), state.code,
                         rounding_key(settings_, p, state.name, step), at);
    }
  });
}

void WideElements::narrow(std::int64_t step) {
  narrow_states(step);
  if (!master_.defined()) {
    return;
  }
  each_piece([&](const Param& p, const OwnedPiece& piece, const Shape& shape, const SliceMap& at, std::int64_t here) {
    home_.stochastic_cast(group_.master.slice(piece.begin, shape), master_.slice(here, shape),
                          rounding_key(settings_, p, "", step), at);
  });
  const Tensor weight = group_.owned_weight.slice(begin_, {count_}), master = group_.master.slice(begin_, {count_});
  if (weight.data() != master.data()) {  // a keeper has both
    home_.copy(weight, master);
  }
}

Tensor WideElements::wide() const {
  Device& device = group_.master.device();
  return group_.master.on_host() ? device.host_empty(DType::f32, {count_}) : device.empty(DType::f32, {count_});
}

Tensor in_f32(const Tensor& grad, Stream& home) {
  if (grad.dtype() == DType::f32) {
    return grad;
  }
  Device& device = grad.device();
  const Tensor wide =
      grad.on_host() ? device.host_empty(DType::f32, grad.shape()) : device.empty(DType::f32, grad.shape());
  home.cast(wide, grad);
  return wide;
}

bool stored_in_fewer_bits(const ParamGroup& group, const Treatment& treatment) {
  return group.master.dtype() != DType::f32 || group.grad_dtype != DType::f32 ||
         std::any_of(treatment.states.begin(), treatment.states.end(),
                     [](const OptimizerState& state) { return state.code != StateCode::none; });
}

void update_low_memory(const ParamGroup& group, std::int64_t begin, std::int64_t count, const Treatment& treatment,
                       const UpdateStep& step, const Settings& settings, Stream& home) {
  const Optimizer& optimizer = optimizer_of(settings);
  for (std::int64_t at = begin; at < begin + count; at += most_widened) {
    WideElements wide(group, at, std::min(most_widened, begin + count - at), settings, home);
    optimizer.update(wide.widen(treatment), step, home);
    wide.narrow(step.step);
  }
}

}  // namespace orthant
