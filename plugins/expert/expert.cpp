// The expert axis: each rank holds some of the experts of every routed layer; packed token rows travel to them and
// back by all-to-all with variable counts (Lepikhin et al., "GShard"). Carved from the ranks that split tokens.
#include <orthant/plugin.h>

#include <numeric>

namespace {

using namespace orthant;

class AllToAll final : public TokenExchange {
 public:
  explicit AllToAll(Group& group) : group_(group) {}

  ExchangePlan plan(std::span<const std::int64_t> rows_of_expert, Stream& s) override {
    const std::int64_t ranks = group_.size(), experts = static_cast<std::int64_t>(rows_of_expert.size());
    const std::int64_t local = experts / ranks;
    ExchangePlan plan;
    plan.send.assign(rows_of_expert.begin(), rows_of_expert.end());
    plan.receive.resize(static_cast<std::size_t>(experts));
    Device& device = s.device();
    Tensor out = device.empty(DType::i64, {experts}), in = device.empty(DType::i64, {experts});
    s.upload(in, plan.send.data());
    const std::vector<std::int64_t> each(static_cast<std::size_t>(ranks), local);
    group_.all_to_all(out, each, in, each, s);
    s.download(plan.receive.data(), out);
    plan.local.assign(static_cast<std::size_t>(local), 0);
    for (std::size_t i = 0; i < plan.receive.size(); ++i) {
      plan.local[i % static_cast<std::size_t>(local)] += plan.receive[i];
    }
    return plan;
  }

  Tensor to_experts(const Tensor& rows, const ExchangePlan& plan, Stream& s) override {
    const Counts counts(plan, group_.size());
    Tensor arrived = s.device().empty(rows.dtype(), {counts.received, rows.dim(1)});
    group_.all_to_all(arrived, counts.from_rank, rows, counts.to_rank, s);
    return regroup(arrived, plan, true, s);
  }

  Tensor to_tokens(const Tensor& rows, const ExchangePlan& plan, Stream& s) override {
    const Counts counts(plan, group_.size());
    Tensor back = s.device().empty(rows.dtype(), {counts.sent, rows.dim(1)});
    group_.all_to_all(back, counts.to_rank, regroup(rows, plan, false, s), counts.from_rank, s);
    return back;
  }

 private:
  struct Counts {
    Counts(const ExchangePlan& plan, int ranks)
        : to_rank(static_cast<std::size_t>(ranks), 0), from_rank(static_cast<std::size_t>(ranks), 0) {
      const std::size_t local = plan.local.size();
      for (std::size_t i = 0; i < plan.send.size(); ++i) {
        to_rank[i / local] += plan.send[i];
        from_rank[i / local] += plan.receive[i];
      }
      sent = std::accumulate(to_rank.begin(), to_rank.end(), std::int64_t{0});
      received = std::accumulate(from_rank.begin(), from_rank.end(), std::int64_t{0});
    }
    std::vector<std::int64_t> to_rank, from_rank;  // [ranks] rows
    std::int64_t sent = 0, received = 0;
  };

  // Between the order of arrival (source rank, local expert) and that of the experts (local expert, source rank).
  Tensor regroup(const Tensor& rows, const ExchangePlan& plan, bool by_expert, Stream& s) const {
    const std::size_t local = plan.local.size(), ranks = plan.receive.size() / local;
    if (ranks == 1 || local == 1) {
      return rows;
    }
    std::vector<std::int64_t> arrival(plan.receive.size());  // first row of (rank, expert) in order of arrival
    std::exclusive_scan(plan.receive.begin(), plan.receive.end(), arrival.begin(), std::int64_t{0});
    std::vector<RowRun> runs;
    std::int64_t at = 0;
    for (std::size_t e = 0; e < local; ++e) {
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::size_t i = r * local + e;
        if (plan.receive[i] > 0) {
          runs.push_back(by_expert ? RowRun{arrival[i], at, plan.receive[i]} : RowRun{at, arrival[i], plan.receive[i]});
        }
        at += plan.receive[i];
      }
    }
    Tensor out = s.device().empty(rows.dtype(), rows.shape());
    s.copy_rows(out, rows, runs);
    return out;
  }

  Group& group_;
};

class Expert final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size",
             .default_value = std::int64_t{1},
             .help = "Ranks that share the experts of a layer, carved from those that split tokens.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "dispatch",
             .default_value = std::string("all_to_all"),
             .help = "How rows travel to their experts. Only one exchange of all ranks is available so far.",
             .choices = {"all_to_all"}}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    axis_ = mesh.claim({.name = "expert",
                        .size = static_cast<int>(config.integer("size")),
                        .splits = {Dim::expert},
                        .carve_of = {{Region::experts, Dim::batch}, {Region::experts, Dim::position}}});
  }

  void plan(Plan& plan, Mesh& mesh) override {
    const std::int64_t experts = plan.settings().moe.experts;
    if (experts == 0) {
      throw ConfigError("the model has no experts (moe.experts = 0): remove [plugins.expert] or set moe.experts");
    }
    plan.part(Dim::expert, experts, Region::experts);  // refuses what does not divide
    plan.bind(std::make_unique<AllToAll>(mesh.group(axis_)));
  }

 private:
  AxisId axis_ = 0;
};

}  // namespace

ORTHANT_PLUGIN("expert", Expert)
