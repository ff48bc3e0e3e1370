#include "core/config/toml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// Some of the library's assertions do not hold for text that is no TOML ("[ = 1]"), which it refuses in the next lines.
// With NDEBUG it would have compilers assume them instead, so that is hidden from it.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expression) static_cast<void>(0)
#define TOML_EXCEPTIONS 0
#define TOML_MAX_NESTED_VALUES 32
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace orthant {
namespace {

constexpr int deepest_key = 16;  // parts of one dotted key; bounds the recursion of the library and of ours

// Maps places in a parsed text to places in a source (an override is parsed alone, but is line n of "--set").
struct Locator {
  Sources& sources;
  int file;
  int first_line;

  std::string operator()(const toml::source_region& region) const {
    const int line = static_cast<int>(region.begin.line);
    const int column = static_cast<int>(region.begin.column);
    int length = region.end.line == region.begin.line ? static_cast<int>(region.end.column) - column : 1 << 20;
    return sources.origin({file, std::max(line, 1) + first_line - 1, std::max(column, 1), std::max(length, 1)});
  }
};

Node convert(const toml::node& from, const Locator& where) {
  Node node;
  node.origin = where(from.source());
  if (const auto* table = from.as_table()) {
    std::vector<std::pair<toml::source_position, Member>> members;
    for (const auto& [key, value] : *table) {
      members.push_back({key.source().begin, {std::string(key.str()), where(key.source()), convert(value, where)}});
    }
    std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& member : members) {
      node.members.push_back(std::move(member.second));
    }
  } else if (const auto* array = from.as_array()) {
    node.kind = Node::Kind::array;
    for (const toml::node& item : *array) {
      node.items.push_back(convert(item, where));
    }
  } else if (const auto* boolean = from.as_boolean()) {
    node.kind = Node::Kind::boolean;
    node.boolean = boolean->get();
  } else if (const auto* integer = from.as_integer()) {
    node.kind = Node::Kind::integer;
    node.integer = integer->get();
  } else if (const auto* number = from.as_floating_point()) {
    node.kind = Node::Kind::number;
    node.number = number->get();
  } else if (const auto* text = from.as_string()) {
    node.kind = Node::Kind::text;
    node.text = text->get();
  } else {
    node.kind = Node::Kind::date;
  }
  return node;
}

// Why a text is no TOML.
struct Problem {
  std::string origin;
  std::string message;
  std::string advice;
};

// What the library must not be given. A dotted key with more than deepest_key parts: it inserts and frees such a key
// recursively and has no limit of its own. A character outside of ASCII that is in no string and no comment: no TOML,
// and for some the library relies on what is not so. Strings and comments are skipped as TOML reads them.
std::optional<Problem> dangerous(std::string_view text, const Locator& where) {
  const auto problem = [&](int line, int column, std::string message, std::string advice) {
    return Problem{where.sources.origin({where.file, line + where.first_line - 1, std::max(column, 1), 1}),
                   std::move(message), std::move(advice)};
  };
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.remove_prefix(3);  // a byte order mark
  }
  int line = 1;
  int column = 1;
  int parts = 1;
  for (std::size_t i = 0; i < text.size(); ++i, ++column) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      column = 0;
      parts = 1;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') {
        ++i;
      }
    } else if (c == '"' || c == '\'') {
      const bool triple = text.substr(i, 3) == std::string(3, c);
      const std::string end(triple ? 3 : 1, c);
      for (i += end.size(); i < text.size() && text.substr(i, end.size()) != end; ++i) {
        if (text[i] == '\n') {
          if (!triple) {
            break;
          }
          ++line;
        }
        i += c == '"' && text[i] == '\\' ? 1 : 0;
      }
      if (i < text.size() && text[i] == '\n') {
        ++line;
        column = 0;
        parts = 1;
      } else {
        i += end.size() - 1;
        for (int more = 0; triple && more < 2 && i + 1 < text.size() && text[i + 1] == c; ++more) {
          ++i;  // """text""""" ends with two quotes of the text
        }
      }
    } else if (c == '.') {
      if (++parts > deepest_key) {
        return problem(line, column, fmt::format("a dotted key of more than {} parts", deepest_key),
                       "write table.key, or plugins.NAME.key");
      }
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return problem(line, column, "not valid TOML: a character outside of ASCII, in no string and no comment",
                     "put it in quotes");
    } else if (c == '=' || c == ',' || c == '{' || c == '[' || c == ']') {
      parts = 1;
    }
  }
  return std::nullopt;
}

// What to write instead, from the library's words; general where they are not known.
std::string advice_for(std::string_view description) {
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"redefine", "keep one of the two"},
      {"64 bits", "write an integer from -9223372036854775808 to 9223372036854775807"},
      {"utf-8", "save the file as UTF-8"},
      {"nested", "nest less deeply"},
      {"expected '='", "write key = value"},
      {"table header", "write a header as [name], alone on its line"},
      {"parsing string", "close the string with the quote it began with; write a quote within as \\\""},
      {"parsing boolean", "write true or false, or a string in quotes"},
      {"parsing array", "write an array as [1, 2]"},
      {"value", "write a number, true, false, \"a string\" in quotes or [an, array]"},
  };
  for (const auto& [words, advice] : known) {
    if (description.find(words) != std::string_view::npos) {
      return std::string(advice);
    }
  }
  return "correct the syntax (https://toml.io)";
}

// Parses, or says why not.
std::optional<Node> parse(std::string_view text, const Locator& where, Problem& problem) {
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const std::string_view before = text.substr(0, nul);
    const std::size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    const auto line = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
    const int column = static_cast<int>(nul - start) + 1;
    problem = {where.sources.origin({where.file, line + where.first_line, column, 1}), "a NUL byte is no TOML",
               "save the file as plain text in UTF-8"};
    return std::nullopt;
  }
  if (auto found = dangerous(text, where)) {
    problem = std::move(*found);
    return std::nullopt;
  }
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    const std::string_view description = result.error().description();
    problem = {where(result.error().source()), fmt::format("not valid TOML: {}", description), advice_for(description)};
    return std::nullopt;
  }
  return convert(result.table(), where);
}

}  // namespace

std::string kind_name(const Node& node) {
  switch (node.kind) {
    case Node::Kind::boolean: return "a boolean";
    case Node::Kind::integer: return "an integer";
    case Node::Kind::number: return "a number";
    case Node::Kind::text: return "a string";
    case Node::Kind::array: return "an array";
    case Node::Kind::table: return "a table";
    case Node::Kind::date: break;
  }
  return "a date or time";
}

std::optional<Node> read_toml(Sources& sources, int file, std::string_view text, Diagnostics& diagnostics) {
  Problem problem;
  auto node = parse(text, {sources, file, 1}, problem);
  if (!node) {
    diagnostics.add(problem.origin, problem.message, problem.advice);
  }
  return node;
}

std::optional<Node> read_override(Sources& sources, int file, int line, const std::string& text,
                                  Diagnostics& diagnostics) {
  const Locator where{sources, file, line};
  const std::string whole = sources.origin({file, line, 1, 1 << 20});
  const std::size_t equals = text.find('=');
  const char* const form = "write --set table.key=value, with a TOML value";
  if (equals == std::string::npos || text.find_first_not_of(" \t") == equals) {
    diagnostics.add(whole, "an override without 'key=value'", form);
    return std::nullopt;
  }
  if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 && c != '\t'; })) {
    diagnostics.add(whole, "an override holds a control character", form);
    return std::nullopt;
  }
  Problem problem;
  if (auto node = parse(text, where, problem)) {
    return node;
  }
  const std::size_t begin = text.find_first_not_of(" \t", equals + 1);
  if (begin == std::string::npos) {
    diagnostics.add(whole, "an override without a value", form);
    return std::nullopt;
  }
  const std::size_t end = text.find_last_not_of(" \t");
  if (std::string_view("\"'[{").find(text[begin]) == std::string_view::npos) {
    Problem ignored;
    if (auto node = parse(text.substr(0, equals + 1) + "0", where, ignored)) {
      Node* leaf = &*node;
      while (leaf->kind == Node::Kind::table && !leaf->members.empty()) {
        leaf = &leaf->members.front().value;
      }
      leaf->kind = Node::Kind::text;
      leaf->text = text.substr(begin, end - begin + 1);
      leaf->origin = sources.origin({file, line, static_cast<int>(begin) + 1, static_cast<int>(end - begin) + 1});
      return node;
    }
  }
  diagnostics.add(problem.origin, problem.message, problem.advice);
  return std::nullopt;
}

}  // namespace orthant
