// JsonAnswer: an answer that is a JSON object, as its request asks for it: what may follow, and when it is whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/lm/json_schema.h"
#include "apps/lm/json_text.h"

namespace orthant {

// Properties come in the schema's order. Where it leaves a choice, all ways are gone at once until one is left.
// Copied for bytes that are tried. Thread safety: none.
class JsonAnswer {
 public:
  // schema: null for any object; else it outlives this.
  explicit JsonAnswer(const JsonSchema* schema = nullptr);

  // False: nothing that was asked for goes on like this; nothing may be added any more.
  bool add(char byte);
  bool add(std::string_view bytes);
  bool whole() const { return text_.whole(); }

 private:
  using Id = JsonSchema::Id;
  struct Level {
    Id node = 0;
    std::uint32_t next = 0;  // the property that may come, or the number of items so far
    bool operator==(const Level&) const = default;
  };
  // One way to read what is there.
  struct Way {
    std::array<Level, JsonText::most_levels + 1> levels;  // from 1 on
    int depth = 0;
    bool in_key = false, in_scalar = false;
    Id leaf = 0;                                // of the scalar
    std::uint32_t first = 0, last = 0, at = 0;  // of texts: those that begin with what was written, and its bytes
    bool operator==(const Way& other) const;
  };

  const JsonSchema::Node& top(const Way& way) const { return schema_->node(way.levels[way.depth].node); }
  void step(Way way, char c, JsonPart part);
  void begin_value(const Way& way, char c, JsonPart part);
  bool go_on(Way& way, char c) const;
  bool may_come(const Way& way, std::size_t property) const;
  bool narrow(Way& way, const JsonSchema::Node& node, char c) const;
  bool close(Way& way, std::size_t passed) const;

  const JsonSchema* schema_;
  JsonText text_;
  std::vector<Way> ways_, next_;  // next_: of step
};

}  // namespace orthant
