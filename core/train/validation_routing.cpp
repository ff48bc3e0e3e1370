#include "core/train/validation_routing.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/arch/decoder.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// More experts make a table that nobody reads.
constexpr std::int64_t most_paired_experts = 64;

// Of a set, whatever the order of its members; never 0.
std::uint32_t set_hash(const std::int32_t* expert, std::int64_t count) {
  std::uint32_t sum = 0x9E3779B9u;
  for (std::int64_t k = 0; k < count; ++k) {
    if (expert[k] >= 0) {
      std::uint32_t h = static_cast<std::uint32_t>(expert[k]) + 1;
      h = (h ^ h >> 16) * 0x85EBCA6Bu;
      h = (h ^ h >> 13) * 0xC2B2AE35u;
      sum += h ^ h >> 16;
    }
  }
  return sum == 0 ? 1 : sum;
}

}  // namespace

ValidationRouting::ValidationRouting(const Plan& plan, Group& ranks)
    : plan_(plan), ranks_(ranks), links_(routed_links(plan.links())), seen_(links_.size()) {}

void ValidationRouting::begin() {
  const MoeSettings& moe = plan_.settings().moe;
  const bool pairs = moe.top_k > 1 && moe.columns() <= most_paired_experts;
  for (Layer& layer : seen_) {
    layer.tokens = layer.changed = 0;
    layer.pairs.assign(pairs ? static_cast<std::size_t>(moe.columns() * moe.columns()) : 0, 0);
  }
  pass_of_.clear();
  passes_.clear();
}

void ValidationRouting::loaded(int pass, const DeviceBatch& batch) {
  if (plan_.counts_tokens(Region::router, true)) {
    std::vector<Tensor>& valid = passes_[pass].valid;
    valid = {batch.whole_valid};
    std::transform(batch.spaces.begin(), batch.spaces.end(), std::back_inserter(valid),
                   [](const DeviceBatch& space) { return space.whole_valid; });
    for (const Tensor& of_space : valid) {
      pass_of_[of_space.data()] = pass;
    }
  }
}

void ValidationRouting::decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) {
  const auto pass = pass_of_.find(from.valid.data());
  if (!ctx.training && pass != pass_of_.end()) {
    passes_.at(pass->second).expert[routed] = made.expert;
  }
}

void ValidationRouting::passed(int pass, Stream& s) {
  const auto found = passes_.extract(pass);
  if (found.empty()) {
    return;
  }
  const Pass& of = found.mapped();
  std::vector<std::vector<std::uint8_t>> valid;  // of each token space
  for (const Tensor& of_space : of.valid) {
    pass_of_.erase(of_space.data());
    valid.emplace_back(static_cast<std::size_t>(of_space.elements()));
    s.download(valid.back().data(), of_space);
  }
  for (const auto& [routed, expert] : of.expert) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(expert.elements()));
    s.download(host.data(), expert);
    const std::size_t number = static_cast<std::size_t>(routed);
    add(seen_.at(number), pass, host, valid.at(static_cast<std::size_t>(links_.at(number)->space)));
  }
}

void ValidationRouting::add(Layer& to, int pass, const std::vector<std::int32_t>& expert,
                            const std::vector<std::uint8_t>& valid) {
  const std::size_t experts = static_cast<std::size_t>(plan_.settings().moe.columns());
  const std::size_t k_count = valid.empty() ? 0 : expert.size() / valid.size();
  std::vector<std::uint32_t>& last = to.sets[pass];
  last.resize(valid.size(), 0);
  for (std::size_t t = 0; t < valid.size(); ++t) {
    if (valid[t] == 0) {
      continue;
    }
    const std::int32_t* const own = expert.data() + t * k_count;
    const std::uint32_t set = set_hash(own, static_cast<std::int64_t>(k_count));
    to.tokens += 1;
    to.changed += set != last[t] ? 1 : 0;
    last[t] = set;
    for (std::size_t a = 0; !to.pairs.empty() && a < k_count; ++a) {
      for (std::size_t b = 0; own[a] >= 0 && b < k_count; ++b) {
        if (a != b && own[b] >= 0) {
          ++to.pairs[static_cast<std::size_t>(own[a]) * experts + static_cast<std::size_t>(own[b])];
        }
      }
    }
  }
}

std::vector<ValidatedRouting> ValidationRouting::finish(Stream& s) {
  std::vector<std::int64_t> numbers;
  for (const Layer& layer : seen_) {
    numbers.insert(numbers.end(), {layer.tokens, layer.changed});
    numbers.insert(numbers.end(), layer.pairs.begin(), layer.pairs.end());
  }
  all_reduce_values(numbers, ReduceOp::sum, ranks_, s);
  ++validations_;
  std::vector<ValidatedRouting> found;
  auto next = numbers.begin();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    ValidatedRouting& to = found.emplace_back();
    to.block = links_[i]->block;
    const double tokens = static_cast<double>(*next++), changed = static_cast<double>(*next++);
    if (validations_ > 1 && tokens > 0) {
      to.churn = changed / tokens;
    }
    const auto pairs = static_cast<std::ptrdiff_t>(seen_[i].pairs.size());
    to.pairs.assign(next, next + pairs);
    next += pairs;
  }
  return found;
}

}  // namespace orthant
