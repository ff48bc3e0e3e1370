#include "nccl_communicator.h"

#include <algorithm>
#include <set>

#include <orthant/error.h>

#include "nccl_group.h"
#include "world.h"

namespace orthant::nccl {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclApi> api, const RendezvousConfig& config)
      : rank_(config.rank), size_(config.world_size) {
    if (size_ > 1) {
      world_ = std::make_shared<World>(std::move(api), config);
    }
  }

  std::string name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override {
    const int number = splits_++;
    const auto own = std::find(members.begin(), members.end(), rank_);
    require(own != members.end(), "split of group '{}': rank {} must pass the list that it belongs to", name, rank_);
    require(std::set<int>(members.begin(), members.end()).size() == members.size() &&
                *std::min_element(members.begin(), members.end()) >= 0 &&
                *std::max_element(members.begin(), members.end()) < size_,
            "split of group '{}': members must be different ranks of the world of {}", name, size_);
    const int group_rank = static_cast<int>(own - members.begin());
    auto connection = world_ == nullptr ? nullptr : world_->split(name, members);
    return std::make_unique<NcclGroup>(world_, std::move(connection), number, name, group_rank, members);
  }

  void abort(const std::string& why) noexcept override {
    if (world_ != nullptr) {
      try {
        world_->fail(fmt::format("rank {} failed: {}", rank_, why));
      } catch (...) {  // out of memory
        world_->fail(why);
      }
    }
  }

  void beat() noexcept override {
    if (world_ != nullptr) {
      world_->beat();
    }
  }

 private:
  int rank_, size_;
  int splits_ = 0;
  std::shared_ptr<World> world_;  // null in a world of one
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclApi> api, const RendezvousConfig& config) {
  return std::make_unique<NcclCommunicator>(std::move(api), config);
}

}  // namespace orthant::nccl
