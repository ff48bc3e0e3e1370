// Operations that a device leaves to the host: their results, their place in the device's order, what is said of them.
// The list of operations runs on the same device (tests/ops, tests/router, tests/experts).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/ops.h>

#include "tests/support/parity.h"

namespace orthant::fallback_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Bare : public ::testing::Test {
 protected:
  Tensor tensor(const std::vector<float>& values) {
    const Tensor t = device_->empty(DType::f32, {static_cast<std::int64_t>(values.size())});
    stream_->upload(t, values.data());
    return t;
  }
  std::vector<float> values(const Tensor& t) {
    std::vector<float> all(static_cast<std::size_t>(t.elements()));
    stream_->download(all.data(), t);
    return all;
  }

  std::unique_ptr<Device> device_ = make_device("bare", 1);
  std::unique_ptr<Stream> stream_ = device_->make_main_stream();
};

TEST_F(Bare, SaysWhatFallsBack) {
  const std::string said = device_->kernels(DType::f32) + ",";
  for (const char* name : {" gemm,", " attention,", " gate,", " fill,", " adamw_replay,", " clip_factor,"}) {
    EXPECT_THAT(said, HasSubstr(name));
  }
  for (const char* name : {" copy,", " scale,", "upload", "host_view"}) {
    EXPECT_THAT(said, Not(HasSubstr(name)));
  }
}

// The device's scale, the host's add, the device's copy, the host's multiply: each needs what the one before has left.
TEST_F(Bare, HostAndDeviceTakeTurnsInOneOrder) {
  const Tensor x = tensor({1, 2, 3}), y = tensor({10, 20, 30}), z = tensor({0, 0, 0});
  stream_->scale(x, 2);
  stream_->add(y, x);
  stream_->copy(z, y);
  stream_->multiply(z, x);
  stream_->scale(y, -1);
  EXPECT_EQ(values(z), (std::vector<float>{24, 96, 216}));
  EXPECT_EQ(values(y), (std::vector<float>{-12, -24, -36}));
  EXPECT_EQ(values(x), (std::vector<float>{2, 4, 6}));
}

TEST_F(Bare, AnotherStreamWaitsForTheHostsPart) {
  const auto side = device_->make_side_stream();
  const Tensor x = tensor({1, 2}), y = tensor({0, 0});
  for (int i = 0; i < 20; ++i) {
    stream_->add(x, x);
  }
  side->wait(stream_->record());
  side->copy(y, x);
  side->synchronize();
  EXPECT_EQ(values(y), (std::vector<float>{1 << 20, 2 << 20}));
}

// master and weight are one tensor.
TEST_F(Bare, ATensorThatStandsTwiceIsOne) {
  const Tensor master = tensor({1, 2}), m = tensor({0, 0}), grad = tensor({1, 1}), factor = tensor({1});
  stream_->sgd(master, master, m, grad, factor, {.lr = 0.5f, .momentum = 0, .weight_decay = 0});
  EXPECT_EQ(values(master), (std::vector<float>{0.5f, 1.5f}));
  EXPECT_EQ(values(m), (std::vector<float>{1, 1}));
}

// Rows behind the last expert's stay as they are.
TEST_F(Bare, WhatAnOperationLeavesStays) {
  const Tensor c = tensor({7, 7, 7}), a = tensor({1, 2, 3}), b = tensor({5});
  const Tensor offset = device_->empty(DType::i32, {2});
  const std::int32_t two[] = {0, 2};
  stream_->upload(offset, two);
  stream_->grouped_gemm(c.view({3, 1}), a.view({3, 1}), b.view({1, 1, 1}), offset, {});
  EXPECT_EQ(values(c), (std::vector<float>{5, 10, 7}));
}

TEST_F(Bare, AnOperationOfAPluginsOwn) {
  const Tensor x = tensor({1, 2}), y = tensor({0, 0});
  stream_->scale(x, 3);
  stream_->apply({.name = "test/add_one", .inputs = {x}, .outputs = {y}, .host = [](const HostArguments& a) {
                    std::transform(a.input<float>(0).begin(), a.input<float>(0).end(), a.output<float>(0).begin(),
                                   [](float v) { return v + 1; });
                  }});
  EXPECT_EQ(values(y), (std::vector<float>{4, 7}));
}

TEST_F(Bare, RefusesMemoryOfTheHost) {
  const Tensor x = tensor({1, 2}), there = device_->host_empty(DType::f32, {2});
  EXPECT_THROW(stream_->add(x, there), Error);
}

TEST_F(Bare, IsToldWhatIsWrongWhereItAsks) {
  const Tensor y = tensor({1, 2});
  try {
    stream_->add(y, tensor({1, 2, 3}));
    FAIL() << "a wrong shape was taken";
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("add: "));
  }
  stream_->add(y, y);
  EXPECT_EQ(values(y), (std::vector<float>{2, 4}));
}

class TrainsOnBare : public ::testing::TestWithParam<test::Model> {};
INSTANTIATE_TEST_SUITE_P(
    Models, TrainsOnBare,
    ::testing::Values(test::Model{"mixture", {}},
                      test::Model{"bf16_capacity_dropout",
                                  {R"(run.dtype="bf16")", "moe.capacity_factor=1.0", "model.dropout=0.1"}},
                      test::Model{"bias_muon_sinks",
                                  {R"(moe.router="bias")", R"(moe.score="sigmoid")", "moe.bias_update_rate=0.05",
                                   R"(optimizer.name="muon")", "model.attention_sinks=true"}}),
    [](const auto& of) { return of.param.name; });

TEST_P(TrainsOnBare, WithTheBitsOfTheCpu) {
  const test::Overrides& model = GetParam().overrides;
  test::expect_same_bits(test::reference_of(test::joined(model, {R"(run.device="bare")"}), 4),
                         test::reference_of(model, 4));
}

}  // namespace
}  // namespace orthant::fallback_test
