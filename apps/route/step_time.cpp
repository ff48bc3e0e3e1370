#include "apps/route/step_time.h"

#include <orthant/error.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>

#include "apps/route/gate_pass.h"

namespace orthant {
namespace {

// Other work on the machine only adds time: the fastest of many is wanted.
constexpr int fewest_repetitions = 4;
constexpr double least_seconds = 0.3;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// `prepare` comes before each repetition, and is not timed.
double fastest_of(
    const std::function<void()>& work, const std::function<void()>& prepare = [] {}) {
  double best = 0, spent = 0;
  for (int i = 0; i <= fewest_repetitions || spent < least_seconds; ++i) {
    prepare();
    const double seconds = seconds_of(work);
    best = i <= 1 ? seconds : std::min(best, seconds);  // the first finds cold memory
    spent += seconds;
  }
  return best;
}

// Some tokens, and of one layer what was recorded of them.
RecordedTokens chosen_tokens(const RecordedTokens& all, const RecordedLayer& layer,
                             const std::vector<std::size_t>& which) {
  const auto rows = [&](const auto& values) {
    std::decay_t<decltype(values)> some;
    const std::size_t width = values.size() / all.index.size();  // 0: none were recorded
    for (const std::size_t t : which) {
      some.insert(some.end(), values.begin() + std::ptrdiff_t(t * width),
                  values.begin() + std::ptrdiff_t((t + 1) * width));
    }
    return some;
  };
  return {.index = rows(all.index),
          .valid = rows(all.valid),
          .token = rows(all.token),
          .layers = {{.layer = layer.layer,
                      .logits = rows(layer.logits),
                      .expert = rows(layer.expert),
                      .lse = rows(layer.lse),
                      .state = layer.state}}};
}

}  // namespace

WorkTimer::WorkTimer(const Settings& settings, std::unique_ptr<Device> device, std::unique_ptr<Stream> stream)
    : settings_(settings), device_(std::move(device)), stream_(std::move(stream)) {}

WorkTimer::WorkTimer(const Settings& settings)
    : settings_(settings),
      device_(make_device(settings.run.device, static_cast<int>(settings.run.threads), settings.run.deterministic)),
      stream_(device_->make_main_stream()) {}

double WorkTimer::seconds(const ExpertLoad& load) {
  const auto [found, is_new] = known_.try_emplace(load, 0.0);
  if (is_new) {
    found->second = measure(load);
  }
  return found->second;
}

double WorkTimer::gates(const RecordedStep& step, const Settings& settings, std::int64_t tokens) {
  GatePass pass(step, settings, *stream_);
  // A group that several ranks share is decided whole on each of them.
  const std::int64_t group = pass.config().group_tokens, whole = (tokens + group - 1) / group * group;
  std::vector<std::size_t> order(static_cast<std::size_t>(whole));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(1);
  double sum = 0;
  for (const RecordedTokens& stage : step.of_stages) {
    for (const RecordedLayer& layer : stage.layers) {
      const auto work = [&] {
        pass.decide();
        pass.learn();
        stream_->synchronize();
      };
      // In another order each time: a processor foresees the branches of a selection that it has seen before.
      const auto prepare = [&] {
        std::shuffle(order.begin(), order.end(), random);
        const RecordedTokens some = chosen_tokens(stage, layer, order);
        pass.load(some, some.layers.front());
      };
      sum += fastest_of(work, prepare);
    }
  }
  return sum;
}

double WorkTimer::copy_rate() {
  const Tensor from = device_->empty(DType::f32, {4 << 20}), to = device_->empty(DType::f32, {4 << 20});
  stream_->fill(from, 1);
  double best = 0;
  for (int i = 0; i < fewest_repetitions; ++i) {
    const double seconds = seconds_of([&] {
      stream_->copy(to, from);
      stream_->synchronize();
    });
    best = std::max(best, static_cast<double>(from.bytes()) / std::max(seconds, 1e-9));
  }
  return best;
}

double WorkTimer::measure(const ExpertLoad& load) {
  if (load.rows.empty()) {
    return 0;
  }
  ExpertPass experts(settings_, load, *device_, *stream_);
  return fastest_of([&] {
    for (int pass = load.recomputed ? 0 : 1; pass < 2; ++pass) {
      experts.forward();
    }
    experts.backward();
    stream_->synchronize();
  });
}

RoutedWork routed_work(const RecordedStep& step, const Settings& settings, const std::vector<Travel>& layers,
                       const ExpertLayout& layout, const Rates& rates, const std::optional<double>& tried, int slots,
                       WorkTimer& timer) {
  RoutedWork work{.slots = slots};
  for (const Travel& layer : layers) {
    for (std::size_t batch = 0; batch < layer.rows.size(); ++batch) {
      double slowest = 0, sum = 0;
      for (const std::vector<std::int64_t>& rows : layer.rows[batch]) {
        const double seconds = timer.seconds({.rows = rows,
                                              .tokens = layout.expert_ranks == 1 ? layer.tokens : 0,
                                              .top_k = layer.top_k,
                                              .recomputed = layout.recomputed[batch]});
        slowest = std::max(slowest, seconds);
        sum += seconds;
      }
      work.experts += std::max(slowest, sum / slots);
    }
    work.exchange += static_cast<double>(layer.bytes_inside) / rates.inside / slots +
                     static_cast<double>(layer.bytes_between) / rates.between / slots;
  }
  work.exchange = tried.value_or(work.exchange);
  if (!layers.empty()) {
    const auto batches = static_cast<double>(layout.recomputed.size());
    work.gates = timer.gates(step, settings, layers.front().tokens) * batches * layout.ranks / slots;
  }
  return work;
}

double predicted_seconds(double measured, const RoutedWork& old_work, const RoutedWork& new_work) {
  const double rest = std::max(0.0, measured - old_work.seconds());
  return rest * old_work.slots / new_work.slots + new_work.seconds();
}

}  // namespace orthant
