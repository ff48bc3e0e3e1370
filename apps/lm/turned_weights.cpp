#include "apps/lm/turned_weights.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include <orthant/device.h>

namespace orthant {
namespace {

// to [k, n] <- from [n, k], by squares that stay in cache.
template <class T>
void turn(T* to, const T* from, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t square = 32;
#pragma omp parallel for
  for (std::int64_t j0 = 0; j0 < k; j0 += square) {
    for (std::int64_t i0 = 0; i0 < n; i0 += square) {
      for (std::int64_t j = j0; j < std::min(j0 + square, k); ++j) {
        for (std::int64_t i = i0; i < std::min(i0 + square, n); ++i) {
          to[j * n + i] = from[i * k + j];
        }
      }
    }
  }
}

// Matrices [n, k] in their own place, by way of `room` for one of them.
template <class T>
void turn_all(T* matrices, std::int64_t count, std::int64_t n, std::int64_t k, T* room) {
  for (T* matrix = matrices; matrix < matrices + count * n * k; matrix += n * k) {
    turn(room, matrix, n, k);
    std::memcpy(matrix, room, static_cast<std::size_t>(n * k) * sizeof(T));
  }
}

// weights: [E, n, k] in their own place.
void turn(const Tensor& weights, std::int64_t n, std::int64_t k, Device& device) {
  const std::size_t bytes = size_of(weights.dtype());
  require(bytes == 2 || bytes == 4, "weights of {} bytes an element are not turned", bytes);
  const Tensor room = device.empty(weights.dtype(), {n, k});
  if (bytes == 4) {
    turn_all(static_cast<std::uint32_t*>(weights.data()), weights.dim(0), n, k,
             static_cast<std::uint32_t*>(room.data()));
  } else {
    turn_all(static_cast<std::uint16_t*>(weights.data()), weights.dim(0), n, k,
             static_cast<std::uint16_t*>(room.data()));
  }
}

const std::byte* begin_of(const Tensor& t) {
  return static_cast<const std::byte*>(t.data());
}

const std::byte* end_of(const Tensor& t) {
  return begin_of(t) + t.bytes();
}

}  // namespace

TurnedWeights::Place TurnedWeights::meeting(const Tensor& t) {
  Place place = known_.upper_bound(begin_of(t));
  if (place != known_.begin() && end_of(std::prev(place)->second.weights) > begin_of(t)) {
    --place;
  }
  return place != known_.end() && place->first < end_of(t) ? place : known_.end();
}

bool TurnedWeights::lies_turned(const Tensor& b) {
  const Place place = meeting(b);
  if (place == known_.end()) {
    turn(b, b.dim(1), b.dim(2), device());
    known_.emplace(begin_of(b), Known{.weights = b});
    return true;
  }
  return place->second.turned && place->first == begin_of(b) && place->second.weights.shape() == b.shape();
}

void TurnedWeights::turn_back(const Tensor& t) {
  for (Place place = meeting(t); place != known_.end() && place->first < end_of(t); ++place) {
    Known& known = place->second;
    if (known.turned) {
      turn(known.weights, known.weights.dim(2), known.weights.dim(1), device());
      known.turned = false;
    }
  }
}

void TurnedWeights::forward(const char* /*name*/, std::initializer_list<Tensor> tensors, Operation operation) {
  for (const Tensor& t : tensors) {
    if (t.defined() && t.bytes() > 0) {
      turn_back(t);
    }
  }
  operation(*inner_);
}

void TurnedWeights::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  if (!how.transpose_b || b.bytes() == 0 || !lies_turned(b)) {
    ForwardingStream::grouped_gemm(c, a, b, offset, how);
    return;
  }
  how.transpose_b = false;
  inner_->grouped_gemm(c, a, b.view({b.dim(0), b.dim(2), b.dim(1)}), offset, how);
}

}  // namespace orthant
