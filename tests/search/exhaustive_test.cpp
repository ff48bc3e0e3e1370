// The search against the timing of all layouts: random small models, machines, ranks and memories.
//
// The other side shares the rules (refusal(), which layouts_test.cpp compares with the program) and the model of time.
// It shares neither the enumeration nor a bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "apps/search/candidate.h"
#include "apps/search/search.h"

namespace orthant::search_test {
namespace {

using namespace search;

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  double between(double least, double most) {
    return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random_));
  }

 private:
  std::mt19937 random_;
};

cost::Machine random_machine(Dice& dice) {
  cost::Machine machine;
  machine.name = machine.generation = "random";
  machine.peak = {dice.between(1e11, 1e13), dice.between(1e13, 1e15), 0, 0};
  machine.memory = 1e12;
  machine.memory_bandwidth = dice.between(1e10, 1e13);
  const int node = dice.of({1, 2, 4});
  machine.links = {{"near", node, dice.between(1e9, 1e12), dice.between(1e-7, 1e-4), dice.of({true, false})},
                   {"far", 0, dice.between(1e8, 1e11), dice.between(1e-7, 1e-3), false}};
  if (dice.of({0, 0, 1}) == 1) {
    machine.links.pop_back();
    machine.links[0].ranks = 0;
  }
  machine.factors = {dice.between(0.2, 1), dice.between(0.2, 1), dice.between(0.2, 1), dice.between(0.2, 1),
                     dice.between(1e-8, 1e-5)};
  if (dice.of({true, false})) {
    machine.host = {dice.between(1e9, 1e11), dice.between(1e9, 1e11), dice.between(1e6, 1e12)};
  }
  return machine;
}

Problem random_problem(unsigned seed) {
  Dice dice(seed);
  Problem problem;
  problem.machine = random_machine(dice);
  cost::ModelShape& model = problem.model;
  model.layers = dice.of({1, 2, 3, 4, 5});
  model.heads = dice.of({2, 3, 4, 8});
  model.kv_heads = dice.of({1, model.heads});
  model.head_size = 16;
  model.hidden = model.heads * model.head_size;
  model.ffn = dice.of({48.0, 64.0, 96.0});
  model.sequence = dice.of({12.0, 16.0, 64.0});
  model.vocabulary = dice.of({96.0, 128.0, 4096.0});
  model.gated = dice.of({true, false});
  model.tied = dice.of({true, false});
  model.biases = false;
  if (dice.of({true, true, false})) {
    model.experts = dice.of({2, 4, 6});
    model.top_k = dice.of({1, 2});
    model.expert_ffn = dice.of({24.0, 32.0});
    model.shared_ffn = dice.of({0.0, 32.0});
    model.routed_every = dice.of({1, 1, 2});
    model.dense_layers = dice.of({0, 0, 1});
    if (dice.of({0, 0, 0, 1}) == 1) {
      for (int m = 0; m < 3; ++m) {
        problem.loads.emplace_back();
        for (int layer = 0; layer < 2; ++layer) {
          std::vector<double>& load = problem.loads.back().emplace_back();
          for (int expert = 0; expert < model.experts; ++expert) {
            load.push_back(dice.between(1, 20));
          }
        }
      }
      for (int ranks = 1; ranks <= model.experts; ++ranks) {
        if (model.experts % ranks == 0) {
          problem.recorded[ranks] = cost::routing_of(problem.loads, cost::in_order(problem.loads, ranks), ranks);
        }
      }
    } else {
      problem.routing.skew = dice.between(1, 2);
    }
  }
  problem.base.ranks = dice.of({1, 2, 3, 4, 4, 6});
  problem.base.global_batch = dice.of({2.0, 4.0, 6.0});
  problem.base.libraries = 0;
  problem.batches = {static_cast<std::int64_t>(problem.base.global_batch)};
  problem.heads = model.heads;
  problem.key_heads = model.kv_heads;
  problem.positions = static_cast<std::int64_t>(model.sequence);
  problem.most_tokens = 1 << 20;
  problem.tensor = {{"heads", model.heads},
                    {"channels", static_cast<std::int64_t>(model.ffn)},
                    {"rows", static_cast<std::int64_t>(model.vocabulary)}};
  problem.tensor_split = {{"channels of an expert", static_cast<std::int64_t>(model.expert_ffn)}};
  problem.chain = model.layers + 2;
  problem.cut = [layers = model.layers](int stages, int chunks) {  // embedding, blocks and head, as even as can be
    const int pieces = stages * chunks, chain = layers + 2;
    std::vector<int> blocks;
    for (int piece = 0; piece < pieces; ++piece) {
      const int first = chain * piece / pieces, last = chain * (piece + 1) / pieces;
      blocks.push_back(std::min(last, layers + 1) - std::max(first, 1));
    }
    return blocks;
  };
  if (problem.machine.host.bandwidth <= 0) {
    problem.refuses[Feature::host_states] = "there is no host";
  }
  if (dice.of({0, 0, 0, 1}) == 1) {
    problem.refuses[dice.of({Feature::ring, Feature::zero, Feature::folded, Feature::layered})] = "refused";
  }
  return problem;
}

// Every value of every choice, one inside the other. Of orders whose groups have the same places the first counts.
template <class Visit>
void for_each_layout(const Problem& problem, Visit visit) {
  const int ranks = problem.base.ranks, batch = static_cast<int>(problem.base.global_batch);
  const auto legal = [&](const Candidate& c) { return refusal(problem, c).empty(); };
  const auto leaves = [&](Candidate c) {
    for (const auto recompute : {cost::Recompute::none, cost::Recompute::activation, cost::Recompute::full}) {
      for (const auto travel : {Travel::at_once, Travel::in_parts, Travel::two_levels, Travel::two_levels_in_parts}) {
        for (int schedule = 0; schedule < 4; ++schedule) {
          for (int chunks = 1; chunks <= 8; ++chunks) {
            for (int zero = 0; zero <= 3; ++zero) {
              for (const bool host : {false, true}) {
                c.recompute = recompute;
                c.travel = travel;
                c.schedule = static_cast<Course>(schedule);
                c.chunks = chunks;
                c.zero = static_cast<std::uint8_t>(zero);
                c.host_states = host;
                if (legal(c)) {
                  visit(c);
                }
              }
            }
          }
        }
      }
    }
  };
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int sequence = 1; tensor * sequence <= ranks; ++sequence) {
      for (int pipeline = 1; tensor * sequence * pipeline <= ranks; ++pipeline) {
        for (int expert = 1; expert <= std::max(1, problem.model.experts); ++expert) {
          for (int flags = 0; flags < 8; ++flags) {
            for (int micro_batch = 1; micro_batch <= batch; ++micro_batch) {
              std::set<Places> seen;
              for (std::uint8_t order = 0; order < all_orders().size(); ++order) {
                Candidate c;
                c.tensor = tensor;
                c.sequence = sequence;
                c.pipeline = pipeline;
                c.data = ranks / (tensor * sequence * pipeline);
                c.expert = expert;
                c.sequence_parallel = (flags & 1) != 0;
                c.folded = (flags & 2) != 0;
                c.ulysses = (flags & 4) != 0;
                c.micro_batch = micro_batch;
                c.order = order;
                if (legal(c) && seen.insert(places_of(problem, c)).second) {
                  leaves(c);
                }
              }
            }
          }
        }
      }
    }
  }
}

struct All {
  std::vector<Timed> layouts;    // that fit
  std::map<Class, double> best;  // seconds, of all classes; infinite: none fits
  double smallest = 1e300, largest = 0;
};

constexpr double never = std::numeric_limits<double>::infinity();

All all_of(const Problem& problem) {
  All all;
  for_each_layout(problem, [&](const Candidate& c) {
    const Timed one = timed(problem, c);
    all.smallest = std::min(all.smallest, one.memory.total());
    all.largest = std::max(all.largest, one.memory.total());
    const cost::Layout layout = layout_of(problem, c);
    EXPECT_LE(cost::step_bound(problem.model, layout, problem.machine, problem.practice, problem.routing_for(c.expert)),
              one.time.seconds)
        << text_of(c);
    all.layouts.push_back(one);
  });
  return all;
}

void keep_what_fits(const Problem& problem, All& all) {
  for (const Timed& one : all.layouts) {
    for (const Class& of : classes_of(one.candidate)) {
      all.best.try_emplace(of, never);
    }
  }
  const double host = problem.machine.host.memory > 0 ? problem.machine.host.memory : never;
  std::erase_if(all.layouts,
                [&](const Timed& one) { return one.memory.total() > problem.memory || one.memory.host > host; });
  std::sort(all.layouts.begin(), all.layouts.end(), better);
  for (const Timed& one : all.layouts) {
    for (const Class& of : classes_of(one.candidate)) {
      double& best = all.best[of];
      best = std::min(best, one.time.seconds);
    }
  }
}

// 0: that case has no legal layout.
std::size_t compare(unsigned seed) {
  Problem problem = random_problem(seed);
  All all = all_of(problem);
  if (all.layouts.empty()) {
    EXPECT_THROW(search::search(problem), Error);
    return 0;
  }
  const std::size_t legal = all.layouts.size();
  // From less than any layout needs to more than all of them.
  problem.memory = all.smallest * 0.9 +
                   (all.largest * 1.1 - all.smallest * 0.9) * ((seed * 37 % 100) / 100.0) * ((seed * 37 % 100) / 100.0);
  keep_what_fits(problem, all);
  const Answer answer = search::search(problem, {.top = 7, .threads = static_cast<int>(1 + seed % 3)});
  EXPECT_EQ(answer.counts.legal, legal);
  EXPECT_EQ(answer.counts.accounted(), legal);
  EXPECT_EQ(answer.best.size(), std::min<std::size_t>(7, all.layouts.size()));
  for (std::size_t i = 0; i < answer.best.size(); ++i) {
    EXPECT_EQ(answer.best[i].time.seconds, all.layouts[i].time.seconds) << i;
    EXPECT_EQ(answer.best[i].time.seconds, timed(problem, answer.best[i].candidate).time.seconds) << i;
    EXPECT_LE(answer.best[i].memory.total(), problem.memory);
  }
  for (const auto& [of, best] : all.best) {
    const auto found = answer.classes.find(of);
    const bool fits = found != answer.classes.end() && found->second.fits;
    EXPECT_EQ(fits ? found->second.best.time.seconds : never, best) << text_of(of);
  }
  for (const auto& [of, best] : answer.classes) {
    EXPECT_TRUE(all.best.contains(of)) << text_of(of);
  }
  for (int part = 1; part <= 16; ++part) {
    const auto fastest = [&](const std::vector<Timed>& of) {
      double seconds = never;
      for (const Timed& one : of) {
        seconds = one.memory.total() <= problem.memory * part / 16 ? std::min(seconds, one.time.seconds) : seconds;
      }
      return seconds;
    };
    EXPECT_EQ(fastest(answer.frontier), fastest(all.layouts)) << part << " sixteenths";
  }
  return legal;
}

class Exhaustive : public testing::TestWithParam<unsigned> {};

TEST_P(Exhaustive, SearchFindsWhatTimingAllLayoutsFinds) {
  std::size_t layouts = 0, cases = 0;
  for (unsigned seed = GetParam(); seed < GetParam() + 20; ++seed) {
    SCOPED_TRACE(seed);
    const std::size_t legal = compare(seed);
    layouts += legal;
    cases += legal > 0 ? 1 : 0;
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GE(cases, 15U);
  EXPECT_GE(layouts, 2000U);
}

INSTANTIATE_TEST_SUITE_P(Cases, Exhaustive, testing::Range(0U, 200U, 20U));

}  // namespace
}  // namespace orthant::search_test
