#include "bench/hindcast/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <orthant/error.h>

namespace orthant::hindcast {
namespace {

// One number to fit, as its logarithm.
struct Parameter {
  std::string generation;  // empty: of practice
  double* value = nullptr;
  double start = 0;   // ln
  double spread = 0;  // of the prior, in ln
};

std::vector<Parameter> parameters_of(cost::FactorFile& factors) {
  std::vector<Parameter> list;
  const auto add = [&](const std::string& generation, double& value, double spread) {
    list.push_back({generation, &value, std::log(value), spread});
  };
  for (auto& [name, generation] : factors.generations) {
    add(name, generation.products, 0.15);
    add(name, generation.memory, 0.15);
    add(name, generation.links, 0.3);
    add(name, generation.network, 0.3);
    add(name, generation.launch, 0.5);
  }
  add("", factors.practice.attention, 0.3);
  add("", factors.practice.overlap, 0.3);
  add("", factors.practice.step, 0.3);
  return list;
}

}  // namespace

std::vector<double> solved(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t column = 0; column < n; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column + 1; row < n; ++row) {
      pivot = std::abs(a[row][column]) > std::abs(a[pivot][column]) ? row : pivot;
    }
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (std::size_t row = column + 1; row < n; ++row) {
      const double times = a[row][column] / a[column][column];
      for (std::size_t i = column; i < n; ++i) {
        a[row][i] -= times * a[column][i];
      }
      b[row] -= times * b[column];
    }
  }
  for (std::size_t row = n; row-- > 0;) {
    for (std::size_t i = row + 1; i < n; ++i) {
      b[row] -= a[row][i] * b[i];
    }
    b[row] /= a[row][row];
  }
  return b;
}

cost::Machine with_factors(cost::Machine machine, const cost::FactorFile& factors) {
  if (const auto found = factors.generations.find(machine.generation); found != factors.generations.end()) {
    machine.factors = found->second;
  }
  return machine;
}

cost::FactorFile prior() {
  return {};
}

Prepared prepare(const Row& row, const cost::Machine& machine, const cost::Practice& practice) {
  cost::Layout best = row.layout;
  double least = std::numeric_limits<double>::infinity();
  for (int micro_batch = 1; micro_batch <= (row.free_micro_batch ? 8 : 1); micro_batch *= 2) {
    const int pieces = row.free_chunks ? std::min(2, row.model.layers / row.layout.pipeline) : 1;
    for (int chunks = 1; chunks <= pieces; ++chunks) {
      cost::Layout layout = row.layout;
      layout.micro_batch = row.free_micro_batch ? micro_batch : layout.micro_batch;
      layout.chunks = row.free_chunks ? chunks : layout.chunks;
      const double count = layout.micro_batches();
      if ((row.free_micro_batch && count != std::floor(count)) ||
          (row.free_chunks && chunks > 1 && std::fmod(count, layout.pipeline) != 0)) {
        continue;
      }
      const double seconds =
          row.free_micro_batch || row.free_chunks ? cost::step_time(row.model, layout, machine, practice).seconds : 0;
      if (seconds < least) {
        least = seconds;
        best = layout;
      }
    }
  }
  if (row.model.extra_layers > 0 && best.blocks.empty()) {
    best.blocks = cost::balanced_blocks(row.model, best, machine, practice);
  }
  Prepared prepared{row, {}, cost::StepClock(best)};
  prepared.row.layout = best;
  return prepared;
}

double predicted_seconds(const Prepared& row, const cost::Machine& machine, const cost::Practice& practice) {
  return cost::step_time(row.row.model, row.row.layout, machine, practice, row.routing, row.clock).seconds;
}

cost::FactorFile fitted(const std::vector<const Prepared*>& rows, const Machines& machines) {
  cost::FactorFile factors = prior();
  for (const auto& [name, machine] : machines) {
    factors.generations.try_emplace(machine.generation);
  }
  const std::vector<Parameter> parameters = parameters_of(factors);
  const std::size_t n = parameters.size();
  const auto machine_of_row = [&](const Prepared& row) { return with_factors(machines.at(row.row.machine), factors); };
  const auto along = [&](const Prepared& row, const cost::ClockResult& course) {
    const double seconds =
        cost::seconds_along(course, row.row.model, row.row.layout, machine_of_row(row), factors.practice);
    return std::log(seconds / *row.row.seconds);
  };
  // Huber: squares of small residuals, and their size alone of large ones.
  constexpr double large = 0.05, noise = 0.1;
  const auto weight = [](double residual) { return std::abs(residual) <= large ? 1 : large / std::abs(residual); };
  const auto loss = [](double residual) {
    const double size = std::abs(residual);
    return size <= large ? size * size : large * (2 * size - large);
  };
  std::vector<cost::ClockResult> courses(rows.size());
  const auto objective = [&] {
    double sum = 0;
    for (const Parameter& parameter : parameters) {
      sum += std::pow((std::log(*parameter.value) - parameter.start) / parameter.spread * noise, 2);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      sum += rows[i]->row.weight * loss(along(*rows[i], courses[i]));
    }
    return sum;
  };
  constexpr int most_rounds = 40, most_halvings = 6;
  constexpr double step = 1e-3, settled = 1e-8;
  // The chains that decide are found again when the factors have moved so far that others may decide.
  constexpr double far_enough = 0.02;
  std::vector<double> found_at(n, 1);
  double moved = 1;
  for (int round = 0; round < most_rounds; ++round) {
    const bool find_courses = moved > far_enough;
    for (std::size_t i = 0; find_courses && i < n; ++i) {
      found_at[i] = *parameters[i].value;
    }
    std::vector<std::vector<double>> a(n, std::vector<double>(n, 0));
    std::vector<double> b(n, 0);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Prepared& row = *rows[r];
      const std::string& generation = machines.at(row.row.machine).generation;
      if (find_courses) {
        courses[r] = cost::step_course(row.row.model, row.row.layout, machine_of_row(row), factors.practice, row.clock);
      }
      const double residual = along(row, courses[r]), w = row.row.weight * weight(residual);
      std::vector<double> slope(n, 0);
      for (std::size_t i = 0; i < n; ++i) {
        if (parameters[i].generation.empty() || parameters[i].generation == generation) {
          const double before = *parameters[i].value;
          *parameters[i].value = before * std::exp(step);
          slope[i] = (along(row, courses[r]) - residual) / step;
          *parameters[i].value = before;
        }
      }
      for (std::size_t i = 0; i < n; ++i) {
        b[i] -= w * slope[i] * residual;
        for (std::size_t j = 0; j < n; ++j) {
          a[i][j] += w * slope[i] * slope[j];
        }
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double strength = std::pow(noise / parameters[i].spread, 2);
      a[i][i] += strength;
      b[i] -= strength * (std::log(*parameters[i].value) - parameters[i].start);
    }
    const std::vector<double> change = solved(std::move(a), std::move(b));
    const double before = objective();
    std::vector<double> from;
    for (const Parameter& parameter : parameters) {
      from.push_back(*parameter.value);
    }
    // Half of the step, a quarter, ..., until it is one downhill: the time of a step has bends.
    double reached = before;
    double scale = 1;
    for (int halving = 0; halving < most_halvings; ++halving, scale /= 2) {
      for (std::size_t i = 0; i < n; ++i) {
        *parameters[i].value = from[i] * std::exp(std::clamp(scale * change[i], -0.3, 0.3));
      }
      factors.practice.overlap = std::min(factors.practice.overlap, 1.0);
      reached = objective();
      if (reached < before) {
        break;
      }
    }
    if (reached >= before) {
      for (std::size_t i = 0; i < n; ++i) {
        *parameters[i].value = from[i];
      }
      break;
    }
    if (before - reached < settled * before) {
      break;
    }
    moved = 0;
    for (std::size_t i = 0; i < n; ++i) {
      moved = std::max(moved, std::abs(std::log(*parameters[i].value / found_at[i])));
    }
  }
  return factors;
}

}  // namespace orthant::hindcast
