#include <algorithm>
#include <cmath>

#include "soft_experts.h"

namespace orthant::images {
namespace {

// Elements first, first + step, ... of a row-major matrix: a row or a column.
struct Line {
  std::size_t first, step, count;
  std::size_t at(std::size_t i) const { return first + i * step; }
};

void softmax(std::span<float> to, std::span<const float> from, const Line& line) {
  float top = -INFINITY;
  for (std::size_t i = 0; i < line.count; ++i) {
    top = std::max(top, from[line.at(i)]);
  }
  double sum = 0;
  for (std::size_t i = 0; i < line.count; ++i) {
    const float e = std::exp(from[line.at(i)] - top);
    to[line.at(i)] = e;
    sum += static_cast<double>(e);
  }
  for (std::size_t i = 0; i < line.count; ++i) {
    to[line.at(i)] = static_cast<float>(static_cast<double>(to[line.at(i)]) / sum);
  }
}

void add_softmax_backward(std::span<float> to, std::span<const float> d, std::span<const float> p, const Line& line) {
  double mean = 0;
  for (std::size_t i = 0; i < line.count; ++i) {
    mean += static_cast<double>(d[line.at(i)]) * static_cast<double>(p[line.at(i)]);
  }
  for (std::size_t i = 0; i < line.count; ++i) {
    to[line.at(i)] += p[line.at(i)] * static_cast<float>(static_cast<double>(d[line.at(i)]) - mean);
  }
}

// f(line) for the columns of each image of `tokens` rows; rows as in of_rows.
template <class F>
void of_columns(const Shape& shape, std::int64_t tokens, const F& f) {
  const std::size_t slots = static_cast<std::size_t>(shape[1]), m = static_cast<std::size_t>(tokens);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape[0]); row += m) {
    for (std::size_t slot = 0; slot < slots; ++slot) {
      f(Line{row * slots + slot, slots, m});
    }
  }
}
template <class F>
void of_rows(const Shape& shape, const F& f) {
  const std::size_t slots = static_cast<std::size_t>(shape[1]);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape[0]); ++row) {
    f(Line{row * slots, 1, slots});
  }
}

}  // namespace

void soft_weights(const Tensor& dispatch, const Tensor& combine, const Tensor& logits, std::int64_t tokens, Stream& s) {
  s.apply({.name = "images/soft_weights",
           .inputs = {logits},
           .outputs = {dispatch, combine},
           .host = [tokens](const HostArguments& a) {
             const auto from = a.input<float>(0);
             const auto over_tokens = a.output<float>(0), over_slots = a.output<float>(1);
             of_columns(a.input_shape(0), tokens, [&](const Line& line) { softmax(over_tokens, from, line); });
             of_rows(a.input_shape(0), [&](const Line& line) { softmax(over_slots, from, line); });
           }});
}

void soft_weights_backward(const Tensor& dlogits, const Tensor& ddispatch, const Tensor& dcombine,
                           const Tensor& dispatch, const Tensor& combine, std::int64_t tokens, Stream& s) {
  s.apply({.name = "images/soft_weights_backward",
           .inputs = {ddispatch, dcombine, dispatch, combine},
           .outputs = {dlogits},
           .host = [tokens](const HostArguments& a) {
             const auto to = a.output<float>(0);
             std::fill(to.begin(), to.end(), 0.0f);
             of_columns(a.output_shape(0), tokens, [&](const Line& line) {
               add_softmax_backward(to, a.input<float>(0), a.input<float>(2), line);
             });
             of_rows(a.output_shape(0),
                     [&](const Line& line) { add_softmax_backward(to, a.input<float>(1), a.input<float>(3), line); });
           }});
}

}  // namespace orthant::images
