// Tensors in the host's memory, and the copies between them and the device's.
#include <algorithm>

#include "core/dry_run/meta_device.h"
#include "tests/support/op_harness.h"

namespace orthant::test::host_memory_test {
namespace {

TEST(HostMemory, CopiesOfAnyTypeAndSize) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : all_dtypes) {
      for (const std::int64_t n : {0, 1, 7, 1000, 9001}) {
        const Input x = c.integers(dtype, {n}, 0, 100);
        const Tensor host = c.device().host_empty(dtype, {n}), y = c.poisoned(dtype, {n});
        EXPECT_TRUE(host.on_host() && host.slice(0, {0}).on_host() && !x.tensor.on_host());
        c.stream().download(host, x.tensor);
        c.stream().upload(y, host);
        c.expect(fmt::format("{} {}", name_of(dtype), n), y, x.values, 0);
        c.stream().synchronize();
        const auto seen = c.device().host_view(host, Access::read),
                   there = c.device().host_view(x.tensor, Access::read);
        EXPECT_EQ(std::memcmp(seen->data(), there->data(), seen->bytes()), 0);
      }
    }
  });
}

TEST(HostMemory, TheHostWritesWhatIsUploaded) {
  on_every_device([](OpContext& c) {
    const Tensor host = c.device().host_empty(DType::f32, {100}), y = c.poisoned(DType::f32, {100});
    {
      const auto view = c.device().host_view(host, Access::write);
      std::fill_n(view->as<float>(), 100, 2.5f);
    }
    c.stream().upload(y.rows(10, 80), host.slice(10, {80}));
    c.expect("y", y.rows(10, 80), Values(80, 2.5), 0);
  });
}

// Main to side to host to side to main, each waiting for the one before by an event; the tensors are dropped at once.
TEST(HostMemory, SideStreamsCopyInOrder) {
  on_every_device([](OpContext& c) {
    const auto out = c.device().make_side_stream(), in = c.device().make_side_stream();
    for (int round = 0; round < 20; ++round) {
      Tensor back;
      {
        Tensor x = c.device().empty(DType::f32, {3000});
        c.stream().fill(x, round);
        Tensor host = c.device().host_empty(DType::f32, {3000});
        out->wait(c.stream().record());
        out->download(host, x);
        x = {};
        c.stream().fill(c.device().empty(DType::f32, {3000}), -1);  // may get x's memory
        back = c.device().empty(DType::f32, {3000});
        in->wait(out->record());
        in->upload(back, host);
      }
      const Tensor other = c.device().host_empty(DType::f32, {3000});  // must not get that of `host`
      const auto view = c.device().host_view(other, Access::write);
      std::fill_n(view->as<float>(), 3000, -2.0f);
      c.stream().wait(in->record());
      c.stream().scale(back, 2);
      c.expect("round", back, Values(3000, 2.0 * round), 0);
    }
  });
}

// A tensor is dropped, and its memory taken again by the host, while the main stream's copies are on their way.
TEST(HostMemory, IsNotHandedOutWhileACopyIsOnItsWay) {
  on_every_device([](OpContext& c) {
    const Tensor y = c.poisoned(DType::f32, {5000});
    for (int round = 0; round < 20; ++round) {
      Tensor host = c.device().host_empty(DType::f32, {5000});
      {
        const auto view = c.device().host_view(host, Access::write);
        std::fill_n(view->as<float>(), 5000, static_cast<float>(round));
      }
      c.stream().upload(y, host);
      host = {};
      const Tensor again = c.device().host_empty(DType::f32, {5000});
      const auto view = c.device().host_view(again, Access::write);
      std::fill_n(view->as<float>(), 5000, -1.0f);
      c.expect("y", y, Values(5000, round), 0);
    }
  });
}

TEST(HostMemory, IsCountedApart) {
  on_every_device([](OpContext& c) {
    const MemoryUse before = c.device().memory();
    EXPECT_EQ(c.device().host_memory().current_bytes, 0);
    {
      const Tensor host = c.device().host_empty(DType::f32, {1000});
      EXPECT_EQ(c.device().host_memory().current_bytes, 4000);
      EXPECT_EQ(c.device().memory().current_bytes, before.current_bytes);
    }
    EXPECT_EQ(c.device().host_memory().current_bytes, 0);
    EXPECT_EQ(c.device().host_memory().peak_bytes, 4000);
    c.device().reset_peak();
    EXPECT_EQ(c.device().host_memory().peak_bytes, 0);
  });
}

TEST(HostMemory, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const Tensor host = c.device().host_empty(DType::f32, {4}), x = c.poisoned(DType::f32, {4});
    EXPECT_THROW(c.stream().upload(x, x), Error);
    EXPECT_THROW(c.stream().download(host, host), Error);
    EXPECT_THROW(c.stream().download(x, host), Error);
    EXPECT_THROW(c.stream().upload(x.rows(0, 2), host), Error);
    EXPECT_THROW(c.stream().upload(c.poisoned(DType::i32, {4}), host), Error);
  });
  const auto guarded = make_guarded_device(1);
  const auto stream = guarded->make_main_stream();
  EXPECT_THROW(stream->fill(guarded->host_empty(DType::f32, {4}), 0), Error);
}

TEST(HostMemory, OfTheMetaDeviceHoldsCountsOnly) {
  MetaDevice device;
  const auto stream = device.make_main_stream();
  const Tensor x = device.empty(DType::i32, {3}), y = device.empty(DType::i32, {3});
  const std::vector<std::int32_t> host = {1, 2, 3};
  stream->upload(x, host.data());
  const Tensor away = device.host_empty(DType::i32, {3});
  stream->download(away, x);
  stream->upload(y, away);
  std::vector<std::int32_t> back(3);
  stream->download(back.data(), y);
  EXPECT_EQ(back, host);
  EXPECT_EQ(device.memory().current_bytes, 24);
  EXPECT_EQ(device.host_memory().current_bytes, 12);
}

struct Waits {
  Late late;
  bool main, side;
};

// x to y on a side stream, y to z on the main one: true if z has what x was given.
bool copies_in_order(const Waits& waits) {
  const auto device = make_late_device(waits.late, 1);
  const auto main = device->make_main_stream(), side = device->make_side_stream();
  const Tensor x = device->empty(DType::f32, {4}), y = device->empty(DType::f32, {4}),
               z = device->empty(DType::f32, {4});
  for (const Tensor& t : {x, y, z}) {
    main->fill(t, 0);
  }
  main->synchronize();
  main->fill(x, 1);
  if (waits.side) {
    side->wait(main->record());
  }
  side->copy(y, x);
  if (waits.main) {
    main->wait(side->record());
  }
  main->copy(z, y);
  std::vector<float> got(4);
  main->download(got.data(), z);
  return got[0] == 1.0f;
}

TEST(LateDevice, TheResultIsRightWhereStreamsWait) {
  for (const Late late : {Late::main_streams, Late::side_streams}) {
    EXPECT_TRUE(copies_in_order({.late = late, .main = true, .side = true}));
  }
}

// What the late devices are for. A busy machine may stop this thread for longer than a stream is late: then the result
// is right by chance, and another round is asked.
TEST(LateDevice, AMissingWaitIsSeen) {
  for (const Waits& waits : {Waits{.late = Late::main_streams, .main = true, .side = false},
                             Waits{.late = Late::side_streams, .main = false, .side = true}}) {
    int rounds = 0;
    while (rounds < 500 && copies_in_order(waits)) {
      ++rounds;
    }
    EXPECT_LT(rounds, 500) << waits.main << waits.side;
  }
}

}  // namespace
}  // namespace orthant::test::host_memory_test
