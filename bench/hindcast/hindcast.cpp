#include "bench/hindcast/hindcast.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include <orthant/error.h>

#include "apps/cost/memory.h"
#include "bench/hindcast/row_parts.h"

namespace orthant::hindcast {
namespace {

constexpr double confidence = 0.9;
constexpr double normal_half = 1.645;  // of 90 %

// A part of a device's memory that no tensor gets: the driver, communicators, gaps.
constexpr double usable_memory = 0.94;

double quantile_of(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const std::size_t below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

struct Errors {
  std::vector<double> signed_errors;
  std::size_t covered = 0, asked = 0;
};

ErrorLine line_of(const std::string& name, const Errors& errors) {
  ErrorLine line{.name = name, .rows = errors.signed_errors.size()};
  std::vector<double> sizes;
  for (const double error : errors.signed_errors) {
    sizes.push_back(std::abs(error));
    line.mean += std::abs(error) / static_cast<double>(line.rows);
    line.bias += error / static_cast<double>(line.rows);
  }
  line.median = quantile_of(sizes, 0.5);
  line.p90 = quantile_of(sizes, 0.9);
  line.largest = quantile_of(sizes, 1);
  if (errors.asked > 0) {
    line.coverage = static_cast<double>(errors.covered) / static_cast<double>(errors.asked);
  }
  return line;
}

void add_time(Errors& errors, const Prediction& prediction) {
  const double ratio = prediction.seconds / *prediction.row.seconds;
  errors.signed_errors.push_back(ratio - 1);
  errors.asked += 1;
  errors.covered += ratio <= prediction.ratio && ratio >= 1 / prediction.ratio ? 1 : 0;
}

std::vector<ErrorLine> lines_of(const std::map<std::string, Errors>& groups) {
  std::vector<ErrorLine> lines;
  for (const auto& [name, errors] : groups) {
    lines.push_back(line_of(name, errors));
  }
  return lines;
}

std::vector<SweepLine> sweeps_of(const std::vector<Prediction>& predictions) {
  std::map<std::string, std::vector<const Prediction*>> sweeps;
  for (const Prediction& prediction : predictions) {
    if (!prediction.row.sweep.empty() && prediction.row.seconds) {
      sweeps[prediction.row.sweep].push_back(&prediction);
    }
  }
  std::vector<SweepLine> lines;
  for (const auto& [name, rows] : sweeps) {
    std::set<std::string> layouts;
    const Prediction *chosen = rows.front(), *best = rows.front();
    for (const Prediction* row : rows) {
      layouts.insert(layout_label(row->row.layout));
      chosen = row->seconds < chosen->seconds ? row : chosen;
      best = *row->row.seconds < *best->row.seconds ? row : best;
    }
    if (layouts.size() > 1) {  // the same layout in two programs is no choice of layouts
      lines.push_back({name, chosen->row.label, best->row.label, rows.size(),
                       *chosen->row.seconds / *best->row.seconds - 1, best->row.computed});
    }
  }
  return lines;
}

void ask_memory(Prediction& prediction, const cost::Machine& machine) {
  const Row& row = prediction.row;
  if (row.peak_bytes) {  // the last rank reports
    prediction.peak_bytes = cost::stage_memory(row.model, row.layout, row.layout.pipeline - 1, row.busiest).total();
  }
  if (row.told_memory) {
    prediction.fits = cost::peak_memory(row.model, row.layout, row.busiest).total() <= usable_memory * machine.memory;
  }
}

// All tables that follow from predictions.
void sum_up(Hindcast& result) {
  std::map<std::string, Errors> sources, held, memory;
  Errors core, several_nodes, recipes, golden;
  for (const Prediction& prediction : result.predictions) {
    const Row& row = prediction.row;
    if (row.seconds) {
      add_time(sources[row.source], prediction);
      if (row.fitted) {
        add_time(held[row.family + ": without " + row.held], prediction);
        add_time(row.family == "papers"    ? core
                 : row.family == "vTrain"  ? several_nodes
                 : row.family == "recipes" ? recipes
                                           : golden,
                 prediction);
      }
    }
    if (row.peak_bytes) {
      memory[row.source].signed_errors.push_back(prediction.peak_bytes / *row.peak_bytes - 1);
    }
    if (row.told_memory) {
      result.out_of_memory.rows += 1;
      result.out_of_memory.right += !prediction.fits && row.out_of_memory ? 1 : 0;
      result.out_of_memory.missed += prediction.fits && row.out_of_memory ? 1 : 0;
      result.out_of_memory.false_alarms += !prediction.fits && !row.out_of_memory ? 1 : 0;
    }
  }
  result.sources = lines_of(sources);
  result.held = lines_of(held);
  result.memory = lines_of(memory);
  for (const auto& [name, errors] : {std::pair("papers, each left out", &core),
                                     {"vTrain, several nodes, each size left out", &several_nodes},
                                     {"recipes, each model left out", &recipes},
                                     {"golden values, in five parts", &golden}}) {
    if (!errors->signed_errors.empty()) {
      result.summary.push_back(line_of(name, *errors));
    }
  }
  result.sweeps = sweeps_of(result.predictions);
}

std::vector<Prepared> prepared_rows(const Rows& rows, const Machines& machines, const cost::Practice& practice,
                                    const cost::FactorFile* factors) {
  std::vector<Prepared> prepared;
  for (const Row& row : rows.scored) {
    const cost::Machine& machine = machines.at(row.machine);
    prepared.push_back(prepare(row, factors == nullptr ? machine : with_factors(machine, *factors), practice));
  }
  return prepared;
}

// Whose errors a family's interval is made of, in a file of factors: large runs are one kind, whoever measured them.
std::string key_of(const std::string& family) {
  return family == "vTrain" ? "papers" : family.substr(0, family.find(' '));
}

std::string group_of_row(const Row& row) {
  return row.fitted ? row.family + "/" + row.held : "";
}

}  // namespace

double Hindcast::mean_regret(bool computed) const {
  double sum = 0;
  std::size_t count = 0;
  for (const SweepLine& sweep : sweeps) {
    sum += sweep.computed == computed ? sweep.regret : 0;
    count += sweep.computed == computed ? 1 : 0;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

Rows committed_rows(const std::string& folder) {
  Rows all;
  for (const char* name :
       {"core.csv", "vtrain_multi.csv", "vtrain_single.csv", "megatron_bridge.csv", "megatron_golden.csv"}) {
    Rows rows = read_rows((std::filesystem::path(folder) / name).string(), folder);
    std::move(rows.scored.begin(), rows.scored.end(), std::back_inserter(all.scored));
    std::move(rows.not_scored.begin(), rows.not_scored.end(), std::back_inserter(all.not_scored));
  }
  return all;
}

Machines machines_of(Rows& rows, const std::string& folder) {
  const std::filesystem::path path(folder);
  const cost::FactorFile factors = cost::load_factors((path / "factors.toml").string());
  Machines machines;
  std::vector<Row> kept;
  for (Row& row : rows.scored) {
    const std::filesystem::path file = path / (row.machine + ".toml");
    if (!machines.contains(row.machine) && std::filesystem::exists(file)) {
      machines[row.machine] = cost::load_machine(file.string(), factors);
    }
    if (machines.contains(row.machine)) {
      kept.push_back(std::move(row));
    } else {
      rows.not_scored.push_back({row.id, row.source, "there is no " + file.string()});
    }
  }
  rows.scored = std::move(kept);
  return machines;
}

Hindcast hindcast(const Rows& rows, const Machines& machines) {
  const cost::FactorFile start = prior();
  const std::vector<Prepared> prepared = prepared_rows(rows, machines, start.practice, &start);
  std::vector<std::string> groups = {""};  // the first is the fit of all
  for (const Prepared& row : prepared) {
    const std::string group = group_of_row(row.row);
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
    }
  }
  std::vector<cost::FactorFile> fits(groups.size());
  const auto fit_every_second = [&](std::size_t first) {
    for (std::size_t i = first; i < groups.size(); i += 2) {
      std::vector<const Prepared*> others;
      for (const Prepared& row : prepared) {
        if (row.row.fitted && row.row.seconds && (i == 0 || group_of_row(row.row) != groups[i])) {
          others.push_back(&row);
        }
      }
      fits[i] = fitted(others, machines);
    }
  };
  std::thread beside(fit_every_second, 1);
  fit_every_second(0);
  beside.join();

  Hindcast result;
  result.not_scored = rows.not_scored;
  result.factors = fits[0];
  std::map<std::string, std::vector<double>> sizes;  // |ln(predicted / measured)| of each group
  for (const Prepared& row : prepared) {
    const std::string group = group_of_row(row.row);
    const std::size_t fit = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), group) - groups.begin());
    const cost::Machine machine = with_factors(machines.at(row.row.machine), fits[fit]);
    Prediction prediction{.row = row.row, .seconds = predicted_seconds(row, machine, fits[fit].practice)};
    ask_memory(prediction, machine);
    if (row.row.seconds && row.row.fitted) {
      sizes[group].push_back(std::abs(std::log(prediction.seconds / *row.row.seconds)));
    }
    result.predictions.push_back(std::move(prediction));
  }
  // The width that 90 % of the errors of other groups of the kind ask for.
  const auto width_of = [&](const std::string& family, const std::string& without) {
    std::vector<double> others;
    for (const auto& [name, values] : sizes) {
      if (name != without && key_of(name.substr(0, name.find('/'))) == key_of(family)) {
        others.insert(others.end(), values.begin(), values.end());
      }
    }
    return others.empty() ? 1e-3 : std::max(1e-3, quantile_of(std::move(others), confidence));
  };
  for (Prediction& prediction : result.predictions) {
    const std::string& family = prediction.row.family;
    prediction.ratio = std::exp(width_of(family, group_of_row(prediction.row)));
    result.factors.spreads.try_emplace(key_of(family), width_of(family, "") / normal_half);
  }
  result.factors.practice.spread = result.factors.spreads[key_of("papers")];
  sum_up(result);
  return result;
}

namespace {

double spread_of(const cost::FactorFile& factors, const std::string& family) {
  const auto found = factors.spreads.find(key_of(family));
  return found == factors.spreads.end() ? factors.practice.spread : found->second;
}

}  // namespace

Hindcast scored(const Rows& rows, const Machines& machines, const cost::FactorFile& factors) {
  Hindcast result;
  result.not_scored = rows.not_scored;
  result.factors = factors;
  for (const Prepared& row : prepared_rows(rows, machines, factors.practice, nullptr)) {
    const cost::Machine& machine = machines.at(row.row.machine);
    Prediction prediction{.row = row.row,
                          .seconds = predicted_seconds(row, machine, factors.practice),
                          .ratio = std::exp(normal_half * spread_of(factors, row.row.family))};
    ask_memory(prediction, machine);
    prediction.row.fitted = false;
    result.predictions.push_back(std::move(prediction));
  }
  sum_up(result);
  return result;
}

}  // namespace orthant::hindcast
