// Memory, order and elementwise operations.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/op_harness.h"

namespace orthant::test::memory_test {
namespace {

const std::int64_t sizes[] = {0, 1, 7, 64, 1000, 70001};

TEST(Memory, CopyFillUploadDownload) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : all_dtypes) {
      for (const std::int64_t n : sizes) {
        const std::string name = fmt::format("{} {}", name_of(dtype), n);
        const Input x = c.integers(dtype, {n}, 0, 100);
        const Tensor y = c.poisoned(dtype, {n}), z = c.poisoned(dtype, {n});
        c.stream().copy(y, x.tensor);
        c.expect("copy " + name, y, x.values, 0);
        c.stream().fill(z, 3);
        c.expect("fill " + name, z, Values(static_cast<std::size_t>(n), 3.0), 0);
        std::vector<std::byte> bytes(x.tensor.bytes() + 1);
        c.stream().download(bytes.data(), x.tensor);
        c.stream().upload(z, bytes.data());
        c.expect("upload " + name, z, x.values, 0);
      }
    }
  });
}

TEST(Memory, Cast) {
  on_every_device([](OpContext& c) {
    for (const DType from : {DType::f32, DType::bf16, DType::f64}) {
      for (const DType to : {DType::f32, DType::bf16, DType::f64}) {
        for (const std::int64_t n : sizes) {
          const Input x = c.normal(from, {n}, 3);
          const Tensor y = c.poisoned(to, {n});
          c.stream().cast(y, x.tensor);
          Values expected = x.values;
          for (double& v : expected) {
            v = rounded(to, v);
          }
          c.expect(fmt::format("{} to {} {}", name_of(from), name_of(to), n), y, expected, 0);
        }
      }
    }
  });
}

TEST(Memory, CastRoundsToNearestEvenAndKeepsSpecialValues) {
  const double infinity = std::numeric_limits<double>::infinity();
  // 1 + 1/256 lies halfway between the bf16 values 1 and 1 + 1/128; 1 + 3/256 halfway above.
  const Values x = {1 + 1.0 / 256, 1 + 3.0 / 256, -1 - 1.0 / 256, 1 + 1.0 / 256 + 1.0 / 65536, 0.0, infinity, -infinity,
                    std::nan(""),  3.4e38,        1e-40};
  const Values expected = {1, 1 + 1.0 / 64, -1, 1 + 1.0 / 128, 0.0, infinity, -infinity, std::nan(""), infinity, 1e-40};
  on_every_device([&](OpContext& c) {
    const Input in = c.input(DType::f32, {10}, x);
    const Tensor y = c.poisoned(DType::bf16, {10});
    c.stream().cast(y, in.tensor);
    c.expect("y", y, expected, 1e-3);  // the subnormal is far below the tolerance
    for (const int exact : {0, 1, 2, 3}) {
      EXPECT_EQ(c.values_of(y)[exact], expected[exact]) << exact;
    }
  });
}

TEST(Memory, CopyRows) {
  on_every_device([](OpContext& c) {
    const Input x = c.normal(DType::f32, {5, 3, 2}, 1), y = c.normal(DType::f32, {4, 3, 2}, 1);
    const RowRun runs[] = {{3, 0, 2}, {0, 3, 1}, {2, 2, 0}};
    c.stream().copy_rows(y.tensor, x.tensor, runs);
    Values expected = y.values;
    std::copy_n(x.values.begin() + 18, 12, expected.begin());
    std::copy_n(x.values.begin(), 6, expected.begin() + 18);
    c.expect("y", y.tensor, expected, 0);
    const RowRun outside[] = {{4, 0, 2}};
    EXPECT_THROW(c.stream().copy_rows(y.tensor, x.tensor, outside), Error);
  });
}

TEST(Elementwise, AddAndScale) {
  on_every_device([](OpContext& c) {
    for (const DType to : {DType::f32, DType::bf16}) {
      for (const DType from : {DType::f32, DType::bf16}) {
        for (const std::int64_t n : sizes) {
          const std::string name = fmt::format("{} {} {}", name_of(to), name_of(from), n);
          const Input x = c.normal(from, {n}, 1), y = c.normal(to, {n}, 1);
          c.stream().add(y.tensor, x.tensor);
          Values expected = y.values;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            expected[i] = rounded(to, expected[i] + x.values[i]);
          }
          c.expect("add " + name, y.tensor, expected, to == DType::f32 ? 1e-7 : 0.004);
          c.stream().scale(x.tensor, -0.3f);
          Values scaled = x.values;
          for (double& v : scaled) {
            v *= -0.3;
          }
          c.expect("scale " + name, x.tensor, scaled, from == DType::f32 ? 1e-6 : 0.004);
        }
      }
    }
  });
}

TEST(Elementwise, Multiply) {
  on_every_device([](OpContext& c) {
    for (const DType to : {DType::f32, DType::bf16}) {
      for (const DType from : {DType::f32, DType::bf16}) {
        for (const std::int64_t n : sizes) {
          const Input x = c.normal(from, {n}, 1), y = c.normal(to, {n}, 1);
          c.stream().multiply(y.tensor, x.tensor);
          Values expected = y.values;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            expected[i] *= x.values[i];
          }
          c.expect(fmt::format("multiply {} {} {}", name_of(to), name_of(from), n), y.tensor, expected,
                   to == DType::f32 ? 1e-6 : 0.005);
        }
      }
    }
  });
}

TEST(Elementwise, Sums) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t n : sizes) {
        const Input x = c.normal(dtype, {n}, 1, 0.5);
        const Input out = c.input(DType::f64, {1}, {10}), squares = c.input(DType::f64, {1}, {20});
        c.stream().sum(out.tensor, x.tensor);
        c.stream().sum_squares(squares.tensor, x.tensor);
        double sum = 10;
        for (const double v : x.values) {
          sum += v;
        }
        c.expect(fmt::format("sum {} {}", name_of(dtype), n), out.tensor, {sum}, 1e-12);
        c.expect(fmt::format("squares {} {}", name_of(dtype), n), squares.tensor, {20 + inner(x.values, x.values)},
                 1e-12);
      }
    }
  });
}

// 1e16 + 1 is 1e16: another order has another sum.
TEST(Elementwise, SumsOfSumsKeepTheirOrder) {
  on_every_device([](OpContext& c) {
    const Input x = c.input(DType::f64, {5}, {1e16, 1, -1e16, 1, 0.25}), out = c.input(DType::f64, {1}, {0.5});
    c.stream().sum(out.tensor, x.tensor);
    c.expect("sum f64", out.tensor, {1.25}, 0);
    const Input one = c.input(DType::f64, {1}, {2});
    c.stream().sum(one.tensor, x.tensor.slice(3, {2}));
    c.expect("sum of a slice", one.tensor, {3.25}, 0);
  });
}

TEST(Device, CountsLiveBytesAndReusesMemory) {
  for (const char* name : {"cpu", "guarded"}) {
    const auto device = make_device(name, 1);
    EXPECT_EQ(device->memory().current_bytes, 0);
    {
      const Tensor a = device->empty(DType::f32, {1000}), b = device->empty(DType::u8, {0});
      EXPECT_EQ(device->memory().current_bytes, 4000);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0u);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device->empty(DType::u8, {9000001}).data()) % 64, 0u);
    }
    EXPECT_EQ(device->memory().current_bytes, 0);
    EXPECT_EQ(device->memory().peak_bytes, 4000 + 9000001);
    device->reset_peak();
    EXPECT_EQ(device->memory().peak_bytes, 0);
    EXPECT_THROW(device->empty(DType::f64, {std::int64_t{1} << 58}), Error);
    EXPECT_EQ(device->memory().current_bytes, 0);
  }
}

TEST(Device, UnknownNameListsWhatWasTried) {
  try {
    make_device("nowhere", 1);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("liborthant_device_nowhere.so"), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), ExitCode::bad_configuration);
  }
  EXPECT_THROW(make_cpu_device(0), Error);
}

TEST(Guarded, MemoryDiesOutsideAnOperation) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto device = make_guarded_device(1);
  const auto stream = device->make_main_stream();
  const Tensor t = device->empty(DType::f32, {4});
  stream->fill(t, 1);
  EXPECT_DEATH(static_cast<void>(*const_cast<volatile float*>(t.as<float>())), "");
  const auto view = device->host_view(t, Access::read);
  EXPECT_EQ(view->as<float>()[3], 1.0f);
  EXPECT_DEATH(static_cast<void>(*const_cast<volatile float*>(view->as<float>() + 16)), "");  // behind the end
}

TEST(Guarded, ViewsOfOneAllocationCountTogether) {
  const auto device = make_guarded_device(1);
  const auto stream = device->make_main_stream();
  const Tensor t = device->empty(DType::f32, {8});
  const auto outer = device->host_view(t, Access::read_write);
  stream->fill(t.slice(4, {4}), 2);  // opens and closes while the view is open
  EXPECT_EQ(outer->as<float>()[4], 2.0f);
  const auto other = make_cpu_device(1);
  EXPECT_THROW(stream->fill(other->empty(DType::f32, {1}), 0), Error);
}

TEST(SideStream, RunsInOrderAndWaitsForEvents) {
  for (const char* name : {"cpu", "guarded"}) {
    const auto device = make_device(name, 1);
    const auto main = device->make_main_stream(), side = device->make_side_stream();
    const Tensor x = device->empty(DType::f32, {100});
    main->fill(x, 1);
    side->wait(main->record());
    for (int i = 0; i < 50; ++i) {
      side->add(x, x);
      side->scale(x, 0.5f);
    }
    std::vector<int> order;
    side->host([&] { order.push_back(1); });
    side->host([&] { order.push_back(2); });
    std::vector<float> source(100, 3.0f);
    const Tensor y = device->empty(DType::f32, {100});
    side->upload(y, source.data());
    source.assign(100, 0.0f);  // upload has taken its bytes
    side->add(y, x);
    const auto event = side->record();
    main->wait(event);
    EXPECT_TRUE(event->ready());
    main->scale(y, 2);
    std::vector<float> got(100);
    main->download(got.data(), y);
    EXPECT_EQ(got, std::vector<float>(100, 8.0f));
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    side->download(got.data(), x);
    EXPECT_EQ(got[99], 1.0f);
  }
}

TEST(SideStream, FailureStaysAndIsRethrown) {
  const auto device = make_cpu_device(1);
  const auto side = device->make_side_stream(), other = device->make_side_stream();
  const auto before = side->record();
  bool ran = false;
  side->host([] { throw ConfigError("broken"); });
  std::shared_ptr<Event> after;
  try {
    side->host([&] { ran = true; });
    after = side->record();
  } catch (const ConfigError&) {  // the worker was quick: the failure meets the next call
  }
  EXPECT_NO_THROW(before->wait());
  if (after) {
    EXPECT_THROW(after->wait(), ConfigError);
    other->wait(after);
    EXPECT_THROW(other->synchronize(), ConfigError);
  }
  EXPECT_THROW(side->synchronize(), ConfigError);
  EXPECT_THROW(side->fill(device->empty(DType::f32, {1}), 0), ConfigError);
  EXPECT_FALSE(ran);
}

TEST(SideStream, DestructorRunsWhatIsQueued) {
  const auto device = make_cpu_device(1);
  int done = 0;
  {
    const auto side = device->make_side_stream();
    for (int i = 0; i < 100; ++i) {
      side->host([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 100);
}

TEST(SwapOuter, MovesBlocksOfAnyType) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : all_dtypes) {
      for (const Shape& shape : {Shape{0, 2, 3}, Shape{2, 3, 0}, Shape{1, 4, 1}, Shape{3, 5, 7}, Shape{8, 2, 9000}}) {
        const std::string name = fmt::format("{} {}", name_of(dtype), shape.to_string());
        const Input from = c.integers(dtype, shape, 0, 120);
        const Tensor to = c.poisoned(dtype, {shape[1], shape[0], shape[2]}), back = c.poisoned(dtype, shape);
        Values swapped;
        for (std::int64_t j = 0; j < shape[1]; ++j) {
          for (std::int64_t i = 0; i < shape[0]; ++i) {
            const auto row = from.values.begin() + (i * shape[1] + j) * shape[2];
            swapped.insert(swapped.end(), row, row + shape[2]);
          }
        }
        c.stream().swap_outer(to, from.tensor);
        c.stream().swap_outer(back, to);
        c.expect("to " + name, to, swapped, 0);
        c.expect("back " + name, back, from.values, 0);
      }
    }
  });
}

TEST(SwapOuter, RefusesWhatDoesNotFit) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Tensor from = c.poisoned(DType::f32, {2, 3, 4});
  EXPECT_THROW(c.stream().swap_outer(c.poisoned(DType::f32, {2, 3, 4}), from), Error);
  EXPECT_THROW(c.stream().swap_outer(c.poisoned(DType::bf16, {3, 2, 4}), from), Error);
  EXPECT_THROW(c.stream().swap_outer(c.poisoned(DType::f32, {3, 8}), c.poisoned(DType::f32, {6, 4})), Error);
}

}  // namespace
}  // namespace orthant::test::memory_test
