#include "bench/machine/own_machine.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cost/step_time.h"
#include "bench/hindcast/fit.h"
#include "bench/machine/timed_layout.h"

namespace orthant::machine {
namespace {

// About as long for every size.
int steps_of(const OwnLayout& layout) {
  return layout.size.front() == 'A' ? 40 : layout.size.front() == 'B' ? 10 : 8;
}

// One number to fit, by its logarithm, in all machines that share it.
struct OwnParameter {
  std::vector<double*> values;
  double start = 0, spread = 0;  // ln
};

std::vector<OwnParameter> own_parameters(OwnMachines& machines) {
  std::vector<OwnParameter> list;
  const auto shared = [&](double spread, auto of) {
    OwnParameter parameter{{}, 0, spread};
    for (auto& [name, machine] : machines) {
      parameter.values.push_back(&of(machine));
    }
    list.push_back(parameter);
  };
  shared(0.3, [](cost::Machine& m) -> double& { return m.factors.products; });
  shared(0.5, [](cost::Machine& m) -> double& { return m.factors.memory; });
  shared(1.0, [](cost::Machine& m) -> double& { return m.factors.launch; });
  shared(0.5, [](cost::Machine& m) -> double& { return m.practice->attention; });
  shared(0.5, [](cost::Machine& m) -> double& { return m.practice->step; });
  shared(0.1, [](cost::Machine& m) -> double& { return m.cores.together; });
  shared(0.5, [](cost::Machine& m) -> double& { return m.cores.cached; });
  shared(0.7, [](cost::Machine& m) -> double& { return m.cores.expert; });
  for (auto& [name, machine] : machines) {
    list.push_back({{&machine.factors.links}, 0, 0.5});
    list.push_back({{&machine.links.front().latency}, 0, 1.0});
    list.push_back({{&machine.links.front().sums}, 0, 0.5});
    list.push_back({{&machine.links.front().exchanges}, 0, 0.7});
  }
  for (OwnParameter& parameter : list) {
    double mean = 0;
    for (const double* value : parameter.values) {
      mean += std::log(*value) / static_cast<double>(parameter.values.size());
    }
    parameter.start = mean;
    for (double* value : parameter.values) {
      *value = std::exp(mean);
    }
  }
  return list;
}

void move(const OwnParameter& parameter, double to) {
  for (double* value : parameter.values) {
    *value = to;
  }
}

nlohmann::ordered_json json_of(const OwnRow& row) {
  return {{"layout", text_of(row.layout)}, {"communicator", row.layout.communicator}, {"medians", row.medians}};
}

}  // namespace

double OwnRow::seconds() const {
  return medians.empty() ? NAN : *std::min_element(medians.begin(), medians.end());
}

std::vector<OwnRow> timed_rows(const std::vector<OwnLayout>& layouts, int rounds, double seconds,
                               const std::filesystem::path& folder, const std::function<void(const OwnRow&)>& told) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<OwnRow> rows;
  for (const OwnLayout& layout : layouts) {
    rows.push_back({layout, {}});
  }
  for (int round = 0; round < rounds; ++round) {
    for (OwnRow& row : rows) {
      const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (round > 0 && passed > seconds) {
        return rows;
      }
      const TimedLayout timed{settings_of(row.layout), row.layout.communicator, "cpu", steps_of(row.layout)};
      const double median = median_step_seconds(timed, folder);
      require(std::isfinite(median) && median > 0, "the measurement of the layout '{}' is {:g} s", text_of(row.layout),
              median);
      row.medians.push_back(median);
      if (told) {
        told(row);
      }
    }
  }
  return rows;
}

std::string to_json(const std::vector<OwnRow>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const OwnRow& row : rows) {
    json.push_back(json_of(row));
  }
  return json.dump(1) + "\n";
}

std::vector<OwnRow> rows_from_json(const std::string& text) {
  std::vector<OwnRow> rows;
  try {
    for (const auto& one : nlohmann::json::parse(text)) {
      const std::string name = one.at("layout"), communicator = one.at("communicator");
      const std::vector<OwnLayout> layouts = own_layouts();
      const auto found = std::find_if(layouts.begin(), layouts.end(), [&](const OwnLayout& layout) {
        return text_of(layout) == name && layout.communicator == communicator;
      });
      require(found != layouts.end(), "there is no layout '{}' ({})", name, communicator);
      rows.push_back({*found, one.at("medians").get<std::vector<double>>()});
      require(rows.back().seconds() > 0 && std::isfinite(rows.back().seconds()),
              "the measurement of the layout '{}' is {:g} s", name, rows.back().seconds());
    }
  } catch (const nlohmann::json::exception& failure) {
    throw Error(fmt::format("measured layouts cannot be read: {}", failure.what()));
  }
  return rows;
}

double predicted_seconds(const OwnRow& row, const OwnMachines& machines) {
  const cost::ModelShape shape = shape_of(row.layout);
  const cost::Layout layout = layout_of(row.layout);
  cost::check_layout(shape, layout);
  return cost::step_time(shape, layout, machines.at(row.layout.communicator), {}).seconds;
}

OwnMachines fitted(const std::vector<OwnRow>& rows, OwnMachines machines) {
  const std::vector<OwnParameter> parameters = own_parameters(machines);
  std::vector<const OwnRow*> seen;
  for (const OwnRow& row : rows) {
    if (row.layout.seen) {
      seen.push_back(&row);
    }
  }
  const auto residual = [&](const OwnRow& row) { return std::log(predicted_seconds(row, machines) / row.seconds()); };
  // Huber: squares of small residuals, and their size alone of large ones.
  constexpr double large = 0.06, noise = 0.05, step = 1e-3;
  const auto objective = [&] {
    double sum = 0;
    for (const OwnParameter& parameter : parameters) {
      sum += std::pow((std::log(*parameter.values.front()) - parameter.start) / parameter.spread * noise, 2);
    }
    for (const OwnRow* row : seen) {
      const double size = std::abs(residual(*row));
      sum += size <= large ? size * size : large * (2 * size - large);
    }
    return sum;
  };
  const std::size_t n = parameters.size();
  for (int round = 0; round < 60; ++round) {
    std::vector<std::vector<double>> a(n, std::vector<double>(n, 0));
    std::vector<double> b(n, 0), from, slope(n);
    for (const OwnParameter& parameter : parameters) {
      from.push_back(*parameter.values.front());
    }
    for (const OwnRow* row : seen) {
      const double off = residual(*row), weight = std::abs(off) <= large ? 1 : large / std::abs(off);
      for (std::size_t i = 0; i < n; ++i) {
        move(parameters[i], from[i] * std::exp(step));
        slope[i] = (residual(*row) - off) / step;
        move(parameters[i], from[i]);
      }
      for (std::size_t i = 0; i < n; ++i) {
        b[i] -= weight * slope[i] * off;
        for (std::size_t j = 0; j < n; ++j) {
          a[i][j] += weight * slope[i] * slope[j];
        }
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double strength = std::pow(noise / parameters[i].spread, 2);
      a[i][i] += strength;
      b[i] -= strength * (std::log(from[i]) - parameters[i].start);
    }
    const std::vector<double> change = hindcast::solved(std::move(a), std::move(b));
    const double before = objective();
    double reached = before;
    for (double scale = 1; scale > 0.01 && reached >= before; scale /= 2) {
      for (std::size_t i = 0; i < n; ++i) {
        move(parameters[i], from[i] * std::exp(std::clamp(scale * change[i], -0.5, 0.5)));
      }
      reached = objective();
    }
    if (reached >= before) {
      for (std::size_t i = 0; i < n; ++i) {
        move(parameters[i], from[i]);
      }
      break;
    }
    constexpr double settled = 1e-7;
    if (before - reached < settled * before) {
      break;
    }
  }
  return machines;
}

OwnErrors errors_of(const std::vector<OwnRow>& rows, const OwnMachines& machines, bool seen) {
  OwnErrors errors;
  std::vector<double> sizes;
  for (const OwnRow& row : rows) {
    if (row.layout.seen == seen) {
      const double off = 100 * (predicted_seconds(row, machines) / row.seconds() - 1);
      sizes.push_back(std::abs(off));
      errors.bias += off;
      errors.mean += std::abs(off);
    }
  }
  errors.rows = static_cast<int>(sizes.size());
  if (sizes.empty()) {
    return errors;
  }
  std::sort(sizes.begin(), sizes.end());
  errors.mean /= errors.rows;
  errors.bias /= errors.rows;
  errors.median = sizes[sizes.size() / 2];
  errors.p90 = sizes[std::min(sizes.size() - 1, sizes.size() * 9 / 10)];
  errors.largest = sizes.back();
  return errors;
}

std::string text_of(const std::vector<OwnRow>& rows, const OwnMachines& machines) {
  std::string text;
  for (const bool seen : {true, false}) {
    text += fmt::format("{}{:<44} {:>5} {:>6} {:>10} {:>10} {:>8}\n", seen ? "" : "\n",
                        seen ? "layouts that the fit saw" : "layouts held out", "comm", "ranks", "measured", "model",
                        "error");
    for (const OwnRow& row : rows) {
      if (row.layout.seen == seen) {
        const double predicted = predicted_seconds(row, machines);
        text += fmt::format("{:<44} {:>5} {:>6} {:>7.2f} ms {:>7.2f} ms {:>+7.1f}%\n", text_of(row.layout),
                            row.layout.communicator, row.layout.ranks(), 1e3 * row.seconds(), 1e3 * predicted,
                            100 * (predicted / row.seconds() - 1));
      }
    }
  }
  for (const bool seen : {true, false}) {
    const OwnErrors errors = errors_of(rows, machines, seen);
    text += fmt::format(
        "{}{}: {} layouts, mean {:.1f} %  median {:.1f} %  p90 {:.1f} %  largest {:.1f} %  bias {:+.1f} %\n",
        seen ? "\n" : "", seen ? "seen" : "held out", errors.rows, errors.mean, errors.median, errors.p90,
        errors.largest, errors.bias);
  }
  return text;
}

}  // namespace orthant::machine
