#include "parallel/local/local_communicator.h"

#include <algorithm>
#include <set>

#include <orthant/host_channel.h>

#include "parallel/local/channel.h"

namespace orthant {
namespace {

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalSegment> segment, int rank, double timeout_seconds)
      : segment_(std::move(segment)), rank_(rank), timeout_seconds_(timeout_seconds) {
    require(rank_ >= 0 && rank_ < segment_->world_size(), "rank {} is not in a world of {} ranks", rank_,
            segment_->world_size());
    require(timeout_seconds_ > 0, "the timeout of collectives must be positive, not {} s", timeout_seconds_);
    segment_->set_state(rank_, RankState::running);
  }

  std::string name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return segment_->world_size(); }

  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override {
    // Counted for groups of one too: the number is the same on every rank.
    const int channel = splits_++;
    const auto own = std::find(members.begin(), members.end(), rank_);
    require(own != members.end(), "split of group '{}': rank {} must pass the list that it belongs to", name, rank_);
    require(std::set<int>(members.begin(), members.end()).size() == members.size() &&
                *std::min_element(members.begin(), members.end()) >= 0 &&
                *std::max_element(members.begin(), members.end()) < size(),
            "split of group '{}': members must be different ranks of the world of {}", name, size());
    const int group_rank = static_cast<int>(own - members.begin());
    require(
        channel < segment_->options().channels,
        "split of group '{}': the world's {} channels are used up, one for each group ever made: make groups once and "
        "keep them, or raise SegmentOptions::channels (ulimit -f and -v lower it)",
        name, segment_->options().channels);
    std::shared_ptr<HostChannel> host;
    if (members.size() > 1) {
      host = std::make_shared<LocalChannel>(segment_, channel, name, members, group_rank, timeout_seconds_);
    }
    return make_host_group(name, group_rank, members, std::move(host));
  }

  void abort(const std::string& why) noexcept override { segment_->mark_failed(rank_, why); }
  void beat() noexcept override { segment_->say_busy(rank_); }
  void report_step(std::int64_t step) noexcept override { segment_->set_step(rank_, step); }

 private:
  std::shared_ptr<LocalSegment> segment_;
  int rank_;
  double timeout_seconds_;
  int splits_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(std::shared_ptr<LocalSegment> segment, int rank,
                                                      double timeout_seconds) {
  return std::make_unique<LocalCommunicator>(std::move(segment), rank, timeout_seconds);
}

}  // namespace orthant
