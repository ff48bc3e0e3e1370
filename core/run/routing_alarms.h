// RoutingAlarms: what goes wrong with a router, from the reports of logged steps: one sentence each, with the cause and
// a key to change.
//
//   few         tokens have chosen less than a quarter of the experts that the gate reckons with (experts_of_token)
//   collapse    at most max(top_k, E / 8) experts have had 95 % of a layer's choices
//   dead        an expert of a layer has had none, where a balanced router would have given it 8 or more
//   auxiliary   the loss's gradient into a layer's router was below a thousandth of those of balance and z
//
// Each begins when it has been so on three logged steps in a row, and ends with the first on which it is not. Of
// experts each counts alone: another one idle on each step is no dead expert. The first steps count for nothing, while
// routers have learnt nothing yet: the warm-up of the learning rate, and a twentieth of the run or 100 steps.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <orthant/hook.h>
#include <orthant/settings.h>

namespace orthant {

// Thread safety: one per rank; not shared. What it says depends on the reports alone.
class RoutingAlarms {
 public:
  explicit RoutingAlarms(const Settings& settings);

  // The alarms that last. A report without `routing` changes nothing, and has none.
  std::vector<std::string> after(const StepReport& report);
  // Of those, the ones that began with the last report.
  const std::vector<std::string>& begun() const { return begun_; }

 private:
  enum class Kind { few, collapse, dead, auxiliary };
  void count_idle(const LayerCounters& counters);
  // What is wrong with a layer in this report; empty: nothing. A sentence without its end. After count_idle().
  std::string wrong(Kind kind, const LayerCounters& counters, const LayerRouting& routing) const;
  std::string advice(Kind kind) const;

  const MoeSettings moe_;
  const double experts_of_token_;
  const std::int64_t settled_;                    // the first step that counts
  bool learns_ = false;                           // some router does
  std::map<std::pair<int, Kind>, int> in_a_row_;  // reports
  std::map<int, std::vector<int>> idle_;          // of a layer: reports in a row without a choice, of each expert
  std::vector<std::string> begun_;
};

}  // namespace orthant
