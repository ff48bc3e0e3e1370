#include "apps/lm/schema_graph.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace orthant {
namespace {

using Id = JsonSchema::Id;
using Kind = JsonSchema::Kind;
using Node = JsonSchema::Node;

int levels_of(const Node& node, const std::vector<Node>& nodes, int limit) {
  int levels = 0;
  switch (node.kind) {
    case Kind::choice:
      levels = limit;
      for (const Id id : node.of) {
        levels = std::min(levels, nodes[id].levels);
      }
      return levels;
    case Kind::array: return std::min(limit, 1 + (node.least > 0 ? nodes[node.items].levels : 0));
    case Kind::object:
      for (const JsonSchema::Property& property : node.properties) {
        levels = std::max(levels, property.required ? nodes[property.value].levels : 0);
      }
      return std::min(limit, levels + 1);
    default: return 0;
  }
}

}  // namespace

// Two nodes are equal as long as nothing tells them apart: first their own words, then those of the nodes that they
// hold.
void merge_equal_alternatives(std::vector<Node>& nodes) {
  using Words = std::tuple<Kind, std::vector<std::string>, std::vector<std::size_t>, std::size_t, std::size_t>;
  std::vector<std::size_t> class_of(nodes.size());
  std::map<Words, std::size_t> first;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    std::vector<std::size_t> needed = node.property;
    for (const JsonSchema::Property& property : node.properties) {
      needed.push_back(property.required ? 1 : 0);
    }
    class_of[i] =
        first.emplace(Words(node.kind, node.texts, needed, node.least, node.most), first.size()).first->second;
  }
  for (std::size_t classes = 0, now = first.size(); classes != now;) {
    classes = now;
    std::map<std::vector<std::size_t>, std::size_t> finer;
    std::vector<std::size_t> next(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      std::vector<std::size_t> held = {class_of[i]};
      if (node.kind == Kind::array) {
        held.push_back(class_of[node.items]);
      } else if (node.kind == Kind::choice) {
        std::set<std::size_t> of;
        for (const Id id : node.of) {
          of.insert(class_of[id]);
        }
        held.insert(held.end(), of.begin(), of.end());
      }
      for (const JsonSchema::Property& property : node.properties) {
        held.push_back(class_of[property.value]);
      }
      next[i] = finer.emplace(std::move(held), finer.size()).first->second;
    }
    class_of = std::move(next);
    now = finer.size();
  }
  for (Node& node : nodes) {
    std::set<std::size_t> met;
    std::erase_if(node.of, [&](Id id) { return !met.insert(class_of[id]).second; });
  }
}

void measure_levels(std::vector<Node>& nodes, int limit) {
  for (Node& node : nodes) {
    node.levels = limit;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (Node& node : nodes) {
      const int levels = levels_of(node, nodes, limit);
      changed = changed || levels != node.levels;
      node.levels = levels;
    }
  }
}

}  // namespace orthant
