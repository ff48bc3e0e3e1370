#include "apps/search/candidate.h"

#include <fmt/format.h>

#include <algorithm>

namespace orthant::search {
namespace {

using cost::Axis;

std::string indivisible(const Units& units, const char* axis, int size) {
  return fmt::format("{} {} do not divide among {} ranks of {}", units.count, units.name, size, axis);
}

bool one_divides(std::int64_t a, std::int64_t b) {
  return a % b == 0 || b % a == 0;
}

std::string refused_tensor(const Problem& problem, const Candidate& c) {
  if (c.tensor == 1) {
    return c.sequence_parallel || c.folded ? "there is no tensor axis to do it" : "";
  }
  for (const auto& [feature, on] : {std::pair(Feature::tensor, true),
                                    {Feature::sequence_parallel, c.sequence_parallel},
                                    {Feature::folded, c.folded},
                                    {Feature::split, problem.model.experts > 0 && !c.folded}}) {
    if (on && !problem.has(feature)) {
      return problem.refuses.at(feature);
    }
  }
  if (c.folded && problem.model.experts == 0) {
    return "there are no experts to fold";
  }
  for (const Units& units : problem.tensor) {
    if (units.count % c.tensor != 0) {
      return indivisible(units, "the tensor axis", c.tensor);
    }
  }
  if (!one_divides(problem.key_heads, c.tensor)) {
    return fmt::format("{} key heads and {} ranks of the tensor axis: one must divide the other", problem.key_heads,
                       c.tensor);
  }
  for (const Units& units : problem.tensor_split) {
    if (!c.folded && units.count % c.tensor != 0) {
      return indivisible(units, "the tensor axis, which splits experts", c.tensor);
    }
  }
  const std::int64_t tokens = c.micro_batch * problem.positions / c.sequence;
  if ((c.sequence_parallel || c.folded) && tokens % c.tensor != 0) {
    return indivisible({"tokens of a micro-batch", tokens}, "the tensor axis", c.tensor);
  }
  return "";
}

std::string refused_sequence(const Problem& problem, const Candidate& c) {
  if (c.sequence == 1) {
    return c.ulysses ? "there is no sequence axis to do it" : "";
  }
  const Feature method = c.ulysses ? Feature::ulysses : Feature::ring;
  if (!problem.has(method)) {
    return problem.refuses.at(method);
  }
  const int parts = (c.ulysses ? 1 : 2) * c.sequence;
  if (problem.positions % parts != 0) {
    return indivisible({"positions", problem.positions}, c.ulysses ? "the sequence axis" : "a ring, in two parts each,",
                       c.sequence);
  }
  if (!c.ulysses) {
    return "";
  }
  if (problem.heads % (static_cast<std::int64_t>(c.tensor) * c.sequence) != 0) {
    return fmt::format("{} heads do not divide among {} x {} ranks of the tensor and the sequence axis", problem.heads,
                       c.tensor, c.sequence);
  }
  // As a plan shares repeated heads out, axis by axis from the outermost on.
  std::int64_t left = problem.key_heads;
  const auto& order = all_orders().at(c.order);
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    const int size = *axis == Axis::tensor ? c.tensor : *axis == Axis::context ? c.sequence : 1;
    if (!one_divides(left, size)) {
      return fmt::format(
          "{} key heads and {} x {} ranks of the tensor and the sequence axis: one must divide the other",
          problem.key_heads, c.tensor, c.sequence);
    }
    left = std::max<std::int64_t>(1, left / size);
  }
  return "";
}

std::string refused_batch(const Problem& problem, const Candidate& c) {
  for (const std::int64_t sequences : problem.batches) {
    if (sequences % (c.data * c.micro_batch) != 0) {
      return fmt::format("{} sequences do not divide among {} ranks of the data axis in micro-batches of {}", sequences,
                         c.data, c.micro_batch);
    }
  }
  const std::int64_t tokens = c.micro_batch * problem.positions;
  if (tokens > problem.most_tokens) {
    return fmt::format("a micro-batch of {} tokens is too large", tokens);
  }
  if (problem.group_tokens > 0 && tokens % problem.group_tokens != 0) {
    return indivisible({"tokens of a micro-batch", tokens}, "groups of moe.group_tokens",
                       static_cast<int>(problem.group_tokens));
  }
  return "";
}

std::string refused_stages(const Problem& problem, const Candidate& c) {
  if (c.pipeline > 1 && !problem.has(Feature::pipeline)) {
    return problem.refuses.at(Feature::pipeline);
  }
  const bool many = c.pipeline > 1;
  if ((c.chunks > 1) != (c.schedule == Course::interleaved) || (c.schedule == Course::gpipe && !many) ||
      (c.schedule == Course::interleaved && !many) || (c.schedule == Course::layered && many)) {
    return "the schedule is for other numbers of stages and chunks";
  }
  if (c.schedule == Course::layered && !problem.has(Feature::layered)) {
    return problem.refuses.at(Feature::layered);
  }
  if (c.pipeline * c.chunks > problem.chain) {
    return fmt::format("{} stages of {} chunks need {} layers, and the chain has {}", c.pipeline, c.chunks,
                       c.pipeline * c.chunks, problem.chain);
  }
  for (const std::int64_t sequences : problem.batches) {
    const std::int64_t count = sequences / c.data / c.micro_batch;
    if (c.chunks > 1 && count % c.pipeline != 0) {
      return fmt::format("{} micro-batches do not divide into rounds of {} stages", count, c.pipeline);
    }
  }
  return "";
}

std::string refused_experts(const Problem& problem, const Candidate& c) {
  if (problem.model.experts == 0) {
    return c.expert > 1 || c.travel != Travel::at_once ? "there are no experts to share out" : "";
  }
  const int from = c.data * c.sequence * (c.folded ? c.tensor : 1);
  if (problem.model.experts % c.expert != 0) {
    return indivisible({"experts", problem.model.experts}, "the expert axis", c.expert);
  }
  if (from % c.expert != 0) {
    return fmt::format("{} ranks of the expert axis are carved from {} that divide tokens", c.expert, from);
  }
  const bool parts = c.travel == Travel::in_parts || c.travel == Travel::two_levels_in_parts;
  if (c.travel != Travel::at_once && c.expert == 1) {
    return "no rows travel";
  }
  if (parts && problem.model.experts / c.expert % 2 != 0) {
    return "the experts of a rank do not divide into two parts";
  }
  const bool two_levels = c.travel == Travel::two_levels || c.travel == Travel::two_levels_in_parts;
  const int inside = places_of(problem, c)[4];
  return two_levels && (inside == 1 || inside == c.expert) ? "two levels need ranks in a node and several nodes" : "";
}

std::string refused_sharding(const Problem& problem, const Candidate& c) {
  if (c.zero > 0 && !problem.has(Feature::zero)) {
    return problem.refuses.at(Feature::zero);
  }
  if (c.host_states && !problem.has(Feature::host_states)) {
    return problem.refuses.at(Feature::host_states);
  }
  // With one rank to share among, all stages are stage 0; layered saves where gathers or sums come for each
  // micro-batch.
  if (c.zero > 0 && c.data * c.sequence == 1) {
    return "there is nobody to share parameters with";
  }
  return c.schedule == Course::layered && c.zero < 2 ? "layered accumulation saves what ZeRO stages 2 and 3 send" : "";
}

}  // namespace

const std::vector<std::array<Axis, 4>>& all_orders() {
  static const std::vector<std::array<Axis, 4>> orders = [] {
    std::vector<std::array<Axis, 4>> all;
    std::array<Axis, 4> order = {Axis::tensor, Axis::context, Axis::data, Axis::pipeline};
    do {
      all.push_back(order);
    } while (std::next_permutation(order.begin(), order.end()));
    return all;
  }();
  return orders;
}

cost::Layout uncut_layout_of(const Problem& problem, const Candidate& c) {
  cost::Layout layout = problem.base;
  layout.tensor = c.tensor;
  layout.context = c.sequence;
  layout.pipeline = c.pipeline;
  layout.expert = c.expert;
  layout.chunks = c.chunks;
  layout.micro_batch = static_cast<double>(c.micro_batch);
  layout.zero = c.zero;
  layout.sums_each = c.zero == 2;
  layout.sequence_parallel = c.sequence_parallel;
  layout.ulysses = c.ulysses;
  layout.host_states = c.host_states;
  layout.recompute = c.recompute;
  layout.all_at_once = c.schedule == Course::gpipe;
  layout.layered = c.schedule == Course::layered;
  layout.tensor_experts = c.folded ? cost::TensorExperts::folded : cost::TensorExperts::split;
  layout.expert_tensor = c.folded || problem.model.experts == 0 ? 1 : c.tensor;
  layout.exchange_chunks = c.travel == Travel::in_parts || c.travel == Travel::two_levels_in_parts ? 2 : 1;
  layout.exchange = c.travel == Travel::two_levels || c.travel == Travel::two_levels_in_parts
                        ? cost::Exchange::two_levels
                        : cost::Exchange::one_level;
  layout.order = all_orders().at(c.order);
  return layout;
}

cost::Layout layout_of(const Problem& problem, const Candidate& c) {
  cost::Layout layout = uncut_layout_of(problem, c);
  if (c.pipeline * c.chunks > 1 && problem.cut) {
    layout.blocks = problem.cut(c.pipeline, c.chunks);
  }
  return layout;
}

Places places_of(const Problem& problem, const Candidate& c) {
  cost::Layout layout;
  layout.ranks = c.tensor * c.sequence * c.data * c.pipeline;
  layout.tensor = c.tensor;
  layout.context = c.sequence;
  layout.pipeline = c.pipeline;
  layout.expert = c.expert;
  layout.tensor_experts = c.folded ? cost::TensorExperts::folded : cost::TensorExperts::split;
  layout.order = all_orders().at(c.order);
  const auto inner = [&](const cost::Spans& spans) { return cost::group_of(problem.machine, spans).inner; };
  const auto along = [&](Axis axis, int size) {
    cost::Spans spans;
    spans.add(size, layout.stride_of(axis));
    return inner(spans);
  };
  return {along(Axis::tensor, c.tensor),  along(Axis::context, c.sequence),
          inner(layout.gradient_spans()), c.pipeline > 1 ? along(Axis::pipeline, 2) : 1,
          inner(layout.expert_spans()),   inner(layout.expert_data_spans())};
}

std::string refused_leaf(const Problem& problem, const Candidate& c) {
  const std::string why = refused_stages(problem, c);
  return why.empty() ? refused_sharding(problem, c) : why;
}

std::string refusal(const Problem& problem, const Candidate& c) {
  if (c.tensor * c.sequence * c.pipeline * c.data != problem.base.ranks) {
    return fmt::format("the axes have {} ranks", c.tensor * c.sequence * c.pipeline * c.data);
  }
  for (const auto& refused : {refused_tensor, refused_sequence, refused_batch, refused_experts, refused_leaf}) {
    if (std::string why = refused(problem, c); !why.empty()) {
      return why;
    }
  }
  return "";
}

const char* name_of(Feature feature) {
  switch (feature) {
    case Feature::tensor: return "tensor axis";
    case Feature::split: return "experts split";
    case Feature::folded: return "experts folded";
    case Feature::sequence_parallel: return "sequence parallel";
    case Feature::ulysses: return "sequence by ulysses";
    case Feature::ring: return "sequence by ring";
    case Feature::pipeline: return "pipeline axis";
    case Feature::zero: return "zero 1 to 3";
    case Feature::layered: return "schedule layered";
    case Feature::host_states: return "states on the host";
  }
  return "";
}

const char* name_of(Course schedule) {
  switch (schedule) {
    case Course::one_forward_one_backward: return "1f1b";
    case Course::gpipe: return "gpipe";
    case Course::interleaved: return "interleaved";
    case Course::layered: return "layered";
  }
  return "";
}

const char* name_of(Travel travel) {
  switch (travel) {
    case Travel::at_once: return "all to all";
    case Travel::in_parts: return "all to all in two parts";
    case Travel::two_levels: return "two levels";
    case Travel::two_levels_in_parts: return "two levels in two parts";
  }
  return "";
}

const char* name_of(cost::Recompute recompute) {
  switch (recompute) {
    case cost::Recompute::none: return "none";
    case cost::Recompute::full: return "full";
    default: return "selective";
  }
}

std::string text_of(const Candidate& c) {
  std::string text;
  const auto& order = all_orders().at(c.order);
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (*axis == Axis::pipeline && c.pipeline > 1) {
      add(fmt::format("pipeline {} ({}{})", c.pipeline, name_of(c.schedule),
                      c.chunks > 1 ? fmt::format(", {} chunks", c.chunks) : ""));
    } else if (*axis == Axis::data && (c.data > 1 || c.zero > 0)) {
      add(fmt::format("data {}{}{}", c.data, c.zero > 0 ? fmt::format(" zero {}", c.zero) : "",
                      c.schedule == Course::layered ? " layered" : ""));
    } else if (*axis == Axis::context && c.sequence > 1) {
      add(fmt::format("sequence {} ({})", c.sequence, c.ulysses ? "ulysses" : "ring"));
    } else if (*axis == Axis::tensor && c.tensor > 1) {
      add(fmt::format("tensor {}{}{}", c.tensor, c.sequence_parallel ? " sequence parallel" : "",
                      c.folded ? " folded experts" : ""));
    }
  }
  if (c.expert > 1) {
    add(fmt::format("expert {}{}", c.expert,
                    c.travel == Travel::at_once ? "" : fmt::format(" ({})", name_of(c.travel))));
  }
  add(fmt::format("micro-batch {}", c.micro_batch));
  if (c.recompute != cost::Recompute::none) {
    add(fmt::format("recompute {}", name_of(c.recompute)));
  }
  if (c.host_states) {
    add("states on the host");
  }
  return text;
}

}  // namespace orthant::search
