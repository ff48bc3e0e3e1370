// Reads TOML into nodes that know where they were written. The only place that knows the TOML library.
//
// The text may be hostile: what is not TOML, or nests too deeply, becomes a diagnostic.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/diagnostics.h"
#include "core/config/sources.h"

namespace orthant {

struct Member;

struct Node {
  enum class Kind { boolean, integer, number, text, array, table, date };
  Kind kind = Kind::table;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Node> items;      // array
  std::vector<Member> members;  // table, in the order written
  std::string origin;
};

struct Member {
  std::string key;
  std::string origin;  // of the key; the value has its own
  Node value;
};

// "a string", "an integer", ...: for messages.
std::string kind_name(const Node& node);

// Reads text number `file` of `sources`, whose content is `text`. Nothing when it is no TOML (a diagnostic says so).
std::optional<Node> read_toml(Sources& sources, int file, std::string_view text, Diagnostics& diagnostics);

// Reads one `--set` override, which is line `line` of text number `file`: `a.b=c`, with c a TOML value. When c is none
// and does not start like a quoted string, an array or a table, it is taken as a string: `--set run.name=first-try`.
std::optional<Node> read_override(Sources& sources, int file, int line, const std::string& text,
                                  Diagnostics& diagnostics);

}  // namespace orthant
