#include "core/trace/tracing_stream.h"

#include <numeric>

#include "core/trace/operation_facts.h"

namespace orthant {
namespace {

// A wait of the host is one of the main stream where the same thread works for it.
template <class Wait>
void waits_here(Trace& trace, int for_track, Wait wait) {
  Track* const here = for_track == 0 ? nullptr : trace.track_here();
  if (here != nullptr) {
    here->open({.name = "wait", .kind = SpanKind::wait, .facts = {.of_track = for_track}});
  }
  wait();
  if (here != nullptr) {
    here->close();
  }
}

// An event that knows which stream it was recorded on. Streams of the device below are given the inner one.
class TracedEvent final : public Event {
 public:
  TracedEvent(std::shared_ptr<Event> inner, Trace& trace, int track)
      : inner_(std::move(inner)), trace_(trace), track_(track) {}
  bool ready() const override { return inner_->ready(); }
  void wait() override {
    waits_here(trace_, track_, [this] { inner_->wait(); });
  }
  const std::shared_ptr<Event>& inner() const { return inner_; }
  std::int64_t track() const { return track_; }

 private:
  std::shared_ptr<Event> inner_;
  Trace& trace_;
  const int track_;
};

}  // namespace

void TracingStream::begin(Span span) {
  if (trace_.nvtx()) {
    nvtx_push(span.name);
  }
  // The end of what began before the recording is unknown to the track, and passed over there.
  if (trace_.recording()) {
    inner_->host([&track = track_, span = std::move(span)]() mutable { track.open(std::move(span)); });
  }
}

void TracingStream::end() {
  if (trace_.nvtx()) {
    nvtx_pop();
  }
  if (trace_.recording()) {
    inner_->host([&track = track_] { track.close(); });
  }
}

std::shared_ptr<Event> TracingStream::record() {
  return std::make_shared<TracedEvent>(inner_->record(), trace_, track_.number());
}

void TracingStream::wait(const std::shared_ptr<Event>& event) {
  const auto traced = std::dynamic_pointer_cast<TracedEvent>(event);
  const std::shared_ptr<Event>& inner_event = traced == nullptr ? event : traced->inner();
  if (!trace_.recording() || paused_) {
    return inner_->wait(inner_event);
  }
  around({.name = "wait",
          .kind = SpanKind::wait,
          .facts = {.of_track = traced == nullptr ? std::int64_t{-1} : traced->track()}},
         [&](Stream& inner) { inner.wait(inner_event); });
}

void TracingStream::synchronize() {
  waits_here(trace_, track_.number(), [this] { inner_->synchronize(); });
}

void TracingStream::host(std::function<void()> work) {
  if (!marks()) {
    return inner_->host(std::move(work));
  }
  around({.name = "host work", .kind = SpanKind::host}, [&](Stream& inner) { inner.host(std::move(work)); });
}

void TracingStream::together(const std::function<void()>& work) {
  if (!native_) {
    return inner_->together(work);
  }
  // What a graph records may not wait for the device, as marks do: the graph is one span.
  const auto paused = [this, &work](Stream& inner) {
    paused_ = true;
    inner.together(work);
    paused_ = false;
  };
  if (marks()) {
    around({.name = "graph"}, paused);
  } else {
    paused(*inner_);
  }
}

void TracingStream::forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) {
  if (!marks()) {
    return operation(*inner_);
  }
  SpanFacts facts = facts_of_operation(name, tensors);
  constexpr std::size_t offset_of_grouped = 3;
  if (trace_.recording() && at_once() && is_grouped_product(name) && facts.rows > 0) {
    // Room is for all choices; what is computed ends with the last expert's rows.
    const std::int64_t computed = numbers(tensors.begin()[offset_of_grouped]).back();
    facts.flops = facts.flops * computed / facts.rows;
    facts.rows = computed;
  }
  around({.name = name, .kind = kind_of_operation(name), .facts = facts}, operation);
}

std::vector<std::int32_t> TracingStream::numbers(const Tensor& i32) const {
  const std::unique_ptr<HostView> view = device_.host_view(i32, Access::read);
  return {view->as<std::int32_t>(), view->as<std::int32_t>() + i32.elements()};
}

void TracingStream::dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                                  const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                                  const GateConfig& config) {
  if (!trace_.recording() || !at_once()) {
    return ForwardingStream::dispatch_plan(row, source, count, dropped, offset, expert, weight, valid, config);
  }
  // What it counts is known when it is over.
  Span span{.name = "dispatch_plan", .facts = facts_of_operation("dispatch_plan", {row, source})};
  span.begin = monotonic_ns();
  inner_->dispatch_plan(row, source, count, dropped, offset, expert, weight, valid, config);
  span.end = monotonic_ns();
  const std::vector<std::int32_t> kept = numbers(count);
  span.facts.useful = std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
  span.facts.rows = numbers(offset).back();
  track_.add(std::move(span));
}

// A device may fuse it, and then the whole is one span; otherwise its parts are.
void TracingStream::expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in,
                               const Tensor& w_out, const Dispatch& dispatch, Activation kind) {
  if (!native_) {
    return Stream::expert_ffn(y, h, x, w_in, w_out, dispatch, kind);
  }
  forward("expert_ffn", {h, x, w_in, w_out, y},
          [&](Stream& inner) { inner.expert_ffn(y, h, x, w_in, w_out, dispatch, kind); });
}

void TracingStream::expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in,
                                        const Tensor& dw_out, const Tensor& dy, const Tensor& x, const Tensor& h,
                                        const Tensor& w_in, const Tensor& w_out, const Dispatch& dispatch,
                                        Activation kind, float beta) {
  if (!native_) {
    return Stream::expert_ffn_backward(dx, dweight, dw_in, dw_out, dy, x, h, w_in, w_out, dispatch, kind, beta);
  }
  forward("expert_ffn_backward", {h, dx, dw_in, dw_out, dy, x, w_in, w_out}, [&](Stream& inner) {
    inner.expert_ffn_backward(dx, dweight, dw_in, dw_out, dy, x, h, w_in, w_out, dispatch, kind, beta);
  });
}

Phase::Phase(Stream& stream, const char* name, SpanFacts facts, SpanKind kind)
    : stream_(dynamic_cast<TracingStream*>(&stream)) {
  if (stream_ != nullptr && !stream_->marks()) {
    stream_ = nullptr;
  }
  if (stream_ != nullptr) {
    stream_->begin({.name = name, .kind = kind, .facts = facts});
  }
}

Phase::~Phase() {
  if (stream_ != nullptr) {
    try {
      stream_->end();
    } catch (const std::exception&) {
      // The stream has failed, and says so to whoever waits for it.
    }
  }
}

}  // namespace orthant
