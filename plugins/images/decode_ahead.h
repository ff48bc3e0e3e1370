// DecodeAhead: threads that make sequences before they are asked for, beside the training. What is given does not
// depend on them: who asks for a sequence that no thread has begun makes it itself.
//
// Thread safety: any thread. Threads start with the first `expect`: a source that is only looked at has none.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <orthant/source.h>

namespace orthant::images {

class DecodeAhead {
 public:
  using Make = std::function<Sequence(const EpochSequence&)>;
  // threads: 0: nothing is made ahead. most: sequences that wait at once, whether made or not.
  DecodeAhead(Make make, int threads, std::size_t most);
  ~DecodeAhead();
  DecodeAhead(const DecodeAhead&) = delete;
  DecodeAhead& operator=(const DecodeAhead&) = delete;

  void expect(std::span<const EpochSequence> soon);
  // Errors: what `make` throws.
  Sequence take(const EpochSequence& of);

 private:
  struct Job {
    enum class State { waiting, running, done };
    EpochSequence of;
    State state = State::waiting;
    Sequence made = {};
    std::exception_ptr failure = {};
  };
  void work();

  Make make_;
  std::size_t threads_wanted_, most_;
  std::mutex mutex_;
  std::condition_variable something_, done_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<Job>> jobs_;
  std::deque<std::shared_ptr<Job>> waiting_, known_;  // to be made; all, in the order in which they were expected
  std::vector<std::thread> threads_;
  bool ends_ = false;
};

}  // namespace orthant::images
