// Operation tests, written once and run on every device present.
//
// A case makes its inputs, calls operations and states what must come out (from an oracle in fp64):
//
//   TEST(Norm, Forward) {
//     on_every_device([](OpContext& c) {
//       const Input x = c.normal(DType::bf16, {5, 67}, 1.0);
//       const Tensor y = c.poisoned(DType::bf16, {5, 67});
//       c.stream().norm(y, ...);
//       c.expect("y", y, oracle::norm(x.values, ...), 1e-2);
//     });
//   }
//
// on_every_device runs it on "cpu" with one and two threads, on "guarded", on "bare" (a device of few operations of its
// own) and "composed" (operations made of others; both are in tests/device), on "simt" (the CUDA kernels, on the CPU:
// tests/simt), and on "cuda" where there is a GPU; twice on each. ORTHANT_TEST_DEVICES=cpu,cuda chooses. What `expect`
// and `same_bits` see must be bitwise equal in the second run, and for all thread counts of one device. Outputs start
// as NaN, so whatever is read before it is written shows.
#pragma once

#include <gtest/gtest.h>
#include <orthant/device.h>
#include <orthant/ops.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace orthant::test {

using Values = std::vector<double>;

// A tensor and the exact values it holds (after rounding to its dtype).
struct Input {
  Tensor tensor;
  Values values;
};

class OpContext {
 public:
  explicit OpContext(Device& device);

  Device& device() { return device_; }
  Stream& stream() { return *stream_; }

  // Inputs. Random ones differ from call to call but are the same on every device and in every run.
  Input input(DType dtype, Shape shape, const Values& values);
  Input normal(DType dtype, Shape shape, double deviation, double mean = 0);
  // The numbers of `normal`, drawn on the device, of which the host has none: for sizes at which it would take a
  // minute.
  Tensor drawn(DType dtype, Shape shape, double deviation);
  Input integers(DType dtype, Shape shape, std::int64_t low, std::int64_t high);  // in [low, high)
  Input constant(DType dtype, Shape shape, double value);
  // An output: NaN, or for integers a value that no operation expects.
  Tensor poisoned(DType dtype, Shape shape);

  Values values_of(const Tensor& tensor);

  // Each value must lie within tolerance * max(|expected|, root mean square of all expected) of what is expected;
  // NaN and infinity must be exactly where expected. Integers: exact.
  void expect(const std::string& name, const Tensor& got, const Values& expected, double tolerance);
  // Only remembers the bits for comparison between runs and thread counts.
  void same_bits(const std::string& name, const Tensor& got);

  const std::map<std::string, std::vector<std::byte>>& results() const { return results_; }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::uint64_t drawn_ = 0;
  std::map<std::string, std::vector<std::byte>> results_;
};

// What must give the same bits: the thread counts of one device too, or each by itself (library matrix products,
// which may split their sums among threads).
enum class SameBits { across_threads, per_thread_count };

// Runs `body` on every device present, twice, and compares the bits. See the top of this file.
void on_every_device(const std::function<void(OpContext&)>& body, SameBits same = SameBits::across_threads);

// d f / d x by central differences, for an f in fp64.
Values numeric_gradient(const std::function<double(const Values&)>& f, Values x, double step = 1e-5);

// sum a * b.
double inner(const Values& a, const Values& b);

// The value nearest to x in f32, bf16 (ties to even) or a storage type (the same, without infinity).
double rounded(DType dtype, double x);

}  // namespace orthant::test
