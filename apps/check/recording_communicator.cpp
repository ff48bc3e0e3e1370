#include "apps/check/recording_communicator.h"

#include <fmt/ranges.h>

#include "parallel/intercepted_group.h"

namespace orthant {
namespace {

class RecordingGroup final : public InterceptedGroup {
 public:
  RecordingGroup(std::unique_ptr<Group> inner, std::string label, int world_rank, CallRecord& record)
      : InterceptedGroup(inner->name(), inner->members(), inner->rank()),
        inner_(std::move(inner)),
        label_(std::move(label)),
        world_rank_(world_rank),
        record_(record) {}

 private:
  void call(const GroupCall& call, Stream& s) override {
    write(call);
    perform(call, *inner_, s);
  }

  void write(const GroupCall& c) {
    const std::lock_guard lock(record_.mutex);
    if (c.collective == Collective::all_to_all) {
      record_.exchanged[label_][world_rank_].push_back(bytes_to_others(c));
    } else if (c.collective == Collective::send) {
      record_.exchanged[label_][world_rank_].push_back(static_cast<std::int64_t>(c.in.bytes()));
    }
    if (c.collective != Collective::send && c.collective != Collective::recv) {
      record_.calls[label_][world_rank_].push_back(text(c));
      record_.members[label_] = members().size();
    }
  }

  // The call with its size, where all members' agree.
  static std::string text(const GroupCall& c) {
    const char* name = name_of(c.collective);
    if (c.collective == Collective::barrier) {
      return name;
    }
    if (c.collective == Collective::all_to_all) {
      return fmt::format("{} {}", name, name_of(c.in.dtype()));
    }
    const bool by_out = c.collective == Collective::reduce_scatter || c.collective == Collective::scatter;
    const Tensor& t = by_out ? c.out : c.in;
    return fmt::format("{} {} {}", name, name_of(t.dtype()), t.elements());
  }

  std::int64_t bytes_to_others(const GroupCall& c) const {
    const std::int64_t rows = c.in.dim(0), bytes = static_cast<std::int64_t>(c.in.bytes());
    std::int64_t others = 0;
    for (int r = 0; r < size(); ++r) {
      others += r == rank() ? 0 : c.send_rows[r];
    }
    return rows == 0 ? 0 : others * (bytes / rows);
  }

  std::unique_ptr<Group> inner_;
  std::string label_;
  int world_rank_;
  CallRecord& record_;
};

}  // namespace

std::unique_ptr<Group> RecordingCommunicator::split(const std::string& name, const std::vector<int>& members) {
  std::string label = fmt::format("{} #{} [{}]", name, splits_++, fmt::join(members, " "));
  return std::make_unique<RecordingGroup>(inner().split(name, members), std::move(label), inner().rank(), record_);
}

}  // namespace orthant
