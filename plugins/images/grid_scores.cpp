#include <algorithm>
#include <cmath>
#include <vector>

#include "grid_attention.h"

namespace orthant::images {
namespace {

// Where things lie in one call: rows of a head, and the bias of a pair of cells.
struct Places {
  explicit Places(const GridShape& of) : shape(of) {
    for (std::int64_t i = 0; i < of.cells(); ++i) {
      for (std::int64_t j = 0; j < of.cells(); ++j) {
        const std::int64_t dy = j / of.grid - i / of.grid + of.grid - 1, dx = j % of.grid - i % of.grid + of.grid - 1;
        offset.push_back(static_cast<std::size_t>((dy * (2 * of.grid - 1) + dx) * of.heads));
      }
    }
  }
  std::size_t row(std::int64_t image, std::int64_t cell, std::int64_t head) const {
    return static_cast<std::size_t>(((image * shape.cells() + cell) * shape.heads + head) * shape.channels);
  }
  std::size_t bias(std::int64_t i, std::int64_t j, std::int64_t head) const {
    return offset[static_cast<std::size_t>(i * shape.cells() + j)] + static_cast<std::size_t>(head);
  }
  template <class F>  // f(image, head, cell)
  void each(const F& f) const {
    for (std::int64_t image = 0; image < shape.images; ++image) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        for (std::int64_t i = 0; i < shape.cells(); ++i) {
          f(image, head, i);
        }
      }
    }
  }
  float dot(const float* a, const float* b) const {
    float sum = 0;
    for (std::int64_t e = 0; e < shape.channels; ++e) {
      sum += a[e] * b[e];
    }
    return sum;
  }
  void add(float* to, const float* from, float by) const {
    for (std::int64_t e = 0; e < shape.channels; ++e) {
      to[e] += by * from[e];
    }
  }

  GridShape shape;
  std::vector<std::size_t> offset;  // of each pair, in the table's elements
};

}  // namespace

void grid_attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& bias, const GridShape& shape, Stream& s) {
  s.apply({.name = "images/grid_attention",
           .inputs = {q, k, v, bias},
           .outputs = {o, lse},
           .host = [shape](const HostArguments& a) {
             const Places at(shape);
             const float *const q0 = a.input<float>(0).data(), *const k0 = a.input<float>(1).data();
             const float *const v0 = a.input<float>(2).data(), *const b = a.input<float>(3).data();
             const auto out = a.output<float>(0), sums = a.output<float>(1);
             std::fill(out.begin(), out.end(), 0.0f);
             std::vector<float> score(static_cast<std::size_t>(shape.cells()));
             at.each([&](std::int64_t image, std::int64_t head, std::int64_t i) {
               const std::size_t own = at.row(image, i, head);
               float top = -INFINITY, sum = 0;
               for (std::int64_t j = 0; j < shape.cells(); ++j) {
                 float& x = score[static_cast<std::size_t>(j)];
                 x = shape.scale * at.dot(q0 + own, k0 + at.row(image, j, head)) + b[at.bias(i, j, head)];
                 top = std::max(top, x);
               }
               for (float& x : score) {
                 x = std::exp(x - top);
                 sum += x;
               }
               for (std::int64_t j = 0; j < shape.cells(); ++j) {
                 at.add(out.data() + own, v0 + at.row(image, j, head), score[static_cast<std::size_t>(j)] / sum);
               }
               sums[own / static_cast<std::size_t>(shape.channels)] = top + std::log(sum);
             });
           }});
}

void grid_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias,
                             const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                             const Tensor& bias, const GridShape& shape, Stream& s) {
  std::vector<Tensor> inputs = {q, k, v, bias, d_o, lse}, outputs = {dq, dk, dv};
  const bool learns = dbias.defined();
  if (learns) {
    inputs.push_back(dbias);
    outputs.push_back(dbias);
  }
  s.apply({.name = "images/grid_attention_backward",
           .inputs = inputs,
           .outputs = outputs,
           .host = [shape, learns](const HostArguments& a) {
             const Places at(shape);
             const float *const q0 = a.input<float>(0).data(), *const k0 = a.input<float>(1).data();
             const float *const v0 = a.input<float>(2).data(), *const b = a.input<float>(3).data();
             const float *const d0 = a.input<float>(4).data(), *const sums = a.input<float>(5).data();
             const auto to_q = a.output<float>(0), to_k = a.output<float>(1), to_v = a.output<float>(2);
             for (const auto& to : {to_q, to_k, to_v}) {
               std::fill(to.begin(), to.end(), 0.0f);
             }
             std::vector<double> grown(learns ? a.output<float>(3).size() : 0, 0.0);
             std::vector<float> weight(static_cast<std::size_t>(shape.cells())), slope(weight.size());
             at.each([&](std::int64_t image, std::int64_t head, std::int64_t i) {
               const std::size_t own = at.row(image, i, head);
               float mean = 0;  // of the gradients of the weights
               for (std::int64_t j = 0; j < shape.cells(); ++j) {
                 const std::size_t other = at.row(image, j, head), place = static_cast<std::size_t>(j);
                 const float x = shape.scale * at.dot(q0 + own, k0 + other) + b[at.bias(i, j, head)];
                 weight[place] = std::exp(x - sums[own / static_cast<std::size_t>(shape.channels)]);
                 slope[place] = at.dot(d0 + own, v0 + other);
                 mean += weight[place] * slope[place];
               }
               for (std::int64_t j = 0; j < shape.cells(); ++j) {
                 const std::size_t other = at.row(image, j, head), place = static_cast<std::size_t>(j);
                 const float d = weight[place] * (slope[place] - mean);
                 at.add(to_v.data() + other, d0 + own, weight[place]);
                 at.add(to_q.data() + own, k0 + other, d * shape.scale);
                 at.add(to_k.data() + other, q0 + own, d * shape.scale);
                 if (learns) {
                   grown[at.bias(i, j, head)] += static_cast<double>(d);
                 }
               }
             });
             for (std::size_t e = 0; e < grown.size(); ++e) {
               a.output<float>(3)[e] += static_cast<float>(grown[e]);
             }
           }});
}

}  // namespace orthant::images
