// Stream::apply: an operation that a plugin brings, on every device.
#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/op_harness.h"

namespace orthant::test::own_operation_test {
namespace {

// y[i] = x[i] * 2 + i; sum += x.
OwnOperation doubling(const Tensor& y, const Tensor& sum, const Tensor& x) {
  return {.name = "test/doubling", .inputs = {x, sum}, .outputs = {y, sum}, .host = [](const HostArguments& a) {
            const auto in = a.input<float>(0);
            const auto before = a.input<double>(1);
            const auto out = a.output<float>(0);
            double all = before[0];
            for (std::size_t i = 0; i < in.size(); ++i) {
              out[i] = in[i] * 2 + static_cast<float>(i);
              all += static_cast<double>(in[i]);
            }
            a.output<double>(1)[0] = all;
          }};
}

TEST(OwnOperation, RunsInTheStreamsOrder) {
  on_every_device([](OpContext& c) {
    const Input x = c.input(DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
    const Tensor y = c.poisoned(DType::f32, {6}), sum = c.constant(DType::f64, {1}, 100).tensor;
    c.stream().scale(x.tensor, 10);
    c.stream().apply(doubling(y, sum, x.tensor));
    c.stream().scale(y, 0.5f);
    c.stream().apply(doubling(x.tensor, sum, y));  // what it wrote is read again
    c.expect("y", y, {10, 20.5, 31, 41.5, 52, 62.5}, 0);
    c.expect("x", x.tensor, {20, 42, 64, 86, 108, 130}, 0);
    c.expect("sum", sum, {100 + 210 + 217.5}, 0);
  });
}

TEST(OwnOperation, RunsOnASideStream) {
  on_every_device([](OpContext& c) {
    const Input x = c.input(DType::f32, {4}, {1, 2, 3, 4});
    const Tensor y = c.poisoned(DType::f32, {4}), sum = c.constant(DType::f64, {1}, 0).tensor;
    const std::unique_ptr<Stream> side = c.device().make_side_stream();
    side->wait(c.stream().record());
    side->apply(doubling(y, sum, x.tensor));
    side->scale(y, 2);
    c.stream().wait(side->record());
    c.stream().add(y, x.tensor);
    c.expect("y", y, {5, 12, 19, 26}, 0);
    side->synchronize();
  });
}

TEST(OwnOperation, IsToldWhatIsWrong) {
  on_every_device([](OpContext& c) {
    const Tensor x = c.constant(DType::f32, {4}, 1).tensor, y = c.poisoned(DType::f32, {4});
    const auto message = [&](OwnOperation operation) {
      return error_of([&] {
        c.stream().apply(operation);
        c.stream().synchronize();
      });
    };
    const auto nothing = [](const HostArguments&) {};
    EXPECT_NE(message({.name = "", .host = nothing}).find("needs a name"), std::string::npos);
    EXPECT_NE(message({.name = "test/x", .host = nullptr}).find("test/x: it has no function on the host"),
              std::string::npos);
    EXPECT_NE(message({.name = "test/x", .inputs = {x, {}}, .host = nothing}).find("test/x: input 1 is undefined"),
              std::string::npos);
    EXPECT_NE(message({.name = "test/x", .inputs = std::vector<Tensor>(13, x), .host = nothing}).find("13 tensors"),
              std::string::npos);
    EXPECT_NE(message({.name = "test/x",
                       .inputs = {x},
                       .outputs = {y},
                       .host = [](const HostArguments& a) { a.input<double>(0); }})
                  .find("test/x: input 0 is f32, read as f64"),
              std::string::npos);
    EXPECT_NE(message({.name = "test/x", .inputs = {x}, .host = [](const HostArguments& a) { a.output<float>(0); }})
                  .find("test/x: it has 0 outputs, and asks for number 0"),
              std::string::npos);
    EXPECT_NE(
        message({.name = "test/x", .host = [](const HostArguments&) { throw Error("a reason"); }}).find("a reason"),
        std::string::npos);
    EXPECT_NE(message({.name = "test/x", .host = [](const HostArguments&) { throw std::out_of_range("map::at"); }})
                  .find("test/x: map::at"),
              std::string::npos);
  });
}

// On a device with a function of its own, that runs instead; everywhere else the host's.
TEST(OwnOperation, NativeRunsOnItsDeviceAlone) {
  on_every_device([](OpContext& c) {
    bool native = false, host = false;
    c.stream().apply({.name = "test/native",
                      .host = [&](const HostArguments&) { host = true; },
                      .native =
                          [&](Stream& s) {
                            native = true;
                            EXPECT_NE(s.native(), nullptr);
                          },
                      .native_device = "simt"});
    c.stream().synchronize();
    EXPECT_EQ(native, c.device().name() == "simt");
    EXPECT_NE(native, host);
  });
}

// What is not declared is not readable.
TEST(OwnOperationDeathTest, UndeclaredMemoryIsGuarded) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto device = make_guarded_device(1);
  OpContext c(*device);
  const Tensor secret = c.constant(DType::f32, {4}, 1).tensor;
  EXPECT_DEATH(
      c.stream().apply({.name = "test/spy", .host = [&](const HostArguments&) { *secret.as<volatile float>() = 2; }}),
      "");
}

}  // namespace
}  // namespace orthant::test::own_operation_test
