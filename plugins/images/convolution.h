// Convolutions over the pixels of images that are cut into cells, by operations that every device has.
//
// A token is a cell of side r; its row [r r c] holds its pixels one after another, c channels each. So a map of
// features [T, r r c] is also [pixels, c]: products of rows are convolutions of 1 x 1, and a norm of rows is one of
// pixels. What looks around a pixel needs its neighbours' rows, which Taps names:
//
//   stem       3 x 3 of few channels: neighbours side by side (Stream::embedding looks rows up), then one product
//   depthwise  3 x 3 of each channel by itself: on the CPU one loop over pixels, whose inner one is over channels;
//              elsewhere products of rows that are looked up, nine times
//
// Beyond the image lies zero. Stride 2 halves the side of a cell. Sums run in the order of the nine places.
#pragma once

#include <cstdint>

#include <orthant/ops.h>
#include <orthant/part.h>

namespace orthant::images {

inline constexpr std::int64_t places = 9;

// Which pixels the nine places of each output pixel are: rows of a map of `images` images, of grid x grid cells.
struct Taps {
  std::int64_t images = 0, grid = 0, from_side = 0, stride = 1;
  std::int64_t to_side() const { return from_side / stride; }
  std::int64_t cells() const { return images * grid * grid; }
  std::int64_t from_pixels() const { return cells() * from_side * from_side; }
  std::int64_t to_pixels() const { return cells() * to_side() * to_side(); }
};

// i32 [to_pixels * 9]: the row of each place, output pixel by output pixel; from_pixels, no row, beyond the image.
Tensor neighbours(const Taps& taps, Stream& s);
// i32 [to_pixels]: the image of each output pixel.
Tensor image_of_pixels(const Taps& taps, Stream& s);

// columns f [to_pixels, 9 c] <- x f [from_pixels, c]; its adjoint: dx f32 +=.
void gather_places(const Tensor& columns, const Tensor& x, const Tensor& rows, Stream& s);
void gather_places_backward(const Tensor& dx, const Tensor& dcolumns, const Tensor& rows, Stream& s);

// y f32 [to_pixels, c] = the sum over the places k of w[k] * x[rows[p, k]]; w f32 [9, c], x f32 [from_pixels, c].
void depthwise(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& rows, Stream& s);
// dx f32 = (written whole); dw f32 +=, undefined: nobody wants it.
void depthwise_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                        const Tensor& rows, Stream& s);
// The same by looked-up rows and elementwise products, for devices that would have to ask the host.
void depthwise_by_rows(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& rows, Stream& s);
void depthwise_by_rows_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                const Tensor& rows, Stream& s);

}  // namespace orthant::images
