// A stream that marks in its trace when each operation of an inner stream begins and ends.
//
// The marks are work of the inner stream itself (Stream::host), so they tell when it gets there and not when it was
// asked to. A device whose streams are its own (cuda) waits for the work before a mark. While it is recorded, its
// operations are right one by one, and streams of a rank overlap less than they do otherwise.
#pragma once

#include <memory>
#include <utility>

#include "core/device/forwarding_stream.h"
#include "core/trace/nvtx.h"
#include "core/trace/trace.h"

namespace orthant {

class TracingStream final : public ForwardingStream {
 public:
  // `device`: the one that callers know. All but `inner` outlive the stream.
  TracingStream(std::unique_ptr<Stream> inner, Device& device, Trace& trace, const std::string& name)
      : inner_(std::move(inner)),
        native_(inner_->native() != nullptr),
        device_(device),
        trace_(trace),
        track_(trace.add_track(name)) {}

  Device& device() const override { return device_; }
  void* native() const override { return inner_->native(); }
  void uses(std::initializer_list<Tensor> tensors) override { inner_->uses(tensors); }
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;
  void together(const std::function<void()>& work) override;
  void dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                     const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                     const GateConfig& config) override;
  void expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                  const Dispatch& dispatch, Activation kind) override;
  void expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                           const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in, const Tensor& w_out,
                           const Dispatch& dispatch, Activation kind, float beta) override;

  // Whether spans are wanted now.
  bool marks() const { return (trace_.recording() || trace_.nvtx()) && !paused_; }
  // For spans whose work is done elsewhere: they begin and end where the stream is now. REQUIRES: marks() was asked
  // before begin, and each begin has its end.
  void begin(Span span);
  void end();
  // Gives `work` the inner stream, within a span.
  template <class Work>
  void around(Span span, Work work) {
    begin(std::move(span));
    work(*inner_);
    end();
  }
  Stream& inner() { return *inner_; }

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  // Whether tensors can be read here and now, between two operations.
  bool at_once() const { return track_.number() == 0 && !device_.asynchronous(); }
  std::vector<std::int32_t> numbers(const Tensor& i32) const;

  std::unique_ptr<Stream> inner_;
  const bool native_;  // it has a handle, which it does not give while it records a graph
  Device& device_;
  Trace& trace_;
  Track& track_;
  bool paused_ = false;  // while a device records a graph
};

// From its construction to its end, in the order of a stream that traces; of any other stream nothing.
class Phase {
 public:
  Phase(Stream& stream, const char* name, SpanFacts facts = {}, SpanKind kind = SpanKind::phase);
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
  ~Phase();

 private:
  TracingStream* stream_;  // null: nothing to mark
};

}  // namespace orthant
