#include "parallel/staged_group.h"

#include <utility>

#include "parallel/intercepted_group.h"

namespace orthant {
namespace {

class StagedGroup final : public InterceptedGroup {
 public:
  StagedGroup(std::unique_ptr<Group> group, const RunningLayers& running)
      : InterceptedGroup(group->name(), group->members(), group->rank()), group_(std::move(group)), running_(running) {}

 protected:
  void call(const GroupCall& call, Stream& s) override {
    const bool of_two = call.collective == Collective::send || call.collective == Collective::recv;
    require(of_two || running_.main != &s,
            "{} of group '{}' on the main stream while layers run: its ranks ({}) are on several stages, which come to "
            "this at different times and would wait for each other for ever. Call it in Keeper::finish_sums, or on a "
            "side stream that the step waits for there (ParamGroup::scattered)",
            name_of(call.collective), name(), fmt::join(members(), " "));
    perform(call, *group_, s);
  }

 private:
  std::unique_ptr<Group> group_;
  const RunningLayers& running_;
};

}  // namespace

std::unique_ptr<Group> make_staged_group(std::unique_ptr<Group> group, const RunningLayers& running) {
  return std::make_unique<StagedGroup>(std::move(group), running);
}

}  // namespace orthant
