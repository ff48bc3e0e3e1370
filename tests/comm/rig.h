// A device with one stream for tests of groups, and tensors to and from vectors.
#pragma once

#include <orthant/device.h>
#include <orthant/ops.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace orthant::test {

struct Rig {
  explicit Rig(const std::string& device_name = "cpu")
      : device(make_device(device_name, 1)), stream(device->make_main_stream()) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;

  Tensor tensor(DType dtype, Shape shape, const std::vector<std::byte>& bytes) {
    Tensor t = device->empty(dtype, shape);
    const auto view = device->host_view(t, Access::write);
    if (!bytes.empty()) {
      std::memcpy(view->data(), bytes.data(), bytes.size());
    }
    return t;
  }
  std::vector<std::byte> bytes(const Tensor& t) {
    stream->synchronize();
    const auto view = device->host_view(t, Access::read);
    return {view->data(), view->data() + view->bytes()};
  }
  template <class T>
  std::vector<T> values(const Tensor& t) {
    const std::vector<std::byte> b = bytes(t);
    std::vector<T> v(b.size() / sizeof(T));
    if (!b.empty()) {
      std::memcpy(v.data(), b.data(), b.size());
    }
    return v;
  }
  template <class T>
  Tensor tensor_of(DType dtype, Shape shape, const std::vector<T>& v) {
    std::vector<std::byte> b(v.size() * sizeof(T));
    if (!b.empty()) {
      std::memcpy(b.data(), v.data(), b.size());
    }
    return tensor(dtype, shape, b);
  }
};

}  // namespace orthant::test
