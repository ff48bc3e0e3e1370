#include "lazy_experts.h"

#include <algorithm>
#include <utility>

namespace orthant::offload {

LazyExperts::LazyExperts(const ParamGroup& group) {
  require(group.owned_begin == 0 && group.owned_elements == group.padded && group.experts,
          "'{}' is no group of routed experts that this rank owns whole", group.name);
  for (std::vector<ExpertRun>& runs : runs_of_experts(group)) {
    experts_.push_back({.runs = std::move(runs)});
  }
}

void LazyExperts::begin_step() {
  for (Expert& expert : experts_) {
    expert.chosen = false;
  }
}

void LazyExperts::chosen(std::span<const std::int64_t> rows) {
  require(rows.size() == experts_.size(), "rows of {} experts were counted, the group has {}", rows.size(),
          experts_.size());
  for (std::size_t e = 0; e < rows.size(); ++e) {
    experts_[e].chosen = experts_[e].chosen || rows[e] > 0;
  }
}

std::vector<ParamGroup::Run> LazyExperts::runs_of(bool chosen) const {
  std::vector<ParamGroup::Run> all;
  for (const Expert& expert : experts_) {
    for (const ExpertRun& run : expert.runs) {
      if (expert.chosen == chosen) {
        all.push_back(run.elements);
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<ParamGroup::Run> joined;
  for (const ParamGroup::Run& run : all) {
    if (!joined.empty() && joined.back().end() == run.begin) {
      joined.back().count += run.count;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

void LazyExperts::end_step(const PastStep& step) {
  for (Expert& expert : experts_) {
    require(!expert.chosen || expert.made == steps_.size(), "an expert is updated before it has made up for {} steps",
            steps_.size() - expert.made);
  }
  steps_.push_back(step);
  std::size_t oldest = steps_.size();
  for (Expert& expert : experts_) {
    expert.made += expert.chosen ? 1 : 0;
    oldest = std::min(oldest, expert.made);
  }
  steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(oldest));
  for (Expert& expert : experts_) {
    expert.made -= oldest;
  }
}

std::span<const PastStep> LazyExperts::missed(std::size_t expert) const {
  return std::span(steps_).subspan(experts_[expert].made);
}

void LazyExperts::forget() {
  steps_.clear();
  for (Expert& expert : experts_) {
    expert.made = 0;
  }
}

}  // namespace orthant::offload
