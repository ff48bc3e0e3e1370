#include "apps/route/exchange_trial.h"

#include <orthant/gate.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/session/session.h"
#include "parallel/forwarding_communicator.h"
#include "parallel/intercepted_group.h"
#include "parallel/local/thread_world.h"
#include "router/routing_layout.h"

namespace orthant {
namespace {

// Bytes that leave a rank in all-to-alls, by whether they leave its node.
struct Sent {
  std::int64_t inside = 0, between = 0;
};

class CountingGroup final : public InterceptedGroup {
 public:
  CountingGroup(std::unique_ptr<Group> inner, Sent& sent, const ExpertLayout& layout)
      : InterceptedGroup(inner->name(), inner->members(), inner->rank()),
        inner_(std::move(inner)),
        sent_(sent),
        layout_(layout) {}

 private:
  void call(const GroupCall& c, Stream& s) override {
    if (c.collective == Collective::all_to_all && c.in.dim(0) > 0) {
      const auto row = static_cast<std::int64_t>(c.in.bytes()) / c.in.dim(0);
      for (int member = 0; member < size(); ++member) {
        const bool other_node = node_of(members()[static_cast<std::size_t>(member)]) !=
                                node_of(members()[static_cast<std::size_t>(rank())]);
        const std::int64_t bytes = member == rank() ? 0 : c.send_rows[static_cast<std::size_t>(member)] * row;
        (other_node ? sent_.between : sent_.inside) += bytes;
      }
    }
    perform(c, *inner_, s);
  }

  int node_of(int rank) const {
    const int place = rank % layout_.expert_ranks;
    return rank - place + (layout_.node_ranks > 0 ? place / layout_.node_ranks : 0);
  }

  std::unique_ptr<Group> inner_;
  Sent& sent_;
  const ExpertLayout& layout_;
};

class CountingCommunicator final : public ForwardingCommunicator {
 public:
  CountingCommunicator(Communicator& inner, Sent& sent, const ExpertLayout& layout)
      : ForwardingCommunicator(inner), sent_(sent), layout_(layout) {}

  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override {
    return std::make_unique<CountingGroup>(inner().split(name, members), sent_, layout_);
  }

 private:
  Sent& sent_;
  const ExpertLayout& layout_;
};

// What a rank packs of a layer and micro-batch, as Stream::dispatch_plan lays it out.
struct Packed {
  std::vector<std::int32_t> row;     // [T, K]
  std::vector<std::int32_t> source;  // [R]
  std::vector<std::int32_t> count;   // [E]
};

// `apart`: rows of each expert where they are equally many; 0: as many as there are.
Packed pack(const Decisions& made, std::int64_t first_token, std::int64_t tokens, std::int64_t apart) {
  const auto first = static_cast<std::size_t>(first_token * made.top_k),
             choices = static_cast<std::size_t>(tokens * made.top_k);
  Packed packed{std::vector<std::int32_t>(choices, -1), {}, std::vector<std::int32_t>(made.load.size(), 0)};
  for (std::size_t i = first; i < first + choices; ++i) {
    packed.count[static_cast<std::size_t>(std::max(made.expert[i], 0))] += made.kept[i];
  }
  std::vector<std::int32_t> next(made.load.size(), 0);
  for (std::size_t e = 0; e + 1 < next.size(); ++e) {
    next[e + 1] = next[e] + (apart > 0 ? static_cast<std::int32_t>(apart) : packed.count[e]);
  }
  packed.source.resize(static_cast<std::size_t>(next.back() + (apart > 0 ? apart : packed.count.back())), -1);
  for (std::size_t i = 0; i < choices; ++i) {
    if (made.kept[first + i] != 0) {
      std::int32_t& place = next[static_cast<std::size_t>(made.expert[first + i])];
      packed.source[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(i);
      packed.row[i] = place++;
    }
  }
  return packed;
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

// A rank's tokens of one layer and micro-batch, and where their rows go.
struct TrialLoad {
  std::int64_t tokens, top_k, apart;
  Tensor count, row, source;  // of Packed
  bool recomputed;
};

// One rank with the plan of the configuration.
class TriedRank {
 public:
  TriedRank(const Config& config, const ExpertLayout& layout, Communicator& plain)
      : layout_(layout),
        communicator_(plain, sent_, layout),
        device_(make_device("cpu", static_cast<int>(config.settings.run.threads))),
        stream_(device_->make_main_stream()),
        session_(config),
        dtype_(config.settings.run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16) {
    session_.plan(plain.rank(), &communicator_, device_.get());
    world_ = &session_.mesh().world_group("route");
  }

  int rank() const { return world_->rank(); }
  void barrier() {
    world_->barrier(*stream_);
    stream_->synchronize();
  }
  Sent take() { return std::exchange(sent_, {}); }

  TrialLoad load(const Decisions& made, std::size_t m) {
    const auto batches = static_cast<std::int64_t>(layout_.recomputed.size());
    const std::int64_t all = static_cast<std::int64_t>(made.kept.size()) / made.top_k, of_rank = all / layout_.ranks;
    const std::int64_t tokens = of_rank / batches, experts = static_cast<std::int64_t>(made.load.size());
    const Settings& settings = session_.plan().settings();
    const std::int64_t apart = rows_of_block(session_.plan(), gate_of(settings).config(settings), tokens);
    const Packed packed = pack(made, rank() * of_rank + static_cast<std::int64_t>(m) * tokens, tokens, apart);
    const auto rows = static_cast<std::int64_t>(packed.source.size());
    return {tokens,
            made.top_k,
            apart,
            uploaded(packed.count, {experts}),
            uploaded(packed.row, {tokens, made.top_k}),
            uploaded(packed.source, {rows, 1}),
            layout_.recomputed[m]};
  }
  ExchangePlan plan(const TrialLoad& load) {
    return load.apart > 0 ? exchange().plan_equal(load.count.elements(), load.apart)
                          : exchange().plan(load.count, *stream_, [] {});
  }

  // Rows of any width to the experts, and from them back to `to`.
  Tensor there(const Tensor& rows, const ExchangePlan& plan) {
    const Tensor at = device_->empty(rows.dtype(), {sum_of(plan.local), rows.dim(1)});
    for_each_chunk(plan, [&](int chunk, std::int64_t first, std::int64_t count) {
      exchange().to_experts(at.rows(first, count), rows, plan, chunk, *stream_);
    });
    return at;
  }
  void back(const Tensor& to, const Tensor& rows, const ExchangePlan& plan) {
    for_each_chunk(plan, [&](int chunk, std::int64_t first, std::int64_t count) {
      exchange().to_tokens(to, rows.rows(first, count), plan, chunk, *stream_);
    });
  }
  Tensor filled(DType dtype, const Shape& shape) {
    const Tensor t = device_->empty(dtype, shape);
    stream_->fill(t, 0.01);
    return t;
  }

  // All that Experts does with a layer, but the experts' own products.
  void pass(const TrialLoad& load) {
    const std::int64_t d = layout_.width, choices = load.tokens * load.top_k, rows = load.source.dim(0);
    const ExchangePlan plan = this->plan(load);
    const Tensor x = device_->empty(dtype_, {load.tokens, d}), packed = device_->empty(dtype_, {rows, d});
    const Tensor weight = device_->empty(DType::f32, {load.tokens, load.top_k}),
                 weights = device_->empty(DType::f32, {rows, 1});
    for (int forward = load.recomputed ? 0 : 1; forward < 2; ++forward) {
      stream_->pack(packed, x, load.row, load.source);
      back(packed, there(packed, plan), plan);
      stream_->combine(x, packed, load.row, weight, false);
    }
    const Tensor of_choices = load.row.view({choices, 1});
    stream_->pack(packed, x, load.row, load.source);
    stream_->pack(weights, weight.view({choices, 1}), of_choices, load.source);
    const Tensor dy = there(packed, plan), weight_there = there(weights, plan);
    back(packed, dy, plan);
    back(weights, weight_there, plan);
    stream_->pack_backward(x, packed, load.row, false);
    stream_->pack_backward(weight.view({choices, 1}), weights, of_choices, false);
  }

 private:
  TokenExchange& exchange() { return *session_.plan().exchange(); }
  Tensor uploaded(const std::vector<std::int32_t>& values, const Shape& shape) {
    const Tensor t = device_->empty(DType::i32, shape);
    stream_->upload(t, values.data());
    return t;
  }
  template <class Work>
  void for_each_chunk(const ExchangePlan& plan, Work work) {
    const int chunks = exchange().chunks();
    const auto experts = static_cast<std::ptrdiff_t>(plan.local.size()) / chunks;
    std::int64_t first = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const auto begin = plan.local.begin() + chunk * experts;
      const std::int64_t count = std::accumulate(begin, begin + experts, std::int64_t{0});
      work(chunk, first, count);
      first += count;
    }
  }

  const ExpertLayout& layout_;
  Sent sent_;
  CountingCommunicator communicator_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Session session_;
  Group* world_ = nullptr;
  const DType dtype_;
};

}  // namespace

bool ExchangeTrial::possible(const Config& config, const ExpertLayout& layout) {
  if (layout.ranks > LocalSegment::max_world) {
    return false;
  }
  Session session(config);
  session.plan(0, nullptr, nullptr);
  return session.plan().exchange() != nullptr;
}

std::vector<Travel> ExchangeTrial::travels(const std::vector<Decisions>& layers) const {
  const std::size_t batches = layout_.recomputed.size();
  std::vector<Travel> all(layers.size());
  std::mutex mutex;
  for (Travel& travel : all) {
    travel.rows.assign(batches, std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(layout_.ranks)));
  }
  run_threads(layout_.ranks, [&](Communicator& communicator) {
    TriedRank rank(config_, layout_, communicator);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (std::size_t m = 0; m < batches; ++m) {
        const TrialLoad load = rank.load(layers[i], m);
        rank.take();
        const ExchangePlan plan = rank.plan(load);
        const Sent counts = rank.take();
        const Tensor rows = rank.filled(DType::f32, load.source.shape());
        rank.back(rows, rank.there(rows, plan), plan);
        const Sent moved = rank.take();  // 4 bytes a row, there and back
        const std::int64_t passes = layout_.recomputed[m] ? 3 : 2, row = layout_.width * layout_.element_bytes;
        const auto bytes = [&](std::int64_t of_rows) { return of_rows / 4 * (passes * row + 4); };
        const std::lock_guard lock(mutex);
        all[i].bytes_inside += counts.inside + bytes(moved.inside);
        all[i].bytes_between += counts.between + bytes(moved.between);
        all[i].rows[m][static_cast<std::size_t>(rank.rank())] = plan.local;
        all[i].tokens = load.tokens;
        all[i].top_k = load.top_k;
      }
    }
  });
  return all;
}

double ExchangeTrial::seconds(const std::vector<Decisions>& layers) const {
  constexpr int fewest = 4;
  constexpr double least_seconds = 0.5;
  double best = 0, spent = 0;
  std::atomic<bool> enough = false;
  run_threads(layout_.ranks, [&](Communicator& communicator) {
    TriedRank rank(config_, layout_, communicator);
    std::vector<TrialLoad> loads;
    for (const Decisions& layer : layers) {
      for (std::size_t m = 0; m < layout_.recomputed.size(); ++m) {
        loads.push_back(rank.load(layer, m));
      }
    }
    for (int i = 0; !enough; ++i) {
      rank.barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (const TrialLoad& load : loads) {
        rank.pass(load);
      }
      rank.barrier();
      if (rank.rank() == 0) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        best = i <= 1 ? seconds : std::min(best, seconds);  // the first finds cold memory
        spent += seconds;
        enough = i >= fewest && spent >= least_seconds;
      }
      rank.barrier();
    }
  });
  return best;
}

}  // namespace orthant
