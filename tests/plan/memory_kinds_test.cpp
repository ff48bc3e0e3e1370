// What a device counts: tensors by kind, and never more than its limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <orthant/ops.h>

#include <thread>

#include "core/dry_run/meta_device.h"

namespace orthant::memory_kinds_test {
namespace {

class Counted : public testing::TestWithParam<const char*> {
 protected:
  const std::unique_ptr<Device> device_ =
      std::string(GetParam()) == "meta" ? std::make_unique<MetaDevice>() : make_device(GetParam(), 1);
  BytesByKind now() const { return device_->memory().current_kinds; }
};

TEST_P(Counted, TheInnermostScopeCounts) {
  const Tensor other = device_->empty(DType::u8, {1});
  const MemoryScope weights(*device_, MemoryKind::weights);
  const Tensor w = device_->empty(DType::u8, {10});
  Tensor g;
  {
    const MemoryScope gradients(*device_, MemoryKind::gradients);
    g = device_->empty(DType::u8, {100});
    const MemoryScope none(*device_, MemoryKind::other);
    EXPECT_EQ(device_->empty(DType::u8, {5}).storage()->kind(), MemoryKind::other);
  }
  const Tensor w2 = device_->empty(DType::u8, {20});
  EXPECT_EQ(now()[MemoryKind::weights], 30);
  EXPECT_EQ(now()[MemoryKind::gradients], 100);
  EXPECT_EQ(now()[MemoryKind::other], 1);
  g = {};
  EXPECT_EQ(now()[MemoryKind::gradients], 0);
  EXPECT_EQ(now().total(), device_->memory().current_bytes);
}

TEST_P(Counted, EachThreadHasScopesOfItsOwn) {
  const MemoryScope work(*device_, MemoryKind::work);
  Tensor elsewhere;
  std::thread([&] { elsewhere = device_->empty(DType::u8, {7}); }).join();
  EXPECT_EQ(elsewhere.storage()->kind(), MemoryKind::other);
  EXPECT_EQ(device_->empty(DType::u8, {7}).storage()->kind(), MemoryKind::work);
}

TEST_P(Counted, APeakIsRememberedWithItsKinds) {
  Tensor a, b;
  {
    const MemoryScope work(*device_, MemoryKind::work);
    a = device_->empty(DType::u8, {1000});
  }
  a.storage()->set_kind(MemoryKind::activations);
  {
    const MemoryScope exchange(*device_, MemoryKind::exchange);
    b = device_->empty(DType::u8, {500});
  }
  a = {};
  b.storage()->set_kind(MemoryKind::offload);
  const MemoryUse use = device_->memory();
  EXPECT_EQ(use.peak_bytes, 1500);
  EXPECT_EQ(use.peak_kinds[MemoryKind::activations], 1000);
  EXPECT_EQ(use.peak_kinds[MemoryKind::exchange], 500);
  EXPECT_EQ(use.peak_kinds.total(), 1500);
  EXPECT_EQ(use.current_kinds[MemoryKind::offload], 500);
  device_->reset_peak();
  EXPECT_EQ(device_->memory().peak_kinds, device_->memory().current_kinds);
}

TEST_P(Counted, TheLimitIsReachedAndNeverExceeded) {
  device_->limit_memory(1000);
  const Tensor most = device_->empty(DType::u8, {600});
  try {
    const MemoryScope work(*device_, MemoryKind::work);
    device_->empty(DType::u8, {401});
    FAIL() << "the limit was exceeded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("memory.limit: a tensor of 401 bytes (work)"));
    EXPECT_THAT(error.what(), testing::HasSubstr("600 bytes are in use: other 600"));
  }
  EXPECT_NO_THROW(device_->empty(DType::u8, {400}));
  EXPECT_NO_THROW(device_->host_empty(DType::u8, {4000})) << "the host's memory is another";
  EXPECT_EQ(device_->memory().peak_bytes, 1000);
  device_->limit_memory(0);
  EXPECT_NO_THROW(device_->empty(DType::u8, {2000}));
}

TEST_P(Counted, TheHostsMemoryHasALimitOfItsOwn) {
  device_->limit_host_memory(1000);
  const Tensor most = device_->host_empty(DType::u8, {600});
  try {
    device_->host_empty(DType::u8, {401});
    FAIL() << "the limit was exceeded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("memory.host_limit: a tensor of 401 bytes (other)"));
    EXPECT_THAT(error.what(), testing::HasSubstr("in the host's memory; 600 bytes are in use"));
  }
  EXPECT_NO_THROW(device_->host_empty(DType::u8, {400}));
  EXPECT_NO_THROW(device_->empty(DType::u8, {4000}));
}

INSTANTIATE_TEST_SUITE_P(Devices, Counted, testing::Values("cpu", "guarded", "late", "meta"),
                         [](const auto& d) { return std::string(d.param); });

// --- side streams of a plan, as late as they may be

class LateSides : public testing::Test {
 protected:
  // A tensor that only the side stream's work still has.
  void work_of(Stream& side, std::int64_t bytes) { side.scale(device_.empty(DType::f32, {bytes / 4}), 2); }
  std::int64_t held() const { return device_.memory().current_bytes; }

  MetaDevice device_{Sides::as_late_as_may_be};
  const std::unique_ptr<Stream> main_ = device_.make_main_stream(), a_ = device_.make_side_stream(),
                                b_ = device_.make_side_stream();
};

TEST_F(LateSides, HoldTensorsUntilTheMainStreamWaits) {
  work_of(*a_, 4000);
  const auto event = a_->record();
  work_of(*a_, 400);
  EXPECT_EQ(held(), 4400);
  main_->wait(event);
  EXPECT_EQ(held(), 400) << "what came before the event is done";
  a_->synchronize();
  EXPECT_EQ(held(), 0);
  work_of(*main_, 4000);
  EXPECT_EQ(held(), 0) << "the main stream works in the program's order";
}

TEST_F(LateSides, AWaitReachesThroughOtherStreams) {
  work_of(*a_, 4000);
  b_->wait(a_->record());
  work_of(*b_, 400);
  EXPECT_EQ(held(), 4400) << "one side stream waits for another, and nobody for either";
  main_->wait(b_->record());
  EXPECT_EQ(held(), 0);
}

TEST_F(LateSides, ASumHoldsWhatComesBehindItToo) {
  MetaDevice device(Sides::sums_late);
  const auto main = device.make_main_stream(), side = device.make_side_stream();
  side->scale(device.empty(DType::f32, {1000}), 2);
  EXPECT_EQ(device.memory().current_bytes, 0) << "nothing waits";
  dynamic_cast<MetaStream&>(*side).sums({device.empty(DType::f32, {1000})});
  side->scale(device.empty(DType::f32, {100}), 2);
  EXPECT_EQ(device.memory().current_bytes, 4400);
  main->wait(side->record());
  EXPECT_EQ(device.memory().current_bytes, 0);
  dynamic_cast<MetaStream&>(*main).sums({device.empty(DType::f32, {1000})});
  EXPECT_EQ(device.memory().current_bytes, 0) << "the main stream works in the program's order";
}

TEST_F(LateSides, WorkAtOnceHoldsNothing) {
  MetaDevice device;
  const auto side = device.make_side_stream();
  side->scale(device.empty(DType::f32, {1000}), 2);
  EXPECT_EQ(device.memory().current_bytes, 0);
}

}  // namespace
}  // namespace orthant::memory_kinds_test
