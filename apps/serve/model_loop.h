// ModelLoop: the thread that owns the model. Others ask; answers come through channels.
//
// At most `batch` answers are generated at once. A place that is free goes to the request with the fewest answers under
// way, the oldest of these: one that asks for many holds them all only while nobody else waits. At most `capacity`
// answers wait, and those of requests for one alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "apps/lm/generator.h"
#include "apps/serve/answer_channel.h"
#include "apps/serve/metrics.h"

namespace orthant {

class ModelLoop {
 public:
  // The generator outlives this, and nobody else uses it.
  ModelLoop(Generator& generator, std::size_t batch, std::size_t capacity);

  // What it has done and does. Thread safety: any thread's.
  const Metrics& metrics() const { return metrics_; }

  // Thread safety: any thread's. Errors: ApiError of status 503 where there is no place, or after end().
  std::shared_ptr<AnswerChannel> ask(std::vector<Request> choices);
  // No more is taken. run() answers for `grace` what there is, fails the rest, and returns. Thread safety: any
  // thread's.
  void end(std::chrono::milliseconds grace);

  // The model's thread. An error of the engine fails the answers under way, and the loop goes on.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Asked {
    std::shared_ptr<AnswerChannel> channel;
    std::vector<Request> choices;
    Clock::time_point since = Clock::now();
    std::size_t started = 0;  // of them: the others wait

    std::size_t waiting() const { return choices.size() - started; }
    std::size_t under_way() const { return channel->open() - waiting(); }
  };

  bool wait_for_work();
  void fill();
  void start(const std::shared_ptr<AnswerChannel>& channel, std::size_t choice, Request request,
             Clock::time_point since);
  void step();
  void tell_state();
  void fail_all(const ApiError& error);

  Generator& generator_;
  const std::size_t batch_, capacity_;
  std::vector<std::shared_ptr<AnswerChannel>> active_;  // the model's thread's own

  Metrics metrics_;

  std::mutex mutex_;
  std::condition_variable asked_;
  std::vector<Asked> waiting_;  // some of whose answers wait, in the order in which they came
  bool ending_ = false;
  Clock::time_point deadline_;
};

}  // namespace orthant
