// An expert axis that is wrong on purpose. [plugins.broken_expert] size, fault:
//   none         right (one expert on each rank, no more)
//   swapped      rows come back as if the first two ranks were each other
//   no_gradient  rows travel well, but nothing travels in the backward pass
//   shuffled     rows reach the experts in another order, and come back in that order
#include <orthant/plugin.h>

#include <algorithm>
#include <numeric>

namespace {

using namespace orthant;

class BrokenExchange final : public TokenExchange {
 public:
  BrokenExchange(Group& group, std::string fault) : group_(group), fault_(std::move(fault)) {}

  ExchangePlan plan(const Tensor& rows_of_expert, Stream& s, const std::function<void()>& meanwhile) override {
    const std::int64_t ranks = group_.size();
    require(rows_of_expert.elements() == ranks, "broken_expert needs one expert a rank");
    const Tensor arrived = s.device().empty(DType::i32, {ranks});
    const std::vector<std::int64_t> each(ranks, 1);
    group_.all_to_all(arrived, each, rows_of_expert, each, s);
    meanwhile();
    const auto read = [&](const Tensor& counts) {
      std::vector<std::int32_t> host(ranks);
      s.download(host.data(), counts);
      return std::vector<std::int64_t>(host.begin(), host.end());
    };
    ExchangePlan plan;
    plan.send = read(rows_of_expert);
    plan.receive = read(arrived);
    plan.local = {std::accumulate(plan.receive.begin(), plan.receive.end(), std::int64_t{0})};
    calls_ = 0;
    return plan;
  }

  void to_experts(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int, Stream& s) override {
    const Tensor arrived = s.device().empty(to.dtype(), to.shape());
    group_.all_to_all(arrived, plan.receive, rows, plan.send, s);
    if (fault_ == "no_gradient" && calls_++ > 0) {
      s.fill(arrived, 0);
    }
    s.copy(to, fault_ == "shuffled" ? rotated(arrived, 1, s) : arrived);
  }

  void to_tokens(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int, Stream& s) override {
    if (fault_ != "swapped") {
      group_.all_to_all(to, plan.send, rows, plan.receive, s);
      return;
    }
    Tensor right = s.device().empty(rows.dtype(), to.shape());
    group_.all_to_all(right, plan.send, rows, plan.receive, s);
    // The blocks of ranks 0 and 1 in each other's places.
    const std::int64_t sent = to.dim(0), a = plan.send[0], b = plan.send[1];
    std::vector<RowRun> runs;
    for (const RowRun& run : {RowRun{0, b, a}, RowRun{a, 0, b}, RowRun{a + b, a + b, sent - a - b}}) {
      if (run.rows > 0) {
        runs.push_back(run);
      }
    }
    s.copy_rows(to, right, runs);
  }

 private:
  static Tensor rotated(const Tensor& rows, std::int64_t by, Stream& s) {
    const std::int64_t n = rows.dim(0);
    if (n <= by) {
      return rows;
    }
    Tensor out = s.device().empty(rows.dtype(), rows.shape());
    s.copy_rows(out, rows, std::vector<RowRun>{{0, by, n - by}, {n - by, 0, by}});
    return out;
  }

  Group& group_;
  std::string fault_;
  int calls_ = 0;  // of to_experts, since the last plan
};

class BrokenExpert final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Ranks that share the experts.", .minimum = 1},
            {.name = "fault", .default_value = std::string("none"), .help = "What is wrong."}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    axis_ = mesh.claim({.name = "broken_expert",
                        .size = static_cast<int>(config.integer("size")),
                        .splits = {Dim::expert},
                        .carve_of = {{Region::experts, Dim::batch}, {Region::experts, Dim::position}}});
    fault_ = config.text("fault");
  }
  void plan(Plan& plan, Mesh& mesh) override { plan.bind(std::make_unique<BrokenExchange>(mesh.group(axis_), fault_)); }

 private:
  AxisId axis_ = 0;
  std::string fault_;
};

}  // namespace

ORTHANT_PLUGIN("broken_expert", BrokenExpert)
