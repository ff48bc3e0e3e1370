// OwnOperation: an operation that Orthant does not have, brought by a plugin and run by Stream::apply.
//
//   s.apply({.name = "hash_gate/choose",
//            .inputs = {token},
//            .outputs = {expert},
//            .host = [](const HostArguments& a) {
//              const auto token = a.input<std::int32_t>(0);
//              const auto expert = a.output<std::int32_t>(0);
//              ...
//            }});
//
// The function on the host is the operation's meaning, and every device can run it. The CPU runs it at once. A device
// with memory of its own runs it on copies, in the stream's order, which makes the host wait. `native` is the same
// operation for one kind of device, and there nothing waits. Neither may touch anything but what is declared.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <orthant/abi/operations.h>
#include <orthant/error.h>
#include <orthant/tensor.h>

namespace orthant {

class Stream;

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
}  // namespace detail

// The arguments of an operation as the host sees them, numbered as they were declared. They are valid during the call.
class HostArguments {
 public:
  struct Argument {
    std::byte* data = nullptr;
    DType dtype = DType::f32;
    Shape shape;
  };
  HostArguments(std::string operation, std::vector<Argument> inputs, std::vector<Argument> outputs)
      : operation_(std::move(operation)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  // T: float for f32, double for f64, std::int32_t, std::int64_t, std::uint8_t. Elements of bf16 have no type here:
  // cast them to f32 first (Stream::cast). Errors: Error if there is no such argument, or if it has another dtype.
  template <class T>
  std::span<const T> input(std::size_t i) const {
    return span_of<const T>(at(inputs_, i, "input"), detail::DTypeOf<T>::value, "input", i);
  }
  template <class T>
  std::span<T> output(std::size_t i) const {
    return span_of<T>(at(outputs_, i, "output"), detail::DTypeOf<T>::value, "output", i);
  }
  const Shape& input_shape(std::size_t i) const { return at(inputs_, i, "input").shape; }
  const Shape& output_shape(std::size_t i) const { return at(outputs_, i, "output").shape; }

 private:
  const Argument& at(const std::vector<Argument>& all, std::size_t i, const char* kind) const {
    require(i < all.size(), "{}: it has {} {}s, and asks for number {}", operation_, all.size(), kind, i);
    return all[i];
  }
  template <class T>
  std::span<T> span_of(const Argument& a, DType dtype, const char* kind, std::size_t i) const {
    require(a.dtype == dtype, "{}: {} {} is {}, read as {}", operation_, kind, i, name_of(a.dtype), name_of(dtype));
    return {reinterpret_cast<T*>(a.data), static_cast<std::size_t>(a.shape.elements())};
  }

  std::string operation_;
  std::vector<Argument> inputs_, outputs_;
};

struct OwnOperation {
  // For failures, profiles and the order of collectives: "PLUGIN/OPERATION".
  std::string name;
  // At most 12 tensors together, each defined. A tensor that is read and written stands in both lists; others do not
  // overlap.
  std::vector<Tensor> inputs = {}, outputs = {};
  // REQUIRES: it writes every element of each output that is not an input too; it touches nothing but its arguments;
  // the same inputs give the same bits; what it captures outlives the stream's work or is captured by value. Called on
  // any thread. What it throws fails the stream.
  std::function<void(const HostArguments&)> host;
  // Optional. Enqueues the same on `native_device`'s own handle, Stream::native() (a cudaStream_t), and waits for
  // nothing; Tensor::data() is an address there. Called instead of `host` on a device of this name.
  std::function<void(Stream&)> native = {};
  std::string native_device = "cuda";
};

}  // namespace orthant
