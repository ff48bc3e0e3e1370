#include "apps/lm/json_answer.h"

#include <algorithm>
#include <utility>

namespace orthant {
namespace {

using Kind = JsonSchema::Kind;
using Node = JsonSchema::Node;

// More are not gone at once: then some answers that a schema allows are never written.
constexpr std::size_t most_ways = 64;

}  // namespace

bool JsonAnswer::Way::operator==(const Way& other) const {
  return depth == other.depth && in_key == other.in_key && in_scalar == other.in_scalar && leaf == other.leaf &&
         first == other.first && last == other.last && at == other.at &&
         std::equal(levels.begin(), levels.begin() + depth + 1, other.levels.begin());
}

JsonAnswer::JsonAnswer(const JsonSchema* schema) : schema_(schema) {
  if (schema != nullptr) {
    ways_.emplace_back();
  }
}

bool JsonAnswer::add(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [&](char c) { return add(c); });
}

bool JsonAnswer::add(char c) {
  if (!text_.add(c)) {
    return false;
  }
  if (schema_ == nullptr) {
    return true;
  }
  next_.clear();
  for (const Way& way : ways_) {
    step(way, c, text_.part());
  }
  ways_.swap(next_);
  return !ways_.empty();
}

void JsonAnswer::step(Way way, char c, JsonPart part) {
  if (way.in_scalar && part != JsonPart::scalar) {  // it has ended
    const Node& node = schema_->node(way.leaf);
    if (node.kind == Kind::text && node.texts[way.first].size() != way.at) {
      return;
    }
    way.in_scalar = false;
    way.leaf = 0;
    way.first = way.last = way.at = 0;
  }
  bool goes_on = true;
  switch (part) {
    case JsonPart::blank: break;
    case JsonPart::open_object:
    case JsonPart::open_array: begin_value(way, c, part); return;
    case JsonPart::scalar:
      if (!way.in_scalar) {
        begin_value(way, c, part);
        return;
      }
      goes_on = go_on(way, c);
      break;
    case JsonPart::key:
      if (!way.in_key) {
        way.in_key = true;
        way.first = way.at = 0;
        way.last = static_cast<std::uint32_t>(top(way).texts.size());
      }
      goes_on = narrow(way, top(way), c);
      break;
    case JsonPart::colon:
      way.levels[way.depth].next = static_cast<std::uint32_t>(top(way).property[way.first] + 1);
      way.in_key = false;
      way.first = way.last = way.at = 0;
      break;
    case JsonPart::comma: {
      const std::uint32_t next = way.levels[way.depth].next;
      goes_on = top(way).kind == Kind::array ? next < top(way).most : false;
      for (std::size_t i = next; !goes_on && i < top(way).properties.size(); ++i) {
        goes_on = may_come(way, i);
      }
      break;
    }
    case JsonPart::close_object:
    case JsonPart::close_array: goes_on = close(way, way.levels[way.depth].next); break;
  }
  if (goes_on && next_.size() < most_ways && std::find(next_.begin(), next_.end(), way) == next_.end()) {
    next_.push_back(way);
  }
}

// The rest of a scalar: JsonText knows strings and numbers.
bool JsonAnswer::go_on(Way& way, char c) const {
  const Node& node = schema_->node(way.leaf);
  switch (node.kind) {
    case Kind::text: return narrow(way, node, c);
    case Kind::integer: return c != '.' && c != 'e' && c != 'E';
    default: return true;
  }
}

void JsonAnswer::begin_value(const Way& way, char c, JsonPart part) {
  Id expected = schema_->root();
  Way begun = way;
  if (way.depth > 0) {
    Level& level = begun.levels[way.depth];
    expected = top(way).kind == Kind::array ? top(way).items : top(way).properties[level.next - 1].value;
    if (top(way).kind == Kind::array && level.next++ >= top(way).most) {
      return;
    }
  }
  for (const Id id : schema_->node(expected).of) {
    const Node& node = schema_->node(id);
    Way one = begun;
    bool fits = false;
    if (part == JsonPart::scalar) {
      one.in_scalar = true;
      one.leaf = id;
      one.last = static_cast<std::uint32_t>(node.texts.size());
      const bool number = c == '-' || (c >= '0' && c <= '9');
      fits = node.kind == Kind::string ? c == '"'
             : node.kind == Kind::number || node.kind == Kind::integer
                 ? number
                 : node.kind == Kind::text && narrow(one, node, c);
    } else {
      fits = node.kind == (part == JsonPart::open_object ? Kind::object : Kind::array) &&
             way.depth + node.levels <= JsonText::most_levels;
      if (fits) {
        one.levels[++one.depth] = {.node = id};
      }
    }
    if (fits && next_.size() < most_ways) {
      next_.push_back(one);
    }
  }
}

// Whether this property may be the next: those before it need not come, and there are levels left for its value.
bool JsonAnswer::may_come(const Way& way, std::size_t property) const {
  const Node& node = top(way);
  const std::size_t next = way.levels[way.depth].next;
  return property >= next && property <= node.properties[next].until &&
         way.depth + schema_->node(node.properties[property].value).levels <= JsonText::most_levels;
}

// One more byte of one of the texts.
bool JsonAnswer::narrow(Way& way, const Node& node, char c) const {
  const auto byte = [&](std::uint32_t i) {
    return way.at < node.texts[i].size() ? static_cast<unsigned char>(node.texts[i][way.at]) : -1;
  };
  const int wanted = static_cast<unsigned char>(c);
  while (way.first < way.last && byte(way.first) < wanted) {
    ++way.first;
  }
  std::uint32_t end = way.first;
  bool any = false;
  for (; end < way.last && byte(end) == wanted; ++end) {
    any = any || !way.in_key || may_come(way, node.property[end]);
  }
  way.last = end;
  ++way.at;
  return any;
}

bool JsonAnswer::close(Way& way, std::size_t passed) const {
  const bool enough = passed >= top(way).least;
  --way.depth;
  return enough;
}

}  // namespace orthant
