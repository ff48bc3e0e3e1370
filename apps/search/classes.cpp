// Which classes a layout is of, and their names.
#include <cmath>

#include <fmt/format.h>

#include "apps/search/axis_names.h"
#include "apps/search/classes.h"

namespace orthant::search {
namespace {

constexpr std::int64_t chunk_unit = 16;  // of a schedule's number

std::int64_t number_of(Course schedule, int chunks) {
  return static_cast<std::int64_t>(schedule) + chunk_unit * chunks;
}

int size_along(const Candidate& c, cost::Axis axis) {
  switch (axis) {
    case cost::Axis::tensor: return c.tensor;
    case cost::Axis::context: return c.sequence;
    case cost::Axis::data: return c.data;
    case cost::Axis::pipeline: return c.pipeline;
  }
  return 1;
}

}  // namespace

std::vector<Class> classes_of_key(const Candidate& c) {
  std::vector<Class> classes = {{Kind::tensor, c.tensor},
                                {Kind::sequence, c.sequence},
                                {Kind::pipeline, c.pipeline},
                                {Kind::data, c.data},
                                {Kind::expert, c.expert}};
  if (c.tensor > 1) {
    classes.push_back({Kind::experts, c.folded});
  }
  if (c.sequence > 1) {
    classes.push_back({Kind::method, c.ulysses});
  }
  for (const cost::Axis axis : all_orders().at(c.order)) {
    if (size_along(c, axis) > 1) {
      classes.push_back({Kind::innermost, static_cast<std::int64_t>(axis)});
      break;
    }
  }
  return classes;
}

std::vector<Class> classes_of_work(const Candidate& c) {
  std::vector<Class> classes = {{Kind::micro_batch, c.micro_batch}, {Kind::recompute, static_cast<int>(c.recompute)}};
  if (c.tensor > 1) {
    classes.push_back({Kind::sequence_parallel, c.sequence_parallel});
  }
  if (c.expert > 1) {
    classes.push_back({Kind::travel, static_cast<int>(c.travel)});
  }
  return classes;
}

std::vector<Class> classes_of_leaf(const Leaf& leaf) {
  return {{Kind::zero, leaf.zero},
          {Kind::schedule, number_of(leaf.schedule, leaf.chunks)},
          {Kind::states, leaf.host_states}};
}

std::vector<Class> classes_of(const Candidate& c) {
  std::vector<Class> classes = classes_of_key(c);
  for (const std::vector<Class>& more :
       {classes_of_work(c), classes_of_leaf({c.schedule, c.chunks, c.zero, c.host_states})}) {
    classes.insert(classes.end(), more.begin(), more.end());
  }
  return classes;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::tensor: return named::tensor;
    case Kind::sequence: return named::sequence;
    case Kind::pipeline: return named::pipeline;
    case Kind::data: return named::data;
    case Kind::expert: return named::expert;
    case Kind::zero: return "zero";
    case Kind::schedule: return "schedule";
    case Kind::micro_batch: return "micro-batch";
    case Kind::recompute: return "recompute";
    case Kind::sequence_parallel: return "sequence parallel";
    case Kind::experts: return "experts";
    case Kind::method: return "sequence by";
    case Kind::travel: return "rows travel";
    case Kind::innermost: return "innermost axis";
    case Kind::states: return "states";
  }
  return "";
}

std::string text_of(const Class& of) {
  std::string value = fmt::format("{}", of.value);
  switch (of.kind) {
    case Kind::schedule: {
      const auto schedule = static_cast<Course>(of.value % chunk_unit);
      value = schedule == Course::interleaved ? fmt::format("{}, {} chunks", name_of(schedule), of.value / chunk_unit)
                                              : name_of(schedule);
      break;
    }
    case Kind::recompute: value = name_of(static_cast<cost::Recompute>(of.value)); break;
    case Kind::sequence_parallel: value = of.value != 0 ? "on" : "off"; break;
    case Kind::experts: value = of.value != 0 ? "folded" : "split"; break;
    case Kind::method: value = of.value != 0 ? "ulysses" : "ring"; break;
    case Kind::travel: value = name_of(static_cast<Travel>(of.value)); break;
    case Kind::innermost: value = named::of(static_cast<cost::Axis>(of.value)); break;
    case Kind::states: value = of.value != 0 ? "on the host" : "on the device"; break;
    default: break;
  }
  return fmt::format("{} {}", name_of(of.kind), value);
}

}  // namespace orthant::search
