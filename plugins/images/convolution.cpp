#include "convolution.h"

#include <algorithm>
#include <vector>

namespace orthant::images {
namespace {

// The row of pixel (y, x) of an image, among those of all.
std::int64_t row_of(std::int64_t image, std::int64_t y, std::int64_t x, std::int64_t grid, std::int64_t side) {
  const std::int64_t cell = (image * grid + y / side) * grid + x / side;
  return (cell * side + y % side) * side + x % side;
}

Tensor uploaded(const std::vector<std::int32_t>& numbers, Stream& s) {
  const Tensor t = s.device().empty(DType::i32, {static_cast<std::int64_t>(numbers.size())});
  s.upload(t, numbers.data());
  return t;
}

// rows of place k alone, i32 [to_pixels].
Tensor rows_of_place(const Tensor& rows, std::int64_t place, Stream& s) {
  const std::int64_t pixels = rows.elements() / places;
  const Tensor by_place = s.device().empty(DType::i32, {places, pixels, 1});
  s.swap_outer(by_place, rows.view({pixels, places, 1}));
  return by_place.rows(place, 1).view({pixels});
}

// f32 [pixels, c]: w[place] in every row.
Tensor repeated(const Tensor& w, std::int64_t place, std::int64_t pixels, Stream& s) {
  const Tensor number = s.device().empty(DType::i32, {pixels}), all = s.device().empty(DType::f32, {pixels, w.dim(1)});
  s.fill(number, static_cast<double>(place));
  s.embedding(all, w, number, false);
  return all;
}

// Of place k the rows of x, zero beyond the image.
Tensor looked_up(const Tensor& x, const Tensor& rows, Stream& s) {
  Tensor found = s.device().empty(x.dtype(), {rows.elements(), x.dim(1)});
  s.embedding(found, x, rows, false, 0);
  return found;
}

}  // namespace

Tensor neighbours(const Taps& taps, Stream& s) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(taps.to_pixels() * places));
  const std::int64_t to_size = taps.grid * taps.to_side(), from_size = taps.grid * taps.from_side;
  for (std::int64_t image = 0; image < taps.images; ++image) {
    for (std::int64_t y = 0; y < to_size; ++y) {
      for (std::int64_t x = 0; x < to_size; ++x) {
        const std::int64_t to = row_of(image, y, x, taps.grid, taps.to_side());
        for (std::int64_t k = 0; k < places; ++k) {
          const std::int64_t from_y = y * taps.stride + k / 3 - 1, from_x = x * taps.stride + k % 3 - 1;
          const bool inside = from_y >= 0 && from_y < from_size && from_x >= 0 && from_x < from_size;
          rows[static_cast<std::size_t>(to * places + k)] = static_cast<std::int32_t>(
              inside ? row_of(image, from_y, from_x, taps.grid, taps.from_side) : taps.from_pixels());
        }
      }
    }
  }
  return uploaded(rows, s);
}

Tensor image_of_pixels(const Taps& taps, Stream& s) {
  const std::int64_t each = taps.to_pixels() / taps.images;
  std::vector<std::int32_t> image;
  for (std::int64_t pixel = 0; pixel < taps.to_pixels(); ++pixel) {
    image.push_back(static_cast<std::int32_t>(pixel / each));
  }
  return uploaded(image, s);
}

void gather_places(const Tensor& columns, const Tensor& x, const Tensor& rows, Stream& s) {
  s.embedding(columns.view({rows.elements(), x.dim(1)}), x, rows, false, 0);
}

void gather_places_backward(const Tensor& dx, const Tensor& dcolumns, const Tensor& rows, Stream& s) {
  s.embedding_backward(dx, dcolumns.view({rows.elements(), dx.dim(1)}), rows, 0);
}

void depthwise(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& rows, Stream& s) {
  s.apply({.name = "images/depthwise",
           .inputs = {x, w, rows},
           .outputs = {y},
           .host = [pixels = x.dim(0), channels = static_cast<std::size_t>(x.dim(1))](const HostArguments& a) {
             const float *const from = a.input<float>(0).data(), *const weight = a.input<float>(1).data();
             const auto row = a.input<std::int32_t>(2);
             const auto to = a.output<float>(0);
             std::fill(to.begin(), to.end(), 0.0f);
             for (std::size_t at = 0; at < row.size(); ++at) {
               if (row[at] >= pixels) {
                 continue;
               }
               float* const out = to.data() + at / places * channels;
               const float* const in = from + static_cast<std::size_t>(row[at]) * channels;
               const float* const by = weight + at % places * channels;
               for (std::size_t c = 0; c < channels; ++c) {
                 out[c] += by[c] * in[c];
               }
             }
           }});
}

void depthwise_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                        const Tensor& rows, Stream& s) {
  std::vector<Tensor> inputs = {dy, x, w, rows}, outputs = {dx};
  if (dw.defined()) {
    inputs.push_back(dw);
    outputs.push_back(dw);
  }
  s.apply({.name = "images/depthwise_backward",
           .inputs = inputs,
           .outputs = outputs,
           .host = [pixels = x.dim(0), channels = static_cast<std::size_t>(x.dim(1)),
                    learns = dw.defined()](const HostArguments& a) {
             const float *const d = a.input<float>(0).data(), *const from = a.input<float>(1).data();
             const float* const weight = a.input<float>(2).data();
             const auto row = a.input<std::int32_t>(3);
             const auto to = a.output<float>(0);
             std::fill(to.begin(), to.end(), 0.0f);
             float* const grown = learns ? a.output<float>(1).data() : nullptr;
             for (std::size_t at = 0; at < row.size(); ++at) {
               if (row[at] >= pixels) {
                 continue;
               }
               const float* const out = d + at / places * channels;
               const std::size_t in = static_cast<std::size_t>(row[at]) * channels, by = at % places * channels;
               for (std::size_t c = 0; c < channels; ++c) {
                 to[in + c] += weight[by + c] * out[c];
               }
               for (std::size_t c = 0; learns && c < channels; ++c) {
                 grown[by + c] += from[in + c] * out[c];
               }
             }
           }});
}

void depthwise_by_rows(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& rows, Stream& s) {
  s.fill(y, 0);
  for (std::int64_t k = 0; k < places; ++k) {
    const Tensor found = looked_up(x, rows_of_place(rows, k, s), s);
    s.multiply(found, repeated(w, k, found.dim(0), s));
    s.add(y, found);
  }
}

void depthwise_by_rows_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                const Tensor& rows, Stream& s) {
  const Tensor ones = s.device().empty(DType::f32, {dy.dim(0), 1});
  s.fill(ones, 1);
  s.fill(dx, 0);
  for (std::int64_t k = 0; k < places; ++k) {
    const Tensor from = rows_of_place(rows, k, s), d = repeated(w, k, dy.dim(0), s);
    s.multiply(d, dy);
    s.embedding_backward(dx, d, from, 0);
    if (dw.defined()) {
      const Tensor found = looked_up(x, from, s);
      s.multiply(found, dy);
      s.gemm(dw.rows(k, 1), ones, found, {.transpose_a = true, .beta = 1});
    }
  }
}

}  // namespace orthant::images
