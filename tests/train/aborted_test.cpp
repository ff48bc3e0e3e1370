// A communicator of the device that is aborted leaves memory of any content, and says why only in a later call
// (plugins/nccl): what such numbers look like must not be reported as what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include <orthant/group_base.h>

#include "tests/support/experiment.h"

namespace orthant::test::aborted_test {
namespace {

// What all groups of a world of two see whose rank 1 dies while the step's sums are on their way.
struct Fate {
  bool aborted = false;
  int calls_since = 0;
};

class LeftAlone final : public GroupBase {
 public:
  LeftAlone(Fate& fate, std::string name, std::vector<int> members)
      : GroupBase(std::move(name), 0, std::move(members)), fate_(fate) {}

 private:
  void do_all_reduce(const Tensor& t, ReduceOp, Stream& s) override {
    call();
    if (t.dtype() == DType::f64) {  // sums of losses, squares of gradients
      s.fill(t, std::nan(""));
      fate_.aborted = true;
    }
  }
  void do_all_gather(const Tensor&, const Tensor&, Stream&) override { call(); }
  void do_reduce_scatter(const Tensor&, const Tensor&, ReduceOp, Stream&) override { call(); }
  void do_all_to_all(const Tensor&, const Tensor&, const Exchange&, Stream&) override { call(); }
  void do_broadcast(const Tensor&, int, Stream&) override { call(); }
  void do_reduce(const Tensor&, ReduceOp, int, Stream&) override { call(); }
  void do_gather(const Tensor&, const Tensor&, int, Stream&) override { call(); }
  void do_scatter(const Tensor&, const Tensor&, int, Stream&) override { call(); }
  void do_send(const Tensor&, int, Stream&) override { call(); }
  void do_recv(const Tensor&, int, Stream&) override { call(); }
  void do_barrier(Stream&) override { call(); }

  void call() { require(!fate_.aborted || fate_.calls_since++ < before_the_reason, "rank 1 was killed"); }
  // Two more sums of the step, and the first call of the search for what is not finite.
  static constexpr int before_the_reason = 3;
  Fate& fate_;
};

class LeftAloneWorld final : public Communicator {
 public:
  std::string name() const override { return "left alone"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override {
    return std::make_unique<LeftAlone>(fate_, name, members);
  }
  void abort(const std::string&) noexcept override {}

 private:
  Fate fate_;
};

TEST(Aborted, TheReasonIsReportedAndNotTheNumbersThatCameOfIt) {
  LeftAloneWorld world;
  const Config config = experiment({}, "[plugins.tensor]\nsize = 2\n");  // no keeper: they talk at the start
  TestRank rank(config, world);
  try {
    rank.trainer().step(0);
    FAIL() << "a step without its peer";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 was killed"));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("is not applied")));
  }
}

}  // namespace
}  // namespace orthant::test::aborted_test
