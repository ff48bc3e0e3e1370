// The CUDA device's memory, streams and graphs, on the CPU: streams run late and in many orders, so that what forgets
// to wait gets wrong numbers.
#include <gtest/gtest.h>
#include <orthant/device.h>
#include <orthant/ops.h>

#include <functional>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/simt/device_library.h"

namespace orthant::test::streams_test {
namespace {

constexpr std::int64_t n = 300;  // elements
constexpr std::uint64_t orders = 12;

class SimtStreams : public testing::Test {
 protected:
  // Runs `body` with streams at once, then in several orders; with the cache of memory and without.
  void in_all_orders(const std::function<void(Device&, Stream& main)>& body) {
    for (const char* cache : {"1", "0"}) {
      const WithVariable chosen("ORTHANT_CUDA_CACHE", cache);
      for (std::uint64_t seed = 0; seed <= orders; ++seed) {
        SCOPED_TRACE(fmt::format("cache {}, order {}", cache, seed));
        const auto device = make_device("simt", 1);
        const auto main = device->make_main_stream();
        library_.defer(seed);
        body(*device, *main);
        main->synchronize();
        library_.defer(0);
      }
    }
  }

  static Tensor filled(Device& device, Stream& stream, double value) {
    const Tensor t = device.empty(DType::f32, {n});
    stream.fill(t, value);
    return t;
  }
  static std::vector<float> values(Stream& stream, const Tensor& t) {
    std::vector<float> host(t.elements(), -1.0f);
    stream.download(host.data(), t);
    return host;
  }
  static std::vector<float> all(double value) { return std::vector<float>(n, static_cast<float>(value)); }

  SimtLibrary library_;
};

TEST_F(SimtStreams, CountsBytesExactly) {
  const auto device = make_device("simt", 1);
  EXPECT_EQ(device->memory().current_bytes, 0);
  Tensor a = device->empty(DType::f32, {10});
  {
    const Tensor b = device->empty(DType::u8, {3}), none = device->empty(DType::f32, {0});
    EXPECT_EQ(device->memory().current_bytes, 43);
    EXPECT_NE(none.data(), nullptr);
  }
  EXPECT_EQ(device->memory().current_bytes, 40);
  EXPECT_EQ(device->memory().peak_bytes, 43);
  device->reset_peak();
  EXPECT_EQ(device->memory().peak_bytes, 40);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0u);
}

TEST_F(SimtStreams, AFullDeviceSaysWhatIsAskedForAndInUse) {
  for (const char* cache : {"1", "0"}) {
    const WithVariable chosen("ORTHANT_CUDA_CACHE", cache);
    const auto device = make_device("simt", 1);
    const Tensor held = device->empty(DType::u8, {1000});
    try {
      device->empty(DType::u8, {std::int64_t{1} << 40});
      ADD_FAILURE() << "a terabyte was to be had";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("1099511627776 bytes asked for"), std::string::npos) << text;
      EXPECT_NE(text.find("1000 are in use"), std::string::npos) << text;
    }
    EXPECT_EQ(device->memory().current_bytes, 1000);
  }
}

// The main stream drops a tensor, and its memory goes to another, while a side stream still reads it.
TEST_F(SimtStreams, SideStreamsHoldWhatTheyUse) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream();
    const Tensor to = device.empty(DType::f32, {n});
    {
      const Tensor from = filled(device, main, 3);
      side->wait(main.record());
      side->copy(to, from);
    }
    const Tensor other = filled(device, main, 7);
    side->synchronize();
    EXPECT_EQ(values(*side, to), all(3));
    EXPECT_EQ(values(main, other), all(7));
  });
}

// Memory that the main stream has not done with goes to a tensor that a side stream writes.
TEST_F(SimtStreams, SideStreamsWaitForTheFormerUseOfMemory) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream();
    const Tensor to = device.empty(DType::f32, {n});
    {
      const Tensor from = filled(device, main, 3);
      main.copy(to, from);
    }
    const Tensor other = device.empty(DType::f32, {n});
    side->fill(other, 7);
    side->synchronize();
    EXPECT_EQ(values(main, to), all(3));
    EXPECT_EQ(values(*side, other), all(7));
  });
}

// An event of the main stream covers what was allocated before it; what comes later needs a later one.
TEST_F(SimtStreams, AnEventCoversWhatWasAllocatedBeforeItAlone) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream(), second = device.make_side_stream();
    const Tensor to = device.empty(DType::f32, {n});
    side->wait(main.record());
    const auto early = side->record();
    {
      const Tensor from = filled(device, main, 3);
      main.copy(to, from);
    }
    const Tensor other = device.empty(DType::f32, {n});
    second->wait(early);
    second->fill(other, 7);
    second->synchronize();
    EXPECT_EQ(values(main, to), all(3));
  });
}

TEST_F(SimtStreams, EventsOrderStreams) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream();
    const Tensor a = filled(device, main, 2), b = device.empty(DType::f32, {n}), c = device.empty(DType::f32, {n});
    const auto written = main.record();
    side->wait(written);
    side->copy(b, a);
    side->scale(b, 10);
    const auto scaled = side->record();
    main.wait(scaled);
    main.copy(c, b);
    EXPECT_EQ(values(main, c), all(20));
    EXPECT_TRUE(scaled->ready());
    EXPECT_TRUE(written->ready());
  });
}

TEST_F(SimtStreams, UploadTakesTheBytesBeforeItReturns) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream();
    const Tensor a = device.empty(DType::f32, {n}), b = device.empty(DType::f32, {n});
    std::vector<float> host = all(5);
    main.upload(a, host.data());
    side->upload(b, host.data());
    host = all(6);
    side->synchronize();
    EXPECT_EQ(values(main, a), all(5));
    EXPECT_EQ(values(*side, b), all(5));
  });
}

TEST_F(SimtStreams, ManyUploads) {
  in_all_orders([&](Device& device, Stream& main) {
    std::vector<Tensor> many;
    for (int i = 0; i < 40; ++i) {
      const std::vector<float> host = all(i);
      many.push_back(device.empty(DType::f32, {n}));
      main.upload(many.back(), host.data());
    }
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(values(main, many[i]), all(i));
    }
  });
}

// More than may be on its way at once: the oldest is waited for, and its pinned memory used again.
TEST_F(SimtStreams, AnUploadOfMoreThanIsPinned) {
  for (const std::uint64_t seed : {1}) {
    const auto device = make_device("simt", 1);
    const auto main = device->make_main_stream();
    library_.defer(seed);
    std::vector<std::int32_t> host(40'000'000), back(host.size());
    std::iota(host.begin(), host.end(), 0);
    const Tensor whole = device->empty(DType::i32, {40'000'000});
    main->upload(whole, host.data());
    main->download(back.data(), whole);
    EXPECT_TRUE(back == host);
    library_.defer(0);
  }
}

TEST_F(SimtStreams, HostWorkSeesWhatWasBeforeItAndIsSeenByWhatFollows) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream();
    const Tensor x = filled(device, main, 1), y = device.empty(DType::f32, {n});
    auto add_one = [&] {
      const auto view = device.host_view(x, Access::read_write);
      for (std::int64_t i = 0; i < n; ++i) {
        view->as<float>()[i] += 1;
      }
    };
    main.host(add_one);  // 2
    side->wait(main.record());
    side->scale(x, 3);    // 6
    side->host(add_one);  // 7
    side->scale(x, 2);    // 14
    main.wait(side->record());
    main.copy(y, x);
    EXPECT_EQ(values(main, y), all(14));
  });
}

// As a pipeline's send, which ends when the peer receives: what the caller does next.
TEST_F(SimtStreams, HostWorkOfASideStreamKeepsNobodyWaiting) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream();
    std::promise<void> received;
    const Tensor x = filled(device, main, 1);
    side->wait(main.record());
    side->host([arrived = received.get_future().share()] { arrived.wait(); });
    const auto sent = side->record();
    const Tensor y = filled(device, main, 2);
    EXPECT_EQ(values(main, y), all(2));
    EXPECT_FALSE(sent->ready());
    const auto second = device.make_side_stream();
    second->wait(sent);  // does not keep the caller either
    second->fill(x, 9);
    received.set_value();
    main.wait(second->record());
    EXPECT_EQ(values(main, x), all(9));
  });
}

TEST_F(SimtStreams, AFailureOfHostWorkIsRethrownBehindIt) {
  const auto device = make_device("simt", 1);
  const auto main = device->make_main_stream(), side = device->make_side_stream();
  const auto before = side->record();
  side->host([] { throw Error("the peer is gone"); });
  bool ran = false;
  std::shared_ptr<Event> behind;
  try {
    side->host([&] { ran = true; });
    behind = side->record();
  } catch (const Error&) {  // the thread was quicker
  }
  EXPECT_NO_THROW(before->wait());
  EXPECT_THROW(side->synchronize(), Error);
  EXPECT_THROW(side->fill(device->empty(DType::f32, {1}), 0), Error);
  EXPECT_FALSE(ran);
  if (behind != nullptr) {
    EXPECT_THROW(behind->wait(), Error);
    EXPECT_THROW(main->wait(behind), Error);
  }
}

TEST_F(SimtStreams, WaitsForEventsOfOtherDevices) {
  const auto cpu = make_device("cpu", 1);
  in_all_orders([&](Device& device, Stream& main) {
    const auto other = cpu->make_side_stream(), side = device.make_side_stream();
    std::promise<void> go;
    other->host([may = go.get_future().share()] { may.wait(); });
    const auto event = other->record();
    side->wait(event);
    const Tensor x = filled(device, main, 1);
    side->fill(x, 2);
    const auto after = side->record();
    EXPECT_FALSE(after->ready());
    go.set_value();
    main.wait(event);
    main.wait(after);
    EXPECT_EQ(values(main, x), all(2));
  });
}

TEST_F(SimtStreams, WhatRunsTogetherIsRecordedAndUpdated) {
  in_all_orders([&](Device& device, Stream& main) {
    const Tensor x = filled(device, main, 0);
    std::vector<Tensor> kept;
    for (int step = 0; step < 5; ++step) {
      const std::vector<float> host = all(step);
      main.together([&] {
        const Tensor passing = device.empty(DType::f32, {n});
        main.upload(passing, host.data());
        kept.push_back(device.empty(DType::f32, {n}));
        main.copy(kept.back(), passing);
        main.scale(kept.back(), static_cast<float>(step));
        main.add(x, kept.back());
        if (step == 3) {  // another sequence of operations
          main.scale(x, 2);
        }
      });
      const Tensor other = filled(device, main, -1);  // may have the memory of `passing`
    }
    EXPECT_EQ(values(main, x), all((0 + 1 + 4 + 9) * 2 + 16));
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(values(main, kept[step]), all(step * step));
    }
  });
}

TEST_F(SimtStreams, WhatIsRecordedMustNotWait) {
  const WithVariable cached("ORTHANT_CUDA_CACHE", "1");
  const auto device = make_device("simt", 1);
  const auto main = device->make_main_stream(), side = device->make_side_stream();
  const Tensor x = filled(*device, *main, 4), y = filled(*device, *main, 5);
  main->together([] {});  // the first is not recorded
  float value = 0;
  const std::vector<std::pair<const char*, std::function<void()>>> waiting = {
      {"download", [&] { main->download(&value, x.slice(0, {1})); }},
      {"synchronize", [&] { main->synchronize(); }},
      {"host work", [&] { main->host([] {}); }},
      {"host_view", [&] { device->host_view(x, Access::read); }},
      {"an event is recorded", [&] { main->record(); }},
      {"a launch on the stream's own handle", [&] { static_cast<void>(main->native()); }},
  };
  for (const auto& [what, call] : waiting) {
    try {
      main->together([&, &wait = call] {
        main->fill(x, 9);
        wait();
      });
      ADD_FAILURE() << what << " was recorded";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("{} inside together()", what)), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(values(*main, x), all(4)) << "after " << what;
  }
  main->together([&] { main->copy(x, y); });
  EXPECT_EQ(values(*main, x), all(5));
}

TEST_F(SimtStreams, NothingOfAStreamWaitsButWhatSaysSo) {
  const auto device = make_device("simt", 1);
  const auto main = device->make_main_stream(), side = device->make_side_stream();
  library_.defer(1);
  const std::int64_t before = library_.waits();
  const Tensor x = filled(*device, *main, 1);
  side->wait(main->record());
  side->scale(x, 2);
  main->wait(side->record());
  const std::vector<float> host = all(3);
  main->upload(device->empty(DType::f32, {n}), host.data());
  EXPECT_EQ(library_.waits() - before, 0);
  main->synchronize();
  EXPECT_EQ(library_.waits() - before, 1);
}

// Also where one is dropped, and used again, before the device has come to it.
TEST_F(SimtStreams, EventsAreUsedAgain) {
  in_all_orders([&](Device& device, Stream& main) {
    const auto side = device.make_side_stream(), second = device.make_side_stream();
    const auto round = [&](double value) {
      const Tensor x = filled(device, main, value), y = device.empty(DType::f32, {n}),
                   z = device.empty(DType::f32, {n});
      side->wait(main.record());
      side->copy(y, x);
      second->wait(side->record());
      second->copy(z, y);
      main.wait(second->record());
      EXPECT_EQ(values(main, z), all(value));
    };
    round(1);
    round(2);
    const std::int64_t before = library_.events();
    for (int i = 3; i < 9; ++i) {
      round(i);
    }
    EXPECT_LE(library_.events() - before, 4);  // of rounds that are still held; without a pool 30
  });
}

TEST_F(SimtStreams, TheNumberOnTheMachineMustBeOne) {
  const WithVariable wrong("ORTHANT_LOCAL_RANK", "two");
  EXPECT_THROW(make_device("simt", 1), Error);
}

TEST_F(SimtStreams, TheExpertsKernelsAreNamedOrNot) {
  for (const char* good : {"", "packed", "fused"}) {
    const WithVariable chosen("ORTHANT_CUDA_EXPERTS", good);
    EXPECT_NO_THROW(make_device("simt", 1));
  }
  const WithVariable wrong("ORTHANT_CUDA_EXPERTS", "cutlass");
  EXPECT_THROW(make_device("simt", 1), Error);
}

}  // namespace
}  // namespace orthant::test::streams_test
