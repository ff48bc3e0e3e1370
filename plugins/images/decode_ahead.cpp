#include "decode_ahead.h"

namespace orthant::images {

DecodeAhead::DecodeAhead(Make make, int threads, std::size_t most)
    : make_(std::move(make)), threads_wanted_(static_cast<std::size_t>(threads)), most_(most) {}

DecodeAhead::~DecodeAhead() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  something_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void DecodeAhead::expect(std::span<const EpochSequence> soon) {
  if (threads_wanted_ == 0) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    for (const EpochSequence& of : soon) {
      auto job = std::make_shared<Job>();
      job->of = of;
      if (jobs_.emplace(std::pair(of.epoch, of.number), job).second) {
        waiting_.push_back(job);
        known_.push_back(std::move(job));
      }
    }
    while (known_.size() > most_) {  // what nobody has asked for
      const Job& oldest = *known_.front();
      const auto found = jobs_.find({oldest.of.epoch, oldest.of.number});
      if (found != jobs_.end() && found->second == known_.front()) {
        jobs_.erase(found);
      }
      known_.pop_front();
    }
    while (threads_.size() < threads_wanted_) {
      threads_.emplace_back([this] { work(); });
    }
  }
  something_.notify_all();
}

Sequence DecodeAhead::take(const EpochSequence& of) {
  std::unique_lock lock(mutex_);
  const auto found = jobs_.find({of.epoch, of.number});
  if (found == jobs_.end() || found->second->state == Job::State::waiting) {
    if (found != jobs_.end()) {
      jobs_.erase(found);
    }
    lock.unlock();
    return make_(of);
  }
  const std::shared_ptr<Job> job = found->second;
  jobs_.erase(found);
  done_.wait(lock, [&] { return job->state == Job::State::done; });
  if (job->failure != nullptr) {
    std::rethrow_exception(job->failure);
  }
  return std::move(job->made);
}

void DecodeAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    something_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) {
      return;
    }
    const std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    const auto found = jobs_.find({job->of.epoch, job->of.number});
    if (found == jobs_.end() || found->second != job) {  // taken, or forgotten
      continue;
    }
    job->state = Job::State::running;
    lock.unlock();
    try {
      job->made = make_(job->of);
    } catch (...) {
      job->failure = std::current_exception();
    }
    lock.lock();
    job->state = Job::State::done;
    done_.notify_all();
  }
}

}  // namespace orthant::images
