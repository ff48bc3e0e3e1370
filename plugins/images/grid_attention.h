// Self-attention of the cells of a grid, with a learned bias for each head and offset (Dai et al., "CoAtNet", 2021,
// equation 3): softmax(q k' / sqrt(c) + b[dy, dx]) v. Scores are made on the host (GridShape's operations).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <orthant/model.h>
#include <orthant/part.h>

namespace orthant::images {

// `stem`.q, .k, .v [h c, d], .o [d, h c] and .offsets [(2 grid - 1)^2, h]; link.flops grows.
void add_grid_attention(Link& link, const Settings& s, std::int64_t grid, const std::string& stem);
std::unique_ptr<PartLayer> make_grid_attention(std::int64_t grid, const std::string& stem, const Parameters& parameters,
                                               const Plan& plan);

struct GridShape {
  std::int64_t images = 0, grid = 0, heads = 0, channels = 0;
  float scale = 1;
  std::int64_t cells() const { return grid * grid; }
  std::int64_t offsets() const { return (2 * grid - 1) * (2 * grid - 1); }
};

// q, k, v, o, d_o, dq, dk, dv f32 [images cells, heads c]; lse f32 [images cells, heads]; bias, dbias f32 [offsets,
// heads].
void grid_attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& bias, const GridShape& shape, Stream& s);
// dbias += ; undefined: nobody wants it.
void grid_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias,
                             const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                             const Tensor& bias, const GridShape& shape, Stream& s);

}  // namespace orthant::images
