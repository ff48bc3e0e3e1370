// Observers: the hooks of the catalogue, as this rank runs them.
#pragma once

#include <orthant/hook.h>
#include <orthant/settings.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace orthant {

// Thread safety: one per rank; not shared.
class Observers {
 public:
  explicit Observers(const Settings& settings);

  bool empty() const { return all_.empty(); }
  // What the learning rate of the schedule is multiplied by, by all of them.
  double lr_factor() const;
  // What moe.capacity_factor is multiplied by, by all of them.
  double capacity_share() const;
  // Lets each of them see the report, in the order of the catalogue, and adds what they write to report.metrics.
  // Errors: Error naming the hook for what it may not do.
  void after_step(StepReport& report);

  // For a checkpoint's state and from it. Keys are "hook/NAME/lr_factor", "hook/NAME/capacity_share" and
  // "hook/NAME/number/KEY". A state without capacity_share, as older ones are, means 1; so does any
  // state where this run has no capacity.
  std::map<std::string, std::string> state() const;
  // Returns the names of the hooks that the state knows and this run has not. Errors: Error for a share that is none.
  std::vector<std::string> restore(const std::map<std::string, std::string>& state);

 private:
  struct One {
    std::string name;
    std::unique_ptr<Observer> observer;
    Changes changes;
  };
  std::vector<One> all_;
  bool has_capacity_;
};

}  // namespace orthant
