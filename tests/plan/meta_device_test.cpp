// The meta device and the communicator that only writes down, by themselves.
#include <gtest/gtest.h>

#include <numeric>

#include "core/dry_run/meta_device.h"
#include "core/dry_run/planning_communicator.h"

namespace orthant::meta_device_test {
namespace {

TEST(MetaDevice, CountsBytesToTheByteAndTakesNone) {
  MetaDevice device;
  const Tensor small = device.empty(DType::f32, {3});
  {
    const Tensor huge = device.empty(DType::bf16, {1 << 20, 1 << 19});  // a tebibyte
    EXPECT_EQ(device.memory().current_bytes, 12 + (std::int64_t{1} << 40));
  }
  EXPECT_EQ(device.memory().current_bytes, 12);
  EXPECT_EQ(device.memory().peak_bytes, 12 + (std::int64_t{1} << 40));
  device.reset_peak();
  EXPECT_EQ(device.memory().peak_bytes, 12);
}

TEST(MetaDevice, SmallTensorsHoldDataAndOperationsLeaveThem) {
  MetaDevice device;
  const auto stream = device.make_main_stream();
  const Tensor a = device.empty(DType::i64, {4}), b = device.empty(DType::i64, {4});
  std::vector<std::int64_t> host = {1, 2, 3, 4}, back(4, -1);
  stream->download(back.data(), a);
  EXPECT_EQ(back, (std::vector<std::int64_t>{0, 0, 0, 0}));
  stream->upload(a, host.data());
  stream->copy(b, a);
  stream->download(back.data(), b);
  EXPECT_EQ(back, host);
  stream->fill(b.slice(1, {2}), 9);
  stream->download(back.data(), b);
  EXPECT_EQ(back, (std::vector<std::int64_t>{1, 9, 9, 4}));

  const Tensor x = device.empty(DType::f32, {2}), total = device.empty(DType::f64, {1});
  stream->fill(x, 3);
  stream->fill(total, 5);
  stream->sum_squares(total, x);
  double value = 0;
  stream->download(&value, total);
  EXPECT_EQ(value, 5);
}

TEST(MetaDevice, ALargeTensorIsNotReadBack) {
  MetaDevice device;
  const auto stream = device.make_main_stream();
  const Tensor large = device.empty(DType::f32, {1 << 20});
  EXPECT_FALSE(holds_data(large.slice(0, {1})));
  std::vector<float> host(1);
  stream->upload(large.slice(0, {1}), host.data());
  EXPECT_THROW(stream->download(host.data(), large.slice(0, {1})), Error);
}

struct Load {
  std::vector<std::int32_t> kept, dropped;
};

Load planned_load(std::int64_t tokens, const GateConfig& config) {
  MetaDevice device;
  const auto stream = device.make_main_stream();
  const Tensor none, expert = device.empty(DType::i32, {tokens, config.top_k});
  const Tensor count = device.empty(DType::i32, {config.experts}), dropped = device.empty(DType::i32, {config.experts});
  const Tensor offset = device.empty(DType::i32, {config.experts + 1});
  stream->dispatch_plan(none, none, count, dropped, offset, expert, none, none, config);
  Load load;
  load.kept.resize(config.experts);
  load.dropped.resize(load.kept.size());
  stream->download(load.kept.data(), count);
  stream->download(load.dropped.data(), dropped);
  return load;
}

TEST(BalancedRouting, EveryChoiceIsMadeAndNoExpertHasMoreThanOneMore) {
  for (std::int64_t experts : {1, 3, 8, 64}) {
    for (std::int64_t k : {1, 2, 3}) {
      for (std::int64_t groups : {1, 2, 5}) {
        const Load load = planned_load(groups * 7, {.experts = experts, .top_k = k, .group_tokens = 7});
        EXPECT_EQ(std::accumulate(load.kept.begin(), load.kept.end(), 0), groups * 7 * k);
        EXPECT_EQ(std::accumulate(load.dropped.begin(), load.dropped.end(), 0), 0);
        const auto [least, most] = std::minmax_element(load.kept.begin(), load.kept.end());
        EXPECT_LE(*most - *least, 1) << experts << " experts, " << k << " choices, " << groups << " groups";
      }
    }
  }
}

TEST(BalancedRouting, ACapacityOfOneLetsEveryChoiceIn) {
  const Load load = planned_load(20, {.experts = 8, .top_k = 2, .capacity_factor = 1.0, .group_tokens = 5});
  EXPECT_EQ(std::accumulate(load.kept.begin(), load.kept.end(), 0), 40);
}

TEST(BalancedRouting, ASmallCapacityFillsEveryExpert) {
  // ceil(0.5 * 2 * 12 / 4) = 3 seats of each expert in each of 3 groups; 6 choices want them.
  const Load load = planned_load(36, {.experts = 4, .top_k = 2, .capacity_factor = 0.5, .group_tokens = 12});
  EXPECT_EQ(load.kept, (std::vector<std::int32_t>{9, 9, 9, 9}));
  EXPECT_EQ(load.dropped, (std::vector<std::int32_t>{9, 9, 9, 9}));
}

// Half of the choices got seats among all tokens; of this rank's quarter of them too.
TEST(BalancedRouting, SeatsDecidedOnWholeGroupsAreSharedEvenly) {
  MetaDevice device;
  const auto stream = device.make_main_stream();
  const GateConfig limited{.experts = 4, .top_k = 2, .capacity_factor = 0.5, .group_tokens = 12};
  const Tensor none, all = device.empty(DType::i32, {48, 2}), own = device.empty(DType::i32, {12, 2});
  const Tensor count = device.empty(DType::i32, {4}), dropped = device.empty(DType::i32, {4});
  const Tensor offset = device.empty(DType::i32, {5});
  stream->dispatch_plan(none, none, count, dropped, offset, all, none, none, limited);
  stream->keep_seated(own, none);
  GateConfig unlimited = limited;
  unlimited.capacity_factor = 0;
  stream->dispatch_plan(none, none, count, dropped, offset, own, none, none, unlimited);
  std::vector<std::int32_t> kept(4);
  stream->download(kept.data(), count);
  EXPECT_EQ(kept, (std::vector<std::int32_t>{3, 3, 3, 3}));  // 48 * 2 / 2 seats: 12 here
}

class Groups : public testing::Test {
 protected:
  Tensor numbers(std::vector<std::int64_t> values) {
    const Tensor t = device_.empty(DType::i64, {static_cast<std::int64_t>(values.size())});
    stream_->upload(t, values.data());
    return t;
  }
  std::vector<std::int64_t> values(const Tensor& t) {
    std::vector<std::int64_t> host(t.elements());
    stream_->download(host.data(), t);
    return host;
  }

  MetaDevice device_;
  std::unique_ptr<Stream> stream_ = device_.make_main_stream();
  CollectiveRecord record_;
  std::unique_ptr<Communicator> communicator_ = make_planning_communicator(5, 8, record_);
  std::unique_ptr<Group> group_ = communicator_->split("odd", {1, 3, 5, 7});  // rank 2 of 4
};

// Numbers worked out by hand for four members and 100 floats.
TEST_F(Groups, BytesThatLeaveTheRank) {
  const Tensor whole = device_.empty(DType::f32, {400}), part = device_.empty(DType::f32, {100});
  const Tensor rows = device_.empty(DType::f32, {100, 1});
  const std::vector<std::int64_t> send = {10, 20, 30, 40}, receive = {25, 25, 25, 25};
  Stream& s = *stream_;
  group_->all_reduce(part, ReduceOp::sum, s);
  group_->all_gather(whole, part, s);
  group_->reduce_scatter(part, whole, ReduceOp::sum, s);
  group_->all_to_all(rows, receive, rows, send, s);
  group_->broadcast(part, 0, s);
  group_->reduce(part, ReduceOp::sum, 0, s);
  group_->gather(whole, part, 0, s);
  group_->scatter(part, whole, 2, s);
  group_->send(part, 3, s);
  group_->recv(part, 1, s);
  group_->barrier(s);
  std::vector<std::pair<std::string, std::int64_t>> sent;
  for (const CollectiveCall& call : record_.calls) {
    sent.emplace_back(call.operation, call.bytes_sent);
  }
  EXPECT_EQ(sent, (std::vector<std::pair<std::string, std::int64_t>>{{"all_reduce", 600},
                                                                     {"all_gather", 1200},
                                                                     {"reduce_scatter", 1200},
                                                                     {"all_to_all", 280},
                                                                     {"broadcast", 300},
                                                                     {"reduce", 300},
                                                                     {"gather", 400},
                                                                     {"scatter", 1200},
                                                                     {"send", 400},
                                                                     {"recv", 0},
                                                                     {"barrier", 0}}));
}

TEST_F(Groups, SmallResultsAreThoseOfEqualPeers) {
  Stream& s = *stream_;
  const Tensor t = numbers({1, 2}), all = numbers({0, 0, 0, 0, 0, 0, 0, 0});
  group_->all_gather(all, t, s);
  EXPECT_EQ(values(all), (std::vector<std::int64_t>{1, 2, 1, 2, 1, 2, 1, 2}));
  group_->all_reduce(t, ReduceOp::sum, s);
  EXPECT_EQ(values(t), (std::vector<std::int64_t>{4, 8}));
  group_->all_reduce(t, ReduceOp::max, s);
  EXPECT_EQ(values(t), (std::vector<std::int64_t>{4, 8}));
  const Tensor counts = numbers({10, 11, 20, 21, 30, 31, 40, 41}), one = numbers({0, 0});
  group_->reduce_scatter(one, counts, ReduceOp::sum, s);
  EXPECT_EQ(values(one), (std::vector<std::int64_t>{120, 124}));  // four times block 2
  const std::vector<std::int64_t> two = {2, 2, 2, 2};
  group_->all_to_all(all, two, counts, two, s);
  EXPECT_EQ(values(all), (std::vector<std::int64_t>{30, 31, 30, 31, 30, 31, 30, 31}));  // what peers send to rank 2
}

TEST_F(Groups, ARankMakesOnlyGroupsItBelongsTo) {
  EXPECT_THROW(communicator_->split("even", {0, 2, 4, 6}), Error);
}

}  // namespace
}  // namespace orthant::meta_device_test
