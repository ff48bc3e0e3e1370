// The device library "simt": found by the core, with its memory from the shim.
#include <gtest/gtest.h>

#include <orthant/ops.h>

namespace orthant::device_test {
namespace {

TEST(SimtDevice, IsFoundAndCountsItsMemory) {
  const auto device = make_device("simt", 1);
  EXPECT_EQ(device->name(), "simt");
  const auto stream = device->make_main_stream();
  const auto before = device->memory().current_bytes;
  {
    const Tensor t = device->empty(DType::f32, {5, 3});
    EXPECT_GE(device->memory().current_bytes - before, 60);
    const auto view = device->host_view(t, Access::write);
    view->as<float>()[14] = 1;
  }
  stream->synchronize();
  EXPECT_EQ(device->memory().current_bytes, before);
}

}  // namespace
}  // namespace orthant::device_test
