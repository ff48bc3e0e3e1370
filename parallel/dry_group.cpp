#include "parallel/dry_group.h"

#include <algorithm>

namespace orthant {
namespace {

class DryGroup final : public Group {
 public:
  DryGroup(std::string name, std::vector<int> members, int world_rank)
      : name_(std::move(name)), members_(std::move(members)) {
    rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), world_rank) - members_.begin());
  }
  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }
  void all_reduce(const Tensor&, ReduceOp, Stream&) override { refuse(); }
  void all_gather(const Tensor&, const Tensor&, Stream&) override { refuse(); }
  void reduce_scatter(const Tensor&, const Tensor&, ReduceOp, Stream&) override { refuse(); }
  void all_to_all(const Tensor&, std::span<const std::int64_t>, const Tensor&, std::span<const std::int64_t>,
                  Stream&) override {
    refuse();
  }
  void broadcast(const Tensor&, int, Stream&) override { refuse(); }
  void reduce(const Tensor&, ReduceOp, int, Stream&) override { refuse(); }
  void gather(const Tensor&, const Tensor&, int, Stream&) override { refuse(); }
  void scatter(const Tensor&, const Tensor&, int, Stream&) override { refuse(); }
  void send(const Tensor&, int, Stream&) override { refuse(); }
  void recv(const Tensor&, int, Stream&) override { refuse(); }
  void barrier(Stream&) override { refuse(); }

 private:
  [[noreturn]] void refuse() const { fail("group '{}' belongs to a dry run: it cannot communicate", name_); }
  std::string name_;
  std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace

std::unique_ptr<Group> make_dry_group(std::string name, std::vector<int> members, int world_rank) {
  return std::make_unique<DryGroup>(std::move(name), std::move(members), world_rank);
}

}  // namespace orthant
