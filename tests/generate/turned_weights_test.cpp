// Experts' weights lie turned in their own place: one copy, equal products, and whoever else reads them finds them as
// they were.
#include "apps/lm/turned_weights.h"

#include <gtest/gtest.h>

#include <orthant/device.h>

#include "apps/lm/engine.h"
#include "core/arch/links.h"
#include "parallel/local/thread_world.h"
#include "tests/support/paths.h"

namespace orthant::turned_weights_test {
namespace {

constexpr std::int64_t experts = 3, n = 37, k = 70, rows = 5;

std::vector<std::byte> bytes_of(Stream& s, const Tensor& t) {
  std::vector<std::byte> bytes(t.bytes());
  s.download(bytes.data(), t);
  s.synchronize();
  return bytes;
}

class Turned : public testing::TestWithParam<DType> {
 protected:
  Turned() : device_(make_cpu_device(2)), plain_(device_->make_main_stream()), turned_(device_->make_main_stream()) {
    a_ = filled({rows, k}, 1);
    b_ = filled({experts, n, k}, 2);
    offset_ = device_->empty(DType::i32, {experts + 1});
    const std::int32_t offsets[] = {0, 1, 1, rows};
    plain_->upload(offset_, offsets);
  }

  Tensor filled(Shape shape, std::uint64_t seed) {
    const Tensor wide = device_->empty(DType::f32, shape), made = device_->empty(GetParam(), shape);
    const std::int64_t columns = shape[shape.rank() - 1];
    plain_->init_normal(wide.view({wide.elements() / columns, columns}), RandomKey{.seed = seed}, 1, {0, 0, columns});
    plain_->cast(made, wide);
    return made;
  }
  std::vector<std::byte> product(Stream& s, const Tensor& b) {
    const Tensor c = device_->empty(GetParam(), {rows, n});
    s.grouped_gemm(c, a_, b, offset_, {.transpose_b = true});
    return bytes_of(s, c);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> plain_;
  TurnedWeights turned_;
  Tensor a_, b_, offset_;
};

TEST_P(Turned, TakeNoMemoryOfTheirOwn) {
  const std::vector<std::byte> expected = product(*plain_, b_), before = bytes_of(*plain_, b_);
  device_->reset_peak();
  const std::int64_t held = device_->memory().current_bytes;
  EXPECT_EQ(product(turned_, b_), expected);
  EXPECT_EQ(product(turned_, b_), expected);
  EXPECT_EQ(device_->memory().current_bytes, held);
  const std::int64_t matrix = n * k * static_cast<std::int64_t>(size_of(GetParam()));
  EXPECT_LT(device_->memory().peak_bytes, held + 2 * matrix);
  EXPECT_NE(bytes_of(*plain_, b_), before) << "they lie turned";
}

TEST_P(Turned, OtherOperationsFindThemAsTheyWere) {
  const std::vector<std::byte> expected = product(*plain_, b_), before = bytes_of(*plain_, b_);
  product(turned_, b_);
  const std::vector<std::byte> second = bytes_of(turned_, b_.rows(1, 1));  // which turns them back
  EXPECT_EQ(bytes_of(*plain_, b_), before);
  EXPECT_EQ(second, bytes_of(*plain_, b_.rows(1, 1)));
  EXPECT_EQ(product(turned_, b_), expected);
  EXPECT_EQ(bytes_of(*plain_, b_), before) << "they stay so";
}

TEST_P(Turned, PartsOfThemAreTheSameWeights) {
  const Tensor some = b_.rows(1, 2);
  const std::int32_t offsets[] = {0, 2, rows};
  const Tensor offset = device_->empty(DType::i32, {3});
  plain_->upload(offset, offsets);
  const auto of_some = [&](Stream& s) {
    const Tensor c = device_->empty(GetParam(), {rows, n});
    s.grouped_gemm(c, a_, some, offset, {.transpose_b = true});
    return bytes_of(s, c);
  };
  const std::vector<std::byte> expected = product(*plain_, b_), part = of_some(*plain_);
  EXPECT_EQ(of_some(turned_), part);
  EXPECT_EQ(product(turned_, b_), expected);
  EXPECT_EQ(of_some(turned_), part);
  const Tensor dx = device_->empty(GetParam(), {rows, k}), dx_plain = device_->empty(GetParam(), {rows, k});
  const Tensor dy = filled({rows, n}, 3);
  plain_->grouped_gemm(dx_plain, dy, b_, offset_, {});
  turned_.grouped_gemm(dx, dy, b_, offset_, {});
  EXPECT_EQ(bytes_of(turned_, dx), bytes_of(*plain_, dx_plain));
}

INSTANTIATE_TEST_SUITE_P(Types, Turned, testing::Values(DType::f32, DType::bf16),
                         [](const auto& one) { return name_of(one.param); });

// The whole model's memory, once it answers.
TEST(TurnedModel, HoldsItsWeightsOnce) {
  for (const char* name : {"mixtral", "deepseek_v3", "gpt_oss"}) {
    const OpenedModel model(paths::published_model(name), "test", {}, keys_of_plugin, kinds_of_plugin);
    std::int64_t weights = 0, routed = 0;
    for (const LayerSpecs& layer : parameter_table(model.config().settings)) {
      for (const ParamSpec& spec : layer.params) {
        weights += spec.global.elements() * 4;
        routed += spec.expert.has_value() ? spec.global.elements() * 4 : 0;
      }
    }
    run_threads(1, [&](Communicator& communicator) {
      Engine engine(model, {}, communicator);
      const std::int64_t held = engine.model().stream().device().memory().current_bytes;
      EXPECT_GE(held, weights) << name;
      EXPECT_LT(held, weights + routed / 2) << name;
    });
  }
}

}  // namespace
}  // namespace orthant::turned_weights_test
