// Ranks that train while they are traced: the file, the sums, and who is found to be late.
#include <gtest/gtest.h>
#include <orthant/ops.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "core/device/cpu/cpu_device.h"
#include "core/device/forwarding_stream.h"
#include "core/trace/tracing_communicator.h"
#include "core/trace/tracing_device.h"
#include "core/trace/tracing_stream.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/trace/spans.h"

namespace orthant::trace_test::ranks_test {
namespace {

// A source that one rank waits for.
class SlowSource final : public test::ChangedSource {
 public:
  SlowSource(const Settings& settings, bool slow) : ChangedSource(settings), slow_(slow) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    if (slow_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    return ChangedSource::train(step, first, count);
  }

 private:
  bool slow_;
};

// A processor whose matrix products are slow.
class SlowStream final : public ForwardingStream {
 public:
  explicit SlowStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}
  Device& device() const override { return inner_->device(); }
  std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(const std::shared_ptr<Event>& event) override { inner_->wait(event); }
  void host(std::function<void()> work) override { inner_->host(std::move(work)); }
  void synchronize() override { inner_->synchronize(); }

 protected:
  void forward(const char* name, std::initializer_list<Tensor>, Operation operation) override {
    if (std::string_view(name) == "gemm") {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    operation(*inner_);
  }

 private:
  std::unique_ptr<Stream> inner_;
};

class SlowDevice final : public CpuDevice {
 public:
  SlowDevice() : CpuDevice(1) {}
  std::unique_ptr<Stream> make_main_stream() override {
    return std::make_unique<SlowStream>(CpuDevice::make_main_stream());
  }
};

struct Late {
  int data = -1, device = -1;  // the rank whose data, whose products are slow; -1: none
};

// Four steps, of which the last two are recorded.
JoinedTrace traced(const Config& config, int ranks, Late late = {}) {
  std::mutex mutex;
  std::vector<RankTrace> parts;
  run_threads(ranks, [&](Communicator& plain) {
    const int rank = plain.rank();
    Trace trace(rank, false);
    TracingCommunicator communicator(plain, trace);
    std::unique_ptr<Device> plain_device;
    if (rank == late.device) {
      plain_device = std::make_unique<SlowDevice>();
    } else {
      plain_device = make_device(config.settings.run.device, 1);
    }
    TracingDevice device(std::move(plain_device), trace);
    const std::unique_ptr<Stream> stream = device.make_main_stream();
    const SlowSource source(config.settings, rank == late.data);
    Session session(config);
    session.plan(rank, &communicator, &device);
    Trainer trainer(session.plan(), *stream, source);
    Group& world = session.mesh().world_group("test");
    for (std::int64_t step = 0; step < 4; ++step) {
      if (step == 2) {
        world.barrier(*stream);
        trace.record(true);
      }
      const Phase phase(*stream, "step", {.step = step + 1}, SpanKind::step);
      trainer.step(step);
    }
    stream->synchronize();
    trace.record(false);
    world.barrier(*stream);
    RankTrace part = take(trace);
    part.stage = session.plan().stage();
    const std::lock_guard lock(mutex);
    parts.push_back(std::move(part));
  });
  return join(std::move(parts));
}

TraceSummary checked(const JoinedTrace& joined) {
  expect_nested(to_chrome_json(joined));
  for (const RankTrace& rank : joined.ranks) {
    expect_nested(to_part(rank));
  }
  TraceSummary summary = summarise(joined);
  expect_sums(summary);
  EXPECT_EQ(summary.first, 3);
  EXPECT_EQ(summary.last, 4);
  return summary;
}

TEST(TracedRanks, OneRankComputesAndWaitsForNobody) {
  const TraceSummary summary = checked(traced(test::experiment(), 1));
  EXPECT_GT(summary.ranks.at(0).compute, 0);
  EXPECT_GT(summary.ranks.at(0).operations.at("gemm"), 0);
  EXPECT_EQ(summary.ranks.at(0).waiting, 0);
  EXPECT_EQ(summary.why, "one rank waits for nobody");
}

TEST(TracedRanks, ARankWhoseDataIsSlowIsNamed) {
  const TraceSummary summary = checked(traced(test::experiment({}, test::axes(4, 2)), 4, {.data = 2}));
  EXPECT_EQ(summary.late_rank, 2) << summary.why;
  EXPECT_NE(summary.why.find("'batch'"), std::string::npos) << summary.why;
  EXPECT_GT(of_rank(summary, 0).waiting_for.at(2), 0.015);
  EXPECT_GT(of_rank(summary, 2).others.at("batch"), 0.025);
  EXPECT_EQ(of_rank(summary, 2).waiting_for.count(2), 0u);
}

TEST(TracedRanks, ARankWhoseOperationsAreSlowIsNamed) {
  const TraceSummary summary = checked(traced(test::experiment({}, test::axes(2)), 2, {.device = 1}));
  EXPECT_EQ(summary.late_rank, 1) << summary.why;
  EXPECT_NE(summary.why.find("'gemm'"), std::string::npos) << summary.why;
}

TEST(TracedRanks, StagesHaveBubbles) {
  const Config config = test::experiment({"batch.micro_batch=4"}, "[plugins.pipeline]\nsize = 2\n");
  const TraceSummary summary = checked(traced(config, 2));
  EXPECT_GT(of_rank(summary, 1).bubble, 0);
  EXPECT_GT(of_rank(summary, 1).bubble_for.at(0), 0);
  EXPECT_EQ(of_rank(summary, 0).waiting, 0) << "whom it waits for is of another stage";
}

TEST(TracedRanks, WhatADeviceDoesOnSideStreamsIsSeenThere) {
  for (const char* device : {"cpu", "late", "guarded", "simt"}) {
    const Config config =
        test::experiment({std::string("run.device=\"") + device + "\""}, "[plugins.data]\nsize = 2\nzero = 2\n");
    const JoinedTrace joined = traced(config, 2);
    checked(joined);
    bool collectives = false;
    for (const RankTrace::Line& line : joined.ranks.at(0).lines) {
      for (const Span& span : line.spans) {
        collectives = collectives || (line.number != 0 && span.kind == SpanKind::collective);
      }
    }
    EXPECT_TRUE(collectives) << device;
  }
}

TEST(TracedRanks, WhatTheHostWaitsForIsSeen) {
  Trace trace(0, false);
  TracingDevice device(make_cpu_device(1), trace);
  const std::unique_ptr<Stream> main = device.make_main_stream(), side = device.make_side_stream();
  trace.record(true);
  {
    const Phase step(*main, "step", {.step = 1}, SpanKind::step);
    const Tensor t = device.empty(DType::f32, {1});
    side->host([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    side->fill(t, 1);
    side->record()->wait();
    side->host([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    main->wait(side->record());
  }
  trace.record(false);
  const TraceSummary summary = summarise(join({take(trace)}));
  expect_sums(summary);
  EXPECT_GT(summary.ranks.at(0).others.at("host work"), 0.035) << to_json(summary);
}

// The bits are those of a run that is not traced.
TEST(TracedRanks, LossesAreTheSame) {
  const Config config = test::experiment({}, test::axes(2, 2));
  std::vector<double> losses[2];
  for (const bool with : {false, true}) {
    run_threads(2, [&](Communicator& plain) {
      Trace trace(plain.rank(), false);
      TracingCommunicator communicator(plain, trace);
      std::unique_ptr<Device> device = make_cpu_device(1);
      if (with) {
        device = std::make_unique<TracingDevice>(std::move(device), trace);
      }
      trace.record(with);
      const std::unique_ptr<Stream> stream = device->make_main_stream();
      const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
      Session session(config);
      session.plan(plain.rank(), with ? static_cast<Communicator*>(&communicator) : &plain, device.get());
      Trainer trainer(session.plan(), *stream, *source);
      for (std::int64_t step = 0; step < 3; ++step) {
        const double loss = trainer.step(step).loss;
        if (plain.rank() == 0) {
          losses[with].push_back(loss);
        }
      }
      const MemoryUse use = device->memory();
      EXPECT_GT(use.current_bytes, 0);
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
}  // namespace orthant::trace_test::ranks_test
