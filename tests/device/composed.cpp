// liborthant_device_composed.so: the device "composed", for tests. It is the CPU, but each operation that Stream makes
// of others (core/device/composed.cpp) is made so. The whole list of operations runs on it
// (tests/support/op_harness.h).
#include <orthant/module.h>

#include "core/device/cpu/cpu_device.h"
#include "core/device/cpu/cpu_stream.h"

namespace orthant::composed {
namespace {

class ComposedStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;

  void wait(const std::shared_ptr<Event>& event) override { Stream::wait(event); }
  void synchronize() override { Stream::synchronize(); }
  void upload(const Tensor& to, const void* host) override { Stream::upload(to, host); }
  void download(void* host, const Tensor& from) override { Stream::download(host, from); }
  void upload(const Tensor& to, const Tensor& from_host) override { Stream::upload(to, from_host); }
  void download(const Tensor& to_host, const Tensor& from) override { Stream::download(to_host, from); }
  void copy(const Tensor& to, const Tensor& from) override { Stream::copy(to, from); }
  void swap_outer(const Tensor& to, const Tensor& from) override { Stream::swap_outer(to, from); }
  void scale(const Tensor& y, float a) override { Stream::scale(y, a); }
  void attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& first, const AttentionShape& shape) override {
    Stream::attention(o, lse, q, k, v, first, shape);
  }
  void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o, const Tensor& q,
                          const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& first,
                          const AttentionShape& shape) override {
    Stream::attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, first, shape);
  }
  void attention_sinks(const Tensor& o, const Tensor& lse, const Tensor& sinks, const AttentionShape& shape) override {
    Stream::attention_sinks(o, lse, sinks, shape);
  }
  void activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) override {
    Stream::activation_backward(dh, da, h, kind);
  }
  void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) override {
    Stream::cross_entropy(loss, logits, label, scale);
  }
  void pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) override {
    Stream::pack_backward(dx, drows, row, accumulate);
  }
  void adamw_replay(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                    std::span<const AdamW> steps) override {
    Stream::adamw_replay(master, weight, m, v, steps);
  }
  void sgd_replay(const Tensor& master, const Tensor& weight, const Tensor& m, std::span<const Sgd> steps) override {
    Stream::sgd_replay(master, weight, m, steps);
  }
  void descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
               float weight_decay) override {
    Stream::descend(master, weight, u, finite, lr, weight_decay);
  }
  void apply(const OwnOperation& operation) override { Stream::apply(operation); }
};

class ComposedDevice final : public CpuDevice {
 public:
  explicit ComposedDevice(int threads) : CpuDevice(threads), threads_(threads) {}
  std::string_view name() const override { return "composed"; }
  std::unique_ptr<Stream> make_main_stream() override { return std::make_unique<ComposedStream>(*this, threads_); }

 private:
  int threads_;
};

std::unique_ptr<Device> make(const DeviceConfig& config) {
  return std::make_unique<ComposedDevice>(config.threads);
}
void check() {}

}  // namespace
}  // namespace orthant::composed

ORTHANT_DEVICE("composed", orthant::composed::make, orthant::composed::check)
