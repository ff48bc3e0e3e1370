#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "apps/plan/plan_output.h"
#include "core/base/bytes_text.h"
#include "core/base/flops_text.h"
#include "core/config/batch_text.h"

namespace orthant {
namespace {

constexpr std::size_t most_groups = 4;  // of groups, written in full

// Columns as wide as their widest cell; the last one is not padded. `right`: columns of numbers.
class Columns {
 public:
  explicit Columns(std::vector<std::string> head, std::vector<bool> right) : right_(std::move(right)) {
    rows_.push_back(std::move(head));
  }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const {
    std::vector<std::size_t> width(rows_.front().size(), 0);
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        width[i] = std::max(width[i], row[i].size());
      }
    }
    std::string text;
    for (const auto& row : rows_) {
      std::string line = " ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        line += right_[i] ? fmt::format(" {:>{}} ", row[i], width[i]) : fmt::format(" {:<{}} ", row[i], width[i]);
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
  }

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string splits_text(const AxisPlan& axis) {
  std::vector<std::string> texts;
  for (const SplitPlan& split : axis.splits) {
    std::string text = split.dim;
    if (!split.only_in.empty()) {
      text += fmt::format(" (in {})", fmt::join(split.only_in, ", "));
    }
    if (!split.not_in.empty()) {
      text += fmt::format(" (not in {})", fmt::join(split.not_in, ", "));
    }
    texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string mesh_text(const MeshPlan& mesh) {
  if (mesh.axes.empty()) {
    return "no plugin claims an axis: one rank holds everything\n";
  }
  Columns table({"axis", "size", "splits", "groups of ranks"}, {false, true, false, false});
  for (const AxisPlan& axis : mesh.axes) {
    std::vector<std::string> groups;
    for (std::size_t i = 0; i < std::min(axis.groups.size(), most_groups); ++i) {
      groups.push_back(numbers_text(axis.groups[i]));
    }
    std::string text = fmt::format("{}", fmt::join(groups, " | "));
    if (axis.groups.size() > most_groups) {
      text += fmt::format(" | .. | {} ({} groups)", numbers_text(axis.groups.back()), axis.groups.size());
    }
    if (!axis.carved_from.empty()) {
      text += fmt::format("  (carved from the ranks that split {} in {})", fmt::join(axis.carved_from, " or "),
                          fmt::join(axis.carved_in, ", "));
    }
    table.add({axis.name, std::to_string(axis.size), splits_text(axis), text});
  }
  return table.text();
}

// "embedding, blocks 0-2", "head, mtp 0"
std::string layers_text(std::pair<int, int> chunk, int head) {
  std::vector<std::string> texts;
  const int first = std::max(chunk.first, 1), last = std::min(chunk.second, head);
  if (chunk.first == 0) {
    texts.emplace_back("embedding");
  }
  if (last - first == 1) {
    texts.push_back(fmt::format("block {}", first - 1));
  } else if (last > first) {
    texts.push_back(fmt::format("blocks {}-{}", first - 1, last - 2));
  }
  if (chunk.first <= head && head < chunk.second) {
    texts.emplace_back("head");
  }
  for (int layer = std::max(chunk.first, head + 1); layer < chunk.second; ++layer) {
    texts.push_back(fmt::format("mtp {}", layer - head - 1));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string stages_text(const MeshPlan& mesh) {
  if (mesh.stages.size() == 1) {
    return "";
  }
  Columns table({"stage", "ranks", "layers"}, {true, false, false});
  for (std::size_t stage = 0; stage < mesh.stages.size(); ++stage) {
    std::vector<std::string> chunks;
    for (const auto& chunk : mesh.stages[stage].chunks) {
      chunks.push_back(layers_text(chunk, mesh.head));
    }
    table.add(
        {std::to_string(stage), numbers_text(mesh.stages[stage].ranks), fmt::format("{}", fmt::join(chunks, " | "))});
  }
  return "\n" + table.text();
}

std::string slice_text(const HeldParam& p) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < p.global.size(); ++i) {
    parts.push_back(p.size[i] == p.global[i] ? "all" : fmt::format("{}+{}", p.offset[i], p.size[i]));
  }
  return p.size == p.global ? "all" : fmt::format("[{}]", fmt::join(parts, ", "));
}

std::string params_text(const RankPlan& rank) {
  Columns table({"parameter", "global shape", "slice (offset+size)", "gradient summed over ranks"},
                {false, false, false, false});
  for (const FoldedParams& line : fold(rank.params)) {
    const HeldParam& p = *line.first;
    table.add({line.names, fmt::format("[{}]", fmt::join(p.global, ", ")), slice_text(p),
               p.summed_over.size() == 1 ? "-" : numbers_text(p.summed_over)});
  }
  return table.text();
}

// A column for a teacher's weights only where there is one.
std::string classes_text(const std::vector<RankClass>& classes) {
  const bool teacher =
      std::any_of(classes.begin(), classes.end(), [](const RankClass& c) { return c.memory.teacher > 0; });
  const auto row = [&](std::vector<std::string> before, const std::string& of_teacher, std::vector<std::string> after) {
    if (teacher) {
      before.push_back(of_teacher);
    }
    before.insert(before.end(), after.begin(), after.end());
    return before;
  };
  std::vector<bool> right(teacher ? 8 : 7, true);
  right.front() = false;
  Columns table(
      row({"ranks", "weights", "gradients", "states"}, "teacher", {"other", "peak of a step", "sent in a step"}),
      right);
  for (const RankClass& c : classes) {
    table.add(row({numbers_text(c.ranks), bytes_text(c.memory.weights), bytes_text(c.memory.gradients),
                   bytes_text(c.memory.states)},
                  bytes_text(c.memory.teacher),
                  {bytes_text(c.memory.other), bytes_text(c.memory.peak), bytes_text(c.sent)}));
  }
  return table.text();
}

// What ranks hold elsewhere than on their device; empty: nothing.
std::string elsewhere_text(const std::vector<RankClass>& classes) {
  Columns table({"ranks", "host memory", "at worst", "disk"}, {false, true, true, true});
  bool any = false;
  for (const RankClass& c : classes) {
    any = any || c.worst.host_peak > 0 || c.memory.disk > 0;
    table.add({numbers_text(c.ranks), bytes_text(c.memory.host_peak), bytes_text(c.worst.host_peak),
               bytes_text(c.memory.disk)});
  }
  return any ? "\nheld outside of the device\n" + table.text() : "";
}

// Empty: all parameters train.
std::string trained_lines(const PlanOutput& plan) {
  if (plan.trained.empty()) {
    return "";
  }
  std::int64_t peak = 0;
  for (const RankClass& c : plan.classes) {
    peak = std::max(peak, c.memory.peak);
  }
  return fmt::format("\n{}\na step's largest peak is {}; if all parameters trained, without adapters, {}\n",
                     fmt::join(plan.trained, "\n"), bytes_text(peak), bytes_text(plan.peak_of_all));
}

std::string kinds_text(const std::vector<RankClass>& classes) {
  std::vector<std::string> head = {"ranks", "routing"};
  std::vector<bool> right = {false, false};
  for (MemoryKind kind : all_memory_kinds) {
    head.emplace_back(name_of(kind));
    right.push_back(true);
  }
  head.emplace_back("peak");
  right.push_back(true);
  Columns table(std::move(head), std::move(right));
  const auto add = [&](const RankClass& c, const char* routing, const MemoryPlan& memory) {
    std::vector<std::string> row = {numbers_text(c.ranks), routing};
    for (MemoryKind kind : all_memory_kinds) {
      row.push_back(memory.peak_kinds[kind] == 0 ? "-" : bytes_text(memory.peak_kinds[kind]));
    }
    row.push_back(bytes_text(memory.peak));
    table.add(std::move(row));
  };
  for (const RankClass& c : classes) {
    add(c, "balanced", c.memory);
    if (c.recorded) {
      add(c, "recorded", *c.recorded);
    }
    add(c, "worst", c.worst);
  }
  return table.text();
}

// Empty: nothing.
std::string recomputed_text(const std::vector<RankClass>& classes, const MemorySettings& memory) {
  if (memory.recompute == "none") {
    return "";
  }
  Columns table({"ranks", "micro-batches", "keep all", "computed again"}, {false, true, true, true});
  for (const RankClass& c : classes) {
    table.add({numbers_text(c.ranks), std::to_string(c.recomputed.pairs), std::to_string(c.recomputed.kept),
               flops_text(c.recomputed.flops)});
  }
  return fmt::format("\nwhat each rank computes again in a step: recompute = \"{}\", keep_micro_batches = {}\n{}",
                     memory.recompute, memory.keep_micro_batches, table.text());
}

std::string collectives_text(const RankPlan& rank) {
  const std::vector<CollectiveSum> sums = sum_collectives(rank);
  if (sums.empty()) {
    return "  none\n";
  }
  Columns table({"along", "purpose", "ranks", "operation", "count", "bytes each", "sent"},
                {false, false, false, false, true, true, true});
  std::vector<std::string> order;
  std::map<std::string, std::int64_t> sent;
  for (const CollectiveSum& sum : sums) {
    const RecordedGroup& group = rank.step.groups[sum.group];
    const std::string& axis = rank.axis[sum.group];
    table.add({axis, group.name, numbers_text(group.members), fmt::format("{} {}", sum.operation, name_of(sum.dtype)),
               std::to_string(sum.count),
               sum.least == sum.most ? bytes_text(sum.most)
                                     : fmt::format("{} to {}", bytes_text(sum.least), bytes_text(sum.most)),
               bytes_text(sum.sent)});
    if (!sent.contains(axis)) {
      order.push_back(axis);
    }
    sent[axis] += sum.sent;
  }
  std::string text = table.text();
  for (const std::string& axis : order) {
    text += fmt::format("  sent along {}: {}\n", axis, bytes_text(sent[axis]));
  }
  return text;
}

std::string growth_text(const PlanOutput& plan) {
  if (plan.batch.grow_to.empty()) {
    return "";
  }
  return fmt::format(
      "\nthe batch grows: {}\nmemory is that of the largest, what is sent and computed again that of step {}, "
      "of {} sequences\n",
      batch_text(plan.batch), plan.step, sequences_of_step(plan.batch, plan.step - 1));
}

// Of axes that split positions in the residual stream alone. Empty: there is none.
std::string gathered_text(const MeshPlan& mesh) {
  std::vector<std::string> names;
  for (const AxisPlan& axis : mesh.axes) {
    const bool gathers = std::any_of(axis.splits.begin(), axis.splits.end(), [](const SplitPlan& split) {
      return split.dim == "position" &&
             std::find(split.only_in.begin(), split.only_in.end(), "norm") != split.only_in.end();
    });
    if (gathers) {
      names.push_back(axis.name);
    }
  }
  return names.empty() ? ""
                       : fmt::format(
                             " Positions that {} splits in norms alone are gathered before products, and again in "
                             "the backward pass.",
                             fmt::join(names, ", "));
}

}  // namespace

std::string plan_text(const PlanOutput& plan) {
  const int world = plan.mesh.world_size;
  std::string text = fmt::format("{}: {} rank{}\n\n", plan.file, world, world == 1 ? "" : "s");
  text += mesh_text(plan.mesh) + stages_text(plan.mesh) + growth_text(plan);
  text += fmt::format("\nrank {} holds\n", plan.rank.rank) + params_text(plan.rank);
  text += "\nbytes of each rank\n" + classes_text(plan.classes);
  text += "\nwhat the peak is made of\n" + kinds_text(plan.classes) + elsewhere_text(plan.classes);
  text += trained_lines(plan) + (plan.rates.empty() ? "" : fmt::format("\n{}\n", fmt::join(plan.rates, "\n"))) +
          recomputed_text(plan.classes, plan.memory);
  text += fmt::format("\ncollectives of rank {} in step {}\n", plan.rank.rank, plan.step) + collectives_text(plan.rank);
  for (const std::string& line : plan.advice) {
    text += "\n" + line + "\n";
  }
  text += plan.gradients == ComputeType::bf16 ? "\nGradients are kept in bf16, but for those of the layer that runs."
                                              : "\nGradients are f32 in every layout (optimizer.gradient_dtype).";
  text += gathered_text(plan.mesh) + "\n";
  text +=
      "Of a step run without data: routing is assumed balanced where no other is named, sequences without padding. "
      "Sent: bytes that leave the rank by ring algorithms (docs/guides/plan.md).\n";
  return text;
}

}  // namespace orthant
