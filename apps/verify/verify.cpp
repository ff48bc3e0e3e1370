#include "apps/verify/verify.h"

#include <orthant/objective.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/arch/links.h"
#include "core/train/built_in_optimizers.h"

namespace orthant {
namespace {

// Stated, not tuned: fp32 sums in another order differ by rounding, bf16 ones by its eight bits. From the second step
// on gradients are taken at weights that already differ as `state` allows: Adam divides by a moment, so the rounding of
// a gradient element that is almost zero becomes a difference of its weight.
struct Tolerances {
  double gradient, scalar, state;
};
// States in 8 bits: where sums in another order differ by rounding, a moment now and then falls to the other neighbour,
// an eighth away.
Tolerances tolerances(const Settings& settings) {
  if (settings.run.dtype == ComputeType::bf16 || settings.optimizer.gradient_dtype == ComputeType::bf16) {
    return {5e-2, 1e-2, 5e-2};
  }
  return settings.optimizer.state_dtype == StateType::fp32 ? Tolerances{1e-5, 1e-6, 1e-4}
                                                           : Tolerances{1e-5, 1e-4, 5e-2};
}

double relative(double a, double b) {
  if (a == b) {
    return 0;
  }
  return std::abs(a - b) / std::max(std::abs(b), 1e-12);
}

// The least norm that differences of a tensor are related to, as a share of the norm that it would have if the whole
// gradient (all weights, ...) were spread evenly. A gradient that is zero but for rounding, as a router's whose weights
// are normalised over one choice, has the norm of that rounding, which differs from layout to layout.
constexpr double floor_share = 0.05;

using Tensors = std::map<std::string, std::vector<float>>;

double sum_squares(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return squares;
}

// Root mean square of all elements of the tensors whose names begin with `prefix`.
double root_mean_square(const Tensors& tensors, const std::string& prefix) {
  double squares = 0, elements = 0;
  for (const auto& [name, values] : tensors) {
    if (name.starts_with(prefix)) {
      squares += sum_squares(values);
      elements += static_cast<double>(values.size());
    }
  }
  return elements == 0 ? 0 : std::sqrt(squares / elements);
}

// ||a - b|| / max(||b||, floor), the floor being that of an even spread with root mean square `rms`; NaN where anything
// is.
double relative(const std::vector<float>& a, const std::vector<float>& b, double rms) {
  if (a.size() != b.size()) {
    return INFINITY;
  }
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
  }
  const double least = floor_share * rms * std::sqrt(static_cast<double>(b.size()));
  return difference == 0 ? 0 : std::sqrt(difference) / std::max({std::sqrt(sum_squares(b)), least, 1e-30});
}

// Collects the largest difference of each quantity, and the first that is too large.
class Comparer {
 public:
  void add(const std::string& quantity, const std::string& where, double difference, double tolerance) {
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Comparison& c) { return c.quantity == quantity; });
    if (row == rows_.end()) {
      row = rows_.insert(rows_.end(), {.quantity = quantity, .where = where, .tolerance = tolerance});
    }
    ++row->compared;
    if (!(difference <= row->difference)) {  // NaN counts as larger
      row->difference = difference;
      row->where = where;
    }
    if (!(difference <= tolerance) && first_.empty()) {
      first_ =
          fmt::format("{} of {}: relative difference {:.3g}, allowed {:.3g}", quantity, where, difference, tolerance);
      first_step_ = step_;
    }
  }
  // What is added from here on is of this step, from 1.
  void at_step(std::size_t step) { step_ = static_cast<int>(step); }
  VerifyReport report() && { return {std::move(rows_), std::move(first_), "", first_step_}; }

 private:
  std::vector<Comparison> rows_;
  std::string first_;
  int step_ = 1, first_step_ = 0;
};

constexpr const char* routing_counters = "routing counters";

void compare_counters(Comparer& to, const StepReport& a, const StepReport& b, const std::string& step) {
  to.add(routing_counters, step + " (number of routed layers)", a.layers.size() == b.layers.size() ? 0 : 1, 0);
  for (std::size_t i = 0; i < std::min(a.layers.size(), b.layers.size()); ++i) {
    const LayerCounters &x = a.layers[i], &y = b.layers[i];
    const bool same = x.load == y.load && x.kept == y.kept && x.choices == y.choices &&
                      x.dropped_by_capacity == y.dropped_by_capacity && x.dropped_by_chance == y.dropped_by_chance;
    to.add(routing_counters, fmt::format("{} layer {}", step, y.block), same ? 0 : 1, 0);
  }
}

}  // namespace

VerifyReport compare(const Snapshot& layout, const Snapshot& reference, const Settings& settings) {
  const Tolerances allow = tolerances(settings);
  const std::string objective = objective_name(settings);
  Comparer to;
  for (std::size_t i = 0; i < reference.reports.size(); ++i) {
    const std::string step = fmt::format("step {}", i + 1);
    to.at_step(i + 1);
    const StepReport &a = layout.reports.at(i), &b = reference.reports[i];
    compare_counters(to, a, b, step);
    to.add("loss", step, relative(a.loss, b.loss), allow.scalar);
    for (const auto& [name, value] : b.figures) {
      const auto found = a.figures.find(name);
      const double there = found == a.figures.end() ? NAN : found->second;
      if (name.ends_with("_loss")) {
        to.add(name, step, relative(there, value), allow.scalar);
      } else if (!name.ends_with("accuracies")) {  // those jump; others may begin at 0
        to.add(objective, step + " " + name, std::abs(there - value) / std::max(1.0, std::abs(value)),
               allow.scalar * 10);
      }
    }
    to.add("aux_loss", step, relative(a.aux_loss, b.aux_loss), allow.scalar);
    to.add("z_loss", step, relative(a.z_loss, b.z_loss), allow.scalar);
    const std::string quantity = i == 0 ? "gradient" : "later gradient";
    const double rms = root_mean_square(reference.gradients[i], "");
    for (const auto& [name, gradient] : reference.gradients[i]) {
      const auto found = layout.gradients.at(i).find(name);
      const bool missing = found == layout.gradients[i].end();
      to.add(quantity, step + " " + name, missing ? INFINITY : relative(found->second, gradient, rms),
             i == 0 ? allow.gradient : allow.state);
    }
    to.add("grad_norm", step, relative(a.grad_norm, b.grad_norm), allow.scalar * 10);
  }
  std::map<std::string, double> rms_of;  // by "weight", "moment1", ...
  for (const auto& [name, values] : reference.state) {
    const std::string kind = name.substr(0, name.find('/'));
    if (!rms_of.contains(kind)) {
      rms_of[kind] = root_mean_square(reference.state, kind + "/");
    }
    const auto found = layout.state.find(name);
    to.add(kind, name.substr(kind.size() + 1),
           found == layout.state.end() ? INFINITY : relative(found->second, values, rms_of[kind]), allow.state);
  }
  to.add("replicas", "all alike", 0, 0);
  for (const std::string& where : layout.replica_differences) {
    to.add("replicas", where, 1, 0);
  }
  return std::move(to).report();
}

namespace {

// All subsets of the plugins with `size` members, in order.
std::vector<std::vector<std::size_t>> subsets(std::size_t n, std::size_t size) {
  std::vector<std::vector<std::size_t>> found;
  for (std::size_t mask = 1; mask < (std::size_t{1} << n); ++mask) {
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < n; ++i) {
      if (((mask >> i) & 1) != 0) {
        members.push_back(i);
      }
    }
    if (members.size() == size) {
      found.push_back(members);
    }
  }
  return found;
}

struct Trial {
  Snapshot snapshot;
  std::string stopped;  // why training ended early; empty: it did not
};

// Errors: ConfigError where it is no layout.
Trial attempt(const Config& config, int steps) {
  try {
    return {take_snapshot(config, steps), ""};
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (error.code() == ExitCode::bad_configuration) {
      throw;
    }
    return {{}, error.what()};
  }
}

VerifyReport judge(const Trial& trial, const Snapshot& reference, const Settings& settings) {
  if (trial.stopped.empty()) {
    return compare(trial.snapshot, reference, settings);
  }
  return {
      {}, "training stops where one rank goes on: " + trial.stopped, "", static_cast<int>(reference.reports.size())};
}

// Plugins that the reference keeps are in every layout that is tried.
std::string blame(const Config& config, int steps, const std::vector<std::string>& keep) {
  const Snapshot reference = take_snapshot(one_rank(config, keep), steps);
  const auto kept = [&](const PluginRequest& plugin) {
    return std::find(keep.begin(), keep.end(), plugin.name) != keep.end();
  };
  for (std::size_t size = 1; size < config.plugins.size(); ++size) {
    for (const std::vector<std::size_t>& members : subsets(config.plugins.size(), size)) {
      Config part = config;
      part.plugins.clear();
      std::string names;
      for (std::size_t i = 0; i < config.plugins.size(); ++i) {
        const bool member = std::find(members.begin(), members.end(), i) != members.end();
        if (member) {
          names += (names.empty() ? "" : " x ") + config.plugins[i].name;
        }
        if (member || kept(config.plugins[i])) {
          part.plugins.push_back(config.plugins[i]);
        }
      }
      try {
        if (!judge(attempt(part, steps), reference, config.settings).ok()) {
          return names;
        }
      } catch (const ConfigError&) {
        continue;  // not a layout of its own: an axis carved from one that is left out, say
      }
    }
  }
  std::string all;
  for (const PluginRequest& plugin : config.plugins) {
    all += (all.empty() ? "" : " x ") + plugin.name;
  }
  return all;
}

// Adam's first steps are nearly the signs of the gradients, as are those of others: the rounding of an element that is
// zero but for rounding becomes a difference of its weight as large as any. With an eps well above that rounding they
// are no more than they were, and no layout can tell: eps acts on each element by itself.
Config with_calm_optimizer(Config config, const std::vector<std::string>& keep) {
  OptimizerSettings& optimizer = config.settings.optimizer;
  const Snapshot first = take_snapshot(one_rank(config, keep), 1);
  const double norm = first.reports[0].grad_norm, clip = optimizer.clip_grad_norm;
  const double scale = clip > 0 && norm > clip ? clip / norm : 1;
  auto keys = read_keys<AdamKeys>(optimizer.own);
  keys.eps = std::max(keys.eps, 0.01 * scale * root_mean_square(first.gradients[0], ""));
  write_keys(optimizer.own, keys);
  return config;
}

}  // namespace

BatchSettings growth_within(BatchSettings batch, int steps) {
  const std::size_t sizes = std::min(batch.grow_to.size(), static_cast<std::size_t>(steps - 1));
  batch.grow_to.erase(batch.grow_to.begin(), batch.grow_to.end() - static_cast<std::ptrdiff_t>(sizes));
  batch.grow_after.resize(sizes);
  std::iota(batch.grow_after.begin(), batch.grow_after.end(), 1);
  return batch;
}

VerifyReport verify(const Config& written, int steps, const std::vector<std::string>& keep) {
  for (const std::string& name : keep) {
    if (std::none_of(written.plugins.begin(), written.plugins.end(),
                     [&](const PluginRequest& plugin) { return plugin.name == name; })) {
      throw ConfigError(fmt::format("--keep {}: the configuration has no [plugins.{}]", name, name));
    }
  }
  Config growing = written;
  growing.settings.batch = growth_within(written.settings.batch, steps);
  const Config config = with_calm_optimizer(growing, keep);
  const Snapshot reference = take_snapshot(one_rank(config, keep), steps);
  VerifyReport report = judge(attempt(config, steps), reference, config.settings);
  if (!report.ok()) {
    report.axes = blame(config, report.first_step, keep);
  }
  return report;
}

}  // namespace orthant
