#include "expert_runs.h"

#include <algorithm>
#include <iterator>

namespace orthant::offload {
namespace {

bool alike(const ParamSpec& a, const ParamSpec& b) {
  return a.decay == b.decay && a.lr_scale == b.lr_scale && a.frozen == b.frozen;
}

}  // namespace

std::vector<std::vector<ExpertRun>> runs_of_experts(const ParamGroup& group) {
  std::vector<std::vector<ExpertRun>> experts;
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const Param& p = group.params[i];
    const std::int64_t number = p.spec.expert.value();
    auto at = std::find(numbers.begin(), numbers.end(), number);
    if (at == numbers.end()) {
      numbers.push_back(number);
      experts.emplace_back();
      at = std::prev(numbers.end());
    }
    std::vector<ExpertRun>& runs = experts[static_cast<std::size_t>(at - numbers.begin())];
    const bool follows = !runs.empty() && runs.back().elements.end() == p.begin;
    if (follows && alike(group.params[runs.back().param].spec, p.spec)) {
      runs.back().elements.count += p.elements();
    } else {
      runs.push_back({{p.begin, p.elements()}, i});
    }
  }
  return experts;
}

}  // namespace orthant::offload
