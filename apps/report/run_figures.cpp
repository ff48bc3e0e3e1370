#include "apps/report/run_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "apps/report/figures.h"
#include "apps/report/read_json.h"

namespace orthant::report {
namespace {

using Getter = std::function<std::optional<double>(const RunData&, const RunLine&)>;

Getter key(const char* name) {
  return [name](const RunData& run, const RunLine& line) { return run.number(line, name); };
}

Getter step() {
  return [](const RunData&, const RunLine& line) { return std::optional(static_cast<double>(line.step)); };
}

std::vector<Point> points_of(const RunData& run, const Getter& x, const Getter& y) {
  std::vector<Point> points;
  for (const RunLine& line : run.lines) {
    const std::optional<double> at = x(run, line), value = y(run, line);
    if (at && value) {
      points.push_back({*at, *value});
    }
  }
  return thinned(points, most_line_points);
}

// One line a run.
void add_curve(const std::vector<RunData>& runs, Plot plot, const Getter& x, const Getter& y, const std::string& id,
               const std::string& caption, Section& section) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    plot.series.push_back({.name = runs[i].name, .points = points_of(runs[i], x, y), .colour = distinct_colour(i)});
    if (plot.series.back().points.size() == 1) {
      plot.series.back().marker = Marker::circle;
    }
  }
  if (has_points(plot)) {
    section.figure(figure_of(plot, id, caption, commands_of(runs)));
  }
}

double largest(const std::vector<RunData>& runs, const Getter& value) {
  double most = 0;
  for (const RunData& run : runs) {
    for (const RunLine& line : run.lines) {
      most = std::max(most, value(run, line).value_or(0));
    }
  }
  return most;
}

void add_loss(const std::vector<RunData>& runs, const Axis& x, const Getter& at, const std::string& id,
              const std::string& against, const std::string& caption, Section& section) {
  Plot plot;
  plot.title = "Loss against " + against;
  plot.description = "Training and validation loss of each run, logarithmic, against " + against + ".";
  plot.x = x;
  plot.y = {.label = "loss (" + unit_of_losses(runs) + ")", .kind = ScaleKind::logarithmic};
  bool validated = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::vector<Point> train = points_of(runs[i], at, key("loss"));
    const std::vector<Point> validation = points_of(runs[i], at, key("validation_loss"));
    plot.series.push_back({.name = runs[i].name + ", training",
                           .points = train,
                           .colour = distinct_colour(i),
                           .marker = train.size() == 1 ? Marker::circle : Marker::none,
                           .faint = true});
    plot.keys.push_back({.name = runs[i].name, .points = {}, .colour = distinct_colour(i)});
    if (!validation.empty()) {
      validated = true;
      plot.series.push_back({.name = runs[i].name + ", validation",
                             .points = validation,
                             .colour = distinct_colour(i),
                             .line = Dash::dashed,
                             .marker = distinct_marker(i)});
    }
  }
  plot.keys.push_back({.name = "training", .points = {}, .colour = "ink", .faint = true});
  if (validated) {
    plot.keys.push_back(
        {.name = "validation", .points = {}, .colour = "ink", .line = Dash::dashed, .marker = Marker::circle});
  }
  if (has_points(plot)) {
    section.figure(figure_of(plot, id, caption, commands_of(runs)));
  }
}

// A set's loss on a line; nothing where it was not measured there.
Getter of_set(const std::string& set) {
  return [set](const RunData&, const RunLine& line) {
    const Json& losses = object_at(line.json, "validation_losses", line.where);
    return losses.is_null() ? std::nullopt : number_at(losses, set.c_str(), line.where + ": 'validation_losses'");
  };
}

// A colour a run and a marker a set; of one run alone a colour a set.
void add_validation_sets(const std::vector<RunData>& runs, Section& section) {
  const std::vector<std::string> sets = validation_sets(runs);
  Plot plot;
  plot.title = "Validation sets";
  plot.description = "Loss of each validation set, logarithmic, against steps.";
  plot.x = {.label = "optimizer steps", .from_zero = true};
  plot.y = {.label = "validation loss (" + unit_of_losses(runs) + ")", .kind = ScaleKind::logarithmic};
  const bool several = runs.size() > 1;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (several) {
      plot.keys.push_back({.name = runs[i].name, .points = {}, .colour = distinct_colour(i)});
    }
    for (std::size_t s = 0; s < sets.size(); ++s) {
      plot.series.push_back({.name = several ? runs[i].name + ", " + sets[s] : sets[s],
                             .points = points_of(runs[i], step(), of_set(sets[s])),
                             .colour = distinct_colour(several ? i : s),
                             .marker = distinct_marker(s)});
    }
  }
  for (std::size_t s = 0; several && s < sets.size(); ++s) {
    plot.keys.push_back(
        {.name = sets[s], .points = {}, .colour = "ink", .line = Dash::none, .marker = distinct_marker(s)});
  }
  if (has_points(plot)) {
    section.figure(
        figure_of(plot, "validation-sets", "Each set of data.validation_path by itself.", commands_of(runs)));
  }
}

// A number that has another of what is held out beside it: in training faint, of what is held out dashed.
void add_held_out(const std::vector<RunData>& runs, const std::string& training, const std::string& id, Plot plot,
                  const std::string& caption, Section& section) {
  plot.x = {.label = "optimizer steps", .from_zero = true};
  const std::string held_out = "validation_" + training;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    plot.series.push_back({.name = runs[i].name + ", training",
                           .points = points_of(runs[i], step(), key(training.c_str())),
                           .colour = distinct_colour(i),
                           .faint = true});
    plot.series.push_back({.name = runs[i].name + ", validation",
                           .points = points_of(runs[i], step(), key(held_out.c_str())),
                           .colour = distinct_colour(i),
                           .line = Dash::dashed,
                           .marker = distinct_marker(i)});
    plot.keys.push_back({.name = runs[i].name, .points = {}, .colour = distinct_colour(i)});
  }
  if (has_points(plot)) {
    section.figure(figure_of(plot, id, caption, commands_of(runs)));
  }
}

}  // namespace

std::vector<std::string> validation_sets(const std::vector<RunData>& runs) {
  std::vector<std::string> names;
  for (const RunData& run : runs) {
    for (const RunLine& line : run.lines) {
      const Json& losses = object_at(line.json, "validation_losses", line.where);
      for (const auto& [name, loss] : losses.items()) {
        if (std::find(names.begin(), names.end(), name) == names.end()) {
          names.push_back(name);
        }
      }
    }
  }
  return names;
}

std::optional<double> last_of_set(const RunData& run, const std::string& set) {
  const Getter loss = of_set(set);
  for (auto line = run.lines.rbegin(); line != run.lines.rend(); ++line) {
    if (const std::optional<double> value = loss(run, *line)) {
      return value;
    }
  }
  return std::nullopt;
}

std::string unit_of_losses(const std::vector<RunData>& runs) {
  std::string unit;
  for (const RunData& run : runs) {
    if (!run.unit.name.empty() && unit != run.unit.name) {
      if (!unit.empty()) {
        return "nats, each run's own";
      }
      unit = run.unit.name;
    }
  }
  return unit.empty() ? "nats per token" : unit;
}

std::string note_of_units(const std::vector<RunData>& runs) {
  std::string unlike;
  for (const RunData& run : runs) {
    if (!comparable(runs.front().unit, run.unit)) {
      unlike += fmt::format("{}those of {} {}", unlike.empty() ? "" : ", ", run.name, long_name(run.unit));
    }
  }
  return unlike.empty() ? ""
                        : fmt::format(
                              "Losses of unlike units cannot be ranked: those of {} are {}, {}. Bits per byte "
                              "can, where the runs were validated on the same texts.",
                              runs.front().name, long_name(runs.front().unit), unlike);
}

std::string commands_of(const std::vector<RunData>& runs) {
  std::string text;
  for (const RunData& run : runs) {
    text += (text.empty() ? "" : "\n") + run.command();
  }
  return text;
}

void add_losses(const std::vector<RunData>& runs, Section& section) {
  const Getter seconds = [](const RunData&, const RunLine& line) { return std::optional(line.seconds); };
  const Unit unit = seconds_unit(largest(runs, seconds));
  add_loss(runs,
           {.label = "training time (" + unit.name + ")",
            .from_zero = true,
            .divisor = unit.divisor,
            .data_unit = unit.base},
           seconds, "loss-seconds", "seconds",
           "Training time is an estimate: each logged step's time stands for the steps since the line before, without "
           "validation and checkpoints.",
           section);
  add_loss(runs, {.label = "optimizer steps", .from_zero = true}, step(), "loss-steps", "steps", "", section);
  add_loss(runs, {.label = "tokens", .from_zero = true}, key("tokens"), "loss-tokens", "tokens",
           "Tokens trained on, without padding.", section);
  const Getter flops = [](const RunData& run, const RunLine& line) {
    const std::optional<double> tokens = run.number(line, "tokens");
    return tokens && run.flops_per_token ? std::optional(*tokens * *run.flops_per_token) : std::nullopt;
  };
  add_loss(runs, {.label = "training FLOPs", .from_zero = true}, flops, "loss-flops", "FLOPs",
           "FLOPs that the model needs, forward and backward: matrix products and attention, without what is computed "
           "again.",
           section);
  add_validation_sets(runs, section);
  const bool of_bytes =
      std::all_of(runs.begin(), runs.end(), [](const RunData& run) { return run.unit.tokens == "bytes"; });
  if (!of_bytes) {
    Plot bits;
    bits.title = "Validation in bits per byte";
    bits.description = "Validation loss in bits per byte of text, against steps.";
    bits.x = {.label = "optimizer steps", .from_zero = true};
    bits.y = {.label = "bits per byte", .kind = ScaleKind::logarithmic};
    add_curve(runs, bits, step(), key("validation_bits_per_byte"), "bits-per-byte",
              "Compares models with different tokenizers that were validated on the same texts.", section);
  }
  Plot ahead;
  ahead.title = "Loss of tokens further ahead";
  ahead.description = "Mean loss of the depths of multi-token prediction, logarithmic, against steps.";
  ahead.y = {.label = "loss (" + unit_of_losses(runs) + ")", .kind = ScaleKind::logarithmic};
  add_held_out(runs, "mtp_loss", "mtp-loss", ahead, "The mean over model.mtp_depth, before train.mtp_weight.", section);
  Plot right;
  right.title = "Pairs in the right order";
  right.description = "Share of pairs whose chosen answer has the greater reward, against steps.";
  right.y = {.label = "share of pairs (%)", .from_zero = true, .divisor = 0.01, .data_unit = "of 1"};
  add_held_out(runs, "rewards/accuracies", "rewards-accuracies", right,
               "Rewards of data.source = \"pairs\"; half of them by chance.", section);
  Plot margins;
  margins.title = "Margin of rewards";
  margins.description = "Mean reward of the chosen answers less that of the rejected ones, against steps.";
  margins.y = {.label = "reward"};
  add_held_out(runs, "rewards/margins", "rewards-margins", margins, "0 for a model that is its own reference.",
               section);
}

void add_optimization(const std::vector<RunData>& runs, Section& section) {
  const auto add = [&](const char* name, const std::string& id, const std::string& title, const std::string& label,
                       ScaleKind kind, const std::string& caption) {
    Plot plot;
    plot.title = title;
    plot.description = title + " of each run against steps.";
    plot.x = {.label = "optimizer steps", .from_zero = true};
    plot.y = {.label = label, .kind = kind, .from_zero = kind == ScaleKind::linear};
    if (largest(runs, key(name)) > 0) {
      add_curve(runs, plot, step(), key(name), id, caption, section);
    }
  };
  add("lr", "learning-rate", "Learning rate", "learning rate", ScaleKind::linear, "");
  add("grad_norm", "grad-norm", "Gradient norm", "L2 norm", ScaleKind::logarithmic,
      "Of the whole gradient, before clipping.");
  add("aux_loss", "balance-loss", "Balance loss", "mean over routed layers", ScaleKind::linear,
      "Before its coefficient; 1 when the load is balanced.");
  add("z_loss", "z-loss", "Router z loss", "mean over routed layers", ScaleKind::linear, "Before its coefficient.");
}

void add_load(const std::vector<RunData>& runs, Section& section) {
  std::vector<RunData> routed;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(routed), [](const RunData& run) {
    return std::any_of(run.lines.begin(), run.lines.end(),
                       [](const RunLine& line) { return line.json.contains("expert_tokens"); });
  });
  if (routed.empty()) {
    return;
  }
  Plot drops;
  drops.title = "Dropped choices";
  drops.description = "Share of the choices of experts that no expert computed, against steps.";
  drops.x = {.label = "optimizer steps", .from_zero = true};
  drops.y = {.label = "share of choices (%)", .from_zero = true, .divisor = 0.01, .data_unit = "of 1"};
  add_curve(routed, drops, step(), key("drop_rate"), "drops", "Over all routed layers of a step.", section);
  Plot load;
  load.title = "The busiest expert";
  load.description = "Choices of the busiest expert over the mean, in the worst layer, against steps.";
  load.x = drops.x;
  load.y = {.label = "its load / mean load"};
  load.levels = {{"balanced", 1}};
  add_curve(routed, load, step(), key("expert_load_max_over_mean"), "busiest-expert",
            "Choices before capacity, in the worst layer.", section);
}

void add_costs(const std::vector<RunData>& runs, Section& section) {
  Plot speed;
  speed.title = "Tokens per second";
  speed.description = "Tokens per second of the logged steps, all ranks together, against steps.";
  speed.x = {.label = "optimizer steps", .from_zero = true};
  speed.y = {.label = "tokens/s", .from_zero = true};
  add_curve(runs, speed, step(), key("tokens_per_second"), "tokens-per-second",
            "Of the one logged step, all ranks together, without validation and checkpoints.", section);
  Plot mfu = speed;
  mfu.title = "Model FLOPs utilisation";
  mfu.description = "Share of the devices' peak that the model's own FLOPs are, against steps.";
  mfu.y = {.label = "share (%)", .from_zero = true, .divisor = 0.01, .data_unit = "of 1"};
  add_curve(runs, mfu, step(), key("mfu"), "mfu", "Recomputation does not count.", section);

  BarChart memory{
      "Memory by kind", "Tensor memory of the rank that held most, by kind, when it held most.", {}, {}, {}};
  double most = 0;
  for (const RunData& run : runs) {
    for (auto line = run.lines.rbegin(); line != run.lines.rend(); ++line) {
      const Json& kinds = object_at(line->json, "peak_by_kind", line->where);
      if (kinds.is_null()) {
        continue;
      }
      StackedBar bar{run.name, std::vector<double>(memory.parts.size(), 0)};
      double sum = 0;
      for (const auto& [name, value] : kinds.items()) {
        const auto part = std::find(memory.parts.begin(), memory.parts.end(), name);
        const auto at = static_cast<std::size_t>(part - memory.parts.begin());
        if (part == memory.parts.end()) {
          memory.parts.push_back(name);
          bar.values.push_back(0);
        }
        bar.values[at] = number_of(value, line->where + ": 'peak_by_kind." + name + "'").value_or(0);
        sum += bar.values[at];
      }
      most = std::max(most, sum);
      memory.bars.push_back(bar);
      break;
    }
  }
  if (!memory.bars.empty()) {
    for (StackedBar& bar : memory.bars) {
      bar.values.resize(memory.parts.size(), 0);
    }
    const Unit unit = bytes_unit(most);
    memory.axis = {.label = "tensors of the rank that held most (" + unit.name + ")",
                   .divisor = unit.divisor,
                   .data_unit = unit.base};
    section.figure(figure_of(memory, "memory",
                             "What the most tensor memory held so far was made of, on the rank that held most.",
                             commands_of(runs)));
  }
}

}  // namespace orthant::report
