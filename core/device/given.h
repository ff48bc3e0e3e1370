// Arguments of operations as operations.inc writes them, for streams whose operations are made of that list.
#pragma once

#include <orthant/tensor.h>

#include <span>
#include <vector>

namespace orthant {

struct GivenTensor {
  Tensor tensor;  // may be undefined
  bool is_written = false;
};

inline GivenTensor written(const Tensor& t) {
  return {t, true};
}

// The tensor of an argument; undefined where it is no tensor.
inline const GivenTensor& given_tensor(const GivenTensor& t) {
  return t;
}
inline GivenTensor given_tensor(const Tensor& t) {
  return {t};
}
template <class T>
GivenTensor given_tensor(const T&) {
  return {};
}

// What a closure keeps of an argument.
inline const Tensor& kept(const GivenTensor& t) {
  return t.tensor;
}
template <class T>
std::vector<T> kept(std::span<const T> argument) {
  return {argument.begin(), argument.end()};
}
template <class T>
const T& kept(const T& argument) {
  return argument;
}

}  // namespace orthant
