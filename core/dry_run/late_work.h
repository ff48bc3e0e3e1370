// The work of a side stream that nobody has waited for yet, as its tensors: they are held until somebody does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <utility>

#include <orthant/device.h>

namespace orthant {

class LateWork;

// How much of the work of side streams is behind something: pieces of each. The device owns them.
using WorkDone = std::map<LateWork*, std::uint64_t>;

class LateWork {
 public:
  void add(std::initializer_list<Tensor> tensors) {
    ++given_;
    for (const Tensor& t : tensors) {
      if (t.defined()) {
        held_.emplace_back(given_, t);
      }
    }
  }
  bool waits() const { return !held_.empty(); }  // some of it is not done
  // Later work comes after this.
  void wait(const WorkDone& before) {
    for (const auto& [work, pieces] : before) {
      std::uint64_t& known = before_[work];
      known = std::max(known, pieces);
    }
  }
  // All that was given so far, and what that waited for.
  WorkDone all() {
    WorkDone done = before_;
    done[this] = given_;
    return done;
  }
  void drop(std::uint64_t done) {
    while (!held_.empty() && held_.front().first <= done) {
      held_.pop_front();
    }
  }

  static void drop(const WorkDone& done) {
    for (const auto& [work, pieces] : done) {
      work->drop(pieces);
    }
  }

 private:
  std::uint64_t given_ = 0;
  std::deque<std::pair<std::uint64_t, Tensor>> held_;
  WorkDone before_;
};

// Whoever waits for it knows that the work is done.
class LateEvent final : public Event {
 public:
  explicit LateEvent(WorkDone behind) : behind_(std::move(behind)) {}
  const WorkDone& behind() const { return behind_; }
  bool ready() const override { return true; }
  void wait() override { LateWork::drop(behind_); }

 private:
  WorkDone behind_;
};

}  // namespace orthant
