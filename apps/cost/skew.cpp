#include "apps/cost/skew.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <orthant/error.h>

namespace orthant::cost {
namespace {

double sum_of(const std::vector<double>& load) {
  return std::accumulate(load.begin(), load.end(), 0.0);
}

int experts_a_rank(const std::vector<double>& load, int ranks) {
  require(ranks > 0 && load.size() % static_cast<std::size_t>(ranks) == 0, "{} experts do not divide among {} ranks",
          load.size(), ranks);
  return static_cast<int>(load.size()) / ranks;
}

// The smallest value that so large a part of all is not above.
double quantile(const std::vector<double>& sorted, double part) {
  const auto place = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(place, 1, sorted.size()) - 1];
}

}  // namespace

Loads capped(Loads loads, double factor, double& dropped) {
  double all = 0, left = 0;
  for (auto& layers : loads) {
    for (std::vector<double>& load : layers) {
      const double sum = sum_of(load);
      all += sum;
      for (double& expert : load) {
        expert = std::min(expert, factor * sum / static_cast<double>(load.size()));
      }
      left += sum_of(load);
    }
  }
  dropped = all > 0 ? 1 - left / all : 0;
  return loads;
}

ExpertPlaces in_order(const Loads& loads, int ranks) {
  ExpertPlaces places;
  for (const std::vector<double>& load : loads.at(0)) {
    const int each = experts_a_rank(load, ranks);
    std::vector<int>& place = places.emplace_back();
    for (int expert = 0; expert < static_cast<int>(load.size()); ++expert) {
      place.push_back(expert / each);
    }
  }
  return places;
}

ExpertPlaces evened(const Loads& loads, int ranks) {
  ExpertPlaces places;
  for (std::size_t layer = 0; layer < loads.at(0).size(); ++layer) {
    std::vector<double> mean(loads[0][layer].size(), 0);
    for (const auto& layers : loads) {
      std::transform(mean.begin(), mean.end(), layers.at(layer).begin(), mean.begin(), std::plus<>());
    }
    const int each = experts_a_rank(mean, ranks);
    std::vector<std::size_t> order(mean.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return mean[a] > mean[b]; });
    std::vector<double> work(static_cast<std::size_t>(ranks), 0);
    std::vector<int> held(static_cast<std::size_t>(ranks), 0), place(mean.size(), 0);
    for (const std::size_t expert : order) {
      std::size_t to = work.size();
      for (std::size_t rank = 0; rank < work.size(); ++rank) {
        if (held[rank] < each && (to == work.size() || work[rank] < work[to])) {
          to = rank;
        }
      }
      work[to] += mean[expert];
      ++held[to];
      place[expert] = static_cast<int>(to);
    }
    places.push_back(std::move(place));
  }
  return places;
}

Routing routing_of(const Loads& loads, const ExpertPlaces& places, int ranks) {
  Routing routing;
  for (const auto& layers : loads) {
    std::vector<double>& busiest = routing.busiest.emplace_back();
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      std::vector<double> work(static_cast<std::size_t>(ranks), 0);
      for (std::size_t expert = 0; expert < layers[layer].size(); ++expert) {
        work[static_cast<std::size_t>(places.at(layer).at(expert))] += layers[layer][expert];
      }
      const double sum = sum_of(work);
      busiest.push_back(sum > 0 ? *std::max_element(work.begin(), work.end()) * ranks / sum : 1);
    }
  }
  return routing;
}

StepQuantiles step_quantiles(const ModelShape& model, const Layout& layout, const Machine& machine,
                             const Practice& practice, const Routing& routing, const StepClock& clock, int steps) {
  require(!routing.busiest.empty() && steps > 0, "no routing was recorded");
  const std::size_t count = static_cast<std::size_t>(std::max(1.0, std::ceil(layout.micro_batches() - 1e-9)));
  std::mt19937 random(1);
  std::vector<double> seconds;
  StepQuantiles found;
  for (int step = 0; step < steps; ++step) {
    Routing drawn;
    for (std::size_t m = 0; m < count; ++m) {
      drawn.busiest.push_back(routing.busiest[random() % routing.busiest.size()]);
    }
    seconds.push_back(step_time(model, layout, machine, practice, drawn, clock).seconds);
    found.mean += seconds.back() / steps;
  }
  std::sort(seconds.begin(), seconds.end());
  found.p50 = quantile(seconds, 0.5);
  found.p99 = quantile(seconds, 0.99);
  return found;
}

}  // namespace orthant::cost
