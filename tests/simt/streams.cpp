#include "tests/simt/streams.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/simt/counters.h"
#include "tests/simt/runtime_api.h"

namespace {

using Clock = std::chrono::steady_clock;

struct EventState {
  std::uint64_t asked = 0;           // how often it was recorded, as the host sees it
  std::set<std::uint64_t> on_way{};  // those of them that no stream has come to yet
  Clock::time_point when;

  bool passed(std::uint64_t version) const { return !on_way.contains(version); }
};

struct Operation {
  enum class Kind { work, record, wait } kind = Kind::work;
  const void* what = nullptr;
  std::function<void()> work;
  std::shared_ptr<EventState> event;
  std::uint64_t version = 0;  // of the event
  orthant::simt::Bind bind = nullptr;
};

}  // namespace

struct CUgraphNode_st {
  std::size_t place;
};

struct CUgraph_st {
  std::vector<Operation> operations;
  std::deque<CUgraphNode_st> nodes;
  cudaGraphNode_t last = nullptr;
};

struct CUgraphExec_st {
  std::vector<Operation> operations;
};

struct CUstream_st {
  std::deque<Operation> queue;
  std::unique_ptr<CUgraph_st> recorded;  // while it is recorded
  bool broken = false;                   // the recording, by a call that waits
};

struct CUevent_st {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

namespace {

// All streams of the process, and who runs next.
struct Scheduler {
  std::recursive_mutex mutex;
  std::vector<CUstream_st*> streams;
  std::atomic<std::uint64_t> seed = 0;
  std::mt19937_64 random;

  static bool ready(const CUstream_st& stream) {
    const Operation& next = stream.queue.front();
    return next.kind != Operation::Kind::wait || next.event->passed(next.version);
  }

  void run_one(CUstream_st& stream) {
    Operation now = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (now.kind == Operation::Kind::work) {
      now.work();
    } else if (now.kind == Operation::Kind::record) {
      now.event->on_way.erase(now.version);
      now.event->when = Clock::now();
    }
  }

  // A random one of those that can; false if none can.
  bool run_any() {
    std::vector<CUstream_st*> able;
    std::copy_if(streams.begin(), streams.end(), std::back_inserter(able),
                 [](const CUstream_st* s) { return !s->queue.empty() && ready(*s); });
    if (able.empty()) {
      return false;
    }
    run_one(*able[random() % able.size()]);
    return true;
  }

  // Odd seeds: nothing but what is needed, so that all else is late. Even ones: in any order.
  void run_until(CUstream_st* wanted, const std::function<bool()>& done) {
    while (!done()) {
      if (seed % 2 == 0 || wanted == nullptr) {
        if (!run_any()) {
          throw std::logic_error("simt: streams wait for one another");
        }
        continue;
      }
      CUstream_st* next = wanted;
      while (!ready(*next)) {
        next = recorder(*next->queue.front().event, next->queue.front().version);
      }
      run_one(*next);
    }
  }

  // The stream that will record the event.
  CUstream_st* recorder(const EventState& event, std::uint64_t version) {
    for (CUstream_st* stream : streams) {
      for (const Operation& o : stream->queue) {
        if (o.kind == Operation::Kind::record && o.event.get() == &event && o.version == version) {
          return stream;
        }
      }
    }
    throw std::logic_error("simt: a stream waits for an event that nobody will record");
  }

  void drain(CUstream_st* stream) {
    run_until(stream, [stream] { return stream->queue.empty(); });
  }
  void drain_all() {
    for (CUstream_st* stream : streams) {
      drain(stream);
    }
  }
};

Scheduler& scheduler() {
  static Scheduler one;
  return one;
}

cudaError_t refuse_recorded(CUstream_st* stream) {
  if (stream != nullptr && stream->recorded != nullptr) {
    stream->broken = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

void enqueue(CUstream_st* stream, Operation operation) {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  if (stream != nullptr && stream->recorded != nullptr) {
    CUgraph_st& graph = *stream->recorded;
    graph.last = &graph.nodes.emplace_back(graph.operations.size());
    graph.operations.push_back(std::move(operation));
  } else if (stream == nullptr || s.seed == 0) {
    CUstream_st now;
    now.queue.push_back(std::move(operation));
    s.run_one(now);
  } else {
    stream->queue.push_back(std::move(operation));
  }
}

// Recording across streams is left out: an event cannot be part of a graph here.
cudaError_t enqueue_event(CUstream_st* stream, CUevent_st* event, Operation::Kind kind) {
  if (event == nullptr) {
    return cudaErrorInvalidValue;
  }
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  if (const cudaError_t refused = refuse_recorded(stream)) {
    return refused;
  }
  EventState& state = *event->state;
  if (kind == Operation::Kind::record) {
    state.on_way.insert(++state.asked);
  }
  enqueue(stream, {.kind = kind, .work = nullptr, .event = event->state, .version = state.asked});
  return cudaSuccess;
}

}  // namespace

namespace orthant::simt {

bool runs_at_once(const CUstream_st* stream) {
  return stream == nullptr || (scheduler().seed == 0 && stream->recorded == nullptr);
}

void give(CUstream_st* stream, const void* what, std::function<void()> operation, Bind bind) {
  if (runs_at_once(stream)) {
    operation();
    return;
  }
  enqueue(stream, {.what = what, .work = std::move(operation), .event = nullptr, .bind = std::move(bind)});
}

void defer(std::uint64_t seed) {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  s.drain_all();
  s.seed = seed;
  s.random.seed(seed);
}

}  // namespace orthant::simt

void orthant_simt_defer(std::uint64_t seed) {
  orthant::simt::defer(seed);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  *stream = s.streams.emplace_back(new CUstream_st);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  s.drain(stream);
  std::erase(s.streams, stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  ++orthant::simt::counters().waits;
  if (const cudaError_t refused = refuse_recorded(stream)) {
    return refused;
  }
  if (stream != nullptr) {
    s.drain(stream);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  ++orthant::simt::counters().waits;
  s.drain_all();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  s.run_any();
  return stream == nullptr || stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ++orthant::simt::counters().events;
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enqueue_event(stream, event, Operation::Kind::record);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return enqueue_event(stream, event, Operation::Kind::wait);
}

// Lets something else happen, so that who asks again and again comes to an end.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) {
    return cudaErrorInvalidValue;
  }
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  if (event->state->passed(event->state->asked)) {
    return cudaSuccess;
  }
  s.run_any();
  return event->state->passed(event->state->asked) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) {
    return cudaErrorInvalidValue;
  }
  Scheduler& s = scheduler();
  const std::lock_guard lock(s.mutex);
  ++orthant::simt::counters().waits;
  const EventState& state = *event->state;
  const std::uint64_t version = state.asked;
  if (!state.passed(version)) {
    s.run_until(s.recorder(state, version), [&] { return state.passed(version); });
  }
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->state->when - begin->state->when).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->recorded != nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  ++orthant::simt::counters().recordings;
  stream->recorded = std::make_unique<CUgraph_st>();
  stream->broken = false;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  std::unique_ptr<CUgraph_st> recorded = std::move(stream->recorded);
  if (recorded == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (stream->broken) {
    return cudaErrorStreamCaptureInvalidated;
  }
  *graph = recorded.release();
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long*,
                                     cudaGraph_t*, const cudaGraphNode_t** before, const cudaGraphEdgeData**,
                                     std::size_t* count) {
  const bool active = stream->recorded != nullptr;
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *before = active ? &stream->recorded->last : nullptr;
  *count = active && !stream->recorded->nodes.empty() ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->operations};
  return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  Operation& operation = exec->operations.at(node->place);
  if (operation.bind == nullptr || operation.what != parameters->func) {
    return cudaErrorInvalidValue;
  }
  operation.work = operation.bind(parameters->kernelParams);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Operation& operation : exec->operations) {
    enqueue(stream, operation);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
