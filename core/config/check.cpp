#include "core/config/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/config/suggest.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;

// How a value looks in a message: `the string "64"`, `the number 1.5`, `an array`.
std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::boolean: return fmt::format("the boolean {}", node.boolean);
    case Node::Kind::integer: return fmt::format("the integer {}", node.integer);
    case Node::Kind::number: return fmt::format("the number {}", node.number);
    case Node::Kind::text: return "the string " + in_quotes(node.text, '"');
    default: return kind_name(node);
  }
}

std::string limit(double value) {
  return std::abs(value) < 9e15 && value == std::floor(value) ? fmt::format("{}", static_cast<std::int64_t>(value))
                                                              : fmt::format("{}", value);
}

class Checker {
 public:
  Checker(const KeySpec& spec, const std::string& name, Diagnostics& diagnostics)
      : spec_(spec), name_(name), diagnostics_(diagnostics) {}

  bool take(bool& to, const Node& node) {
    to = node.boolean;
    return node.kind == Node::Kind::boolean || wrong_type(node, "a boolean", hint_boolean(node));
  }
  bool take(std::int64_t& to, const Node& node) {
    to = node.integer;
    return node.kind == Node::Kind::integer ? in_range(static_cast<double>(to), node)
                                            : wrong_type(node, "an integer", hint_integer(node));
  }
  bool take(double& to, const Node& node) {
    to = node.kind == Node::Kind::integer ? static_cast<double>(node.integer) : node.number;
    if (node.kind != Node::Kind::integer && node.kind != Node::Kind::number) {
      return wrong_type(node, "a number", hint_number(node));
    }
    if (!std::isfinite(to)) {
      diagnostics_.add(node.origin, fmt::format("{}: {} is not a finite number", name_, to),
                       "write " + allowed_text(spec_));
      return false;
    }
    return in_range(to, node);
  }
  bool take(std::string& to, const Node& node) {
    if (spec_.bytes) {
      return take_bytes(to, node);
    }
    to = node.text;
    if (node.kind != Node::Kind::text) {
      const bool scalar = node.kind == Node::Kind::integer || node.kind == Node::Kind::boolean;
      const std::string text =
          node.kind == Node::Kind::integer ? fmt::format("{}", node.integer) : (node.boolean ? "true" : "false");
      return wrong_type(node, "a string", scalar && spec_.choices.empty() ? "write \"" + text + "\", with quotes" : "");
    }
    return chosen(node);
  }
  template <class T>
  bool take(std::vector<T>& to, const Node& node) {
    bool good = true;
    const auto one = [&](const Node& item) {
      T element{};
      good = take(element, item) && good;
      to.push_back(std::move(element));
    };
    if (node.kind == Node::Kind::array) {
      std::for_each(node.items.begin(), node.items.end(), one);
    } else {
      one(node);
    }
    return good;
  }

 private:
  bool wrong_type(const Node& node, const char* expected, const std::string& hint) {
    diagnostics_.add(node.origin, fmt::format("{}: expected {}, found {}", name_, expected, shown(node)),
                     hint.empty() ? "write " + allowed_text(spec_) : hint);
    return false;
  }

  bool in_range(double value, const Node& node) {
    const bool low = spec_.minimum && value < *spec_.minimum;
    const bool high = spec_.maximum && value > *spec_.maximum;
    if (low || high) {
      diagnostics_.add(
          node.origin,
          fmt::format(
              "{}: {} is {} {}", name_,
              node.kind == Node::Kind::integer ? fmt::format("{}", node.integer) : fmt::format("{}", node.number),
              low ? "below the minimum" : "above the maximum", limit(low ? *spec_.minimum : *spec_.maximum)),
          "write " + allowed_text(spec_));
    }
    return !low && !high;
  }

  bool take_bytes(std::string& to, const Node& node) {
    to = node.kind == Node::Kind::integer ? fmt::format("{}", node.integer) : node.text;
    const bool written = node.kind == Node::Kind::integer || node.kind == Node::Kind::text;
    if (!written || (!to.empty() && !parse_bytes(to))) {
      diagnostics_.add(node.origin, fmt::format("{}: {} is no number of bytes", name_, shown(node)),
                       "write " + allowed_text(spec_));
      return false;
    }
    return true;
  }

  bool chosen(const Node& node) {
    const auto& choices = spec_.choices;
    if (choices.empty() || std::find(choices.begin(), choices.end(), node.text) != choices.end()) {
      return true;
    }
    const auto near = nearest(node.text, choices);
    diagnostics_.add(node.origin, fmt::format("{}: unknown choice {}", name_, in_quotes(node.text, '"')),
                     near ? fmt::format("did you mean \"{}\"? It is {}", *near, allowed_text(spec_))
                          : "write " + allowed_text(spec_));
    return false;
  }

  static std::string hint_boolean(const Node& node) {
    return node.kind == Node::Kind::text && (node.text == "true" || node.text == "false")
               ? fmt::format("write {}, without quotes", node.text)
               : "write true or false";
  }
  static std::string hint_integer(const Node& node) {
    if (node.kind == Node::Kind::number && std::abs(node.number) < 9e15 && node.number == std::floor(node.number)) {
      return fmt::format("write {}, without a point or exponent", static_cast<std::int64_t>(node.number));
    }
    return hint_number(node);
  }
  static std::string hint_number(const Node& node) {
    double value = 0;
    const char* end = node.text.data() + node.text.size();
    const auto parsed = std::from_chars(node.text.data(), end, value);
    return node.kind == Node::Kind::text && !node.text.empty() && parsed.ec == std::errc() && parsed.ptr == end
               ? fmt::format("write {}, without quotes", node.text)
               : "";
  }

  const KeySpec& spec_;
  const std::string& name_;
  Diagnostics& diagnostics_;
};

}  // namespace

std::string allowed_text(const KeySpec& spec) {
  if (spec.bytes) {
    return "a number of bytes such as \"20 GiB\", \"512 MiB\", \"1.5 GB\" or 4096, or \"\"";
  }
  if (!spec.choices.empty()) {
    if (spec.choices.size() == 1) {
      return "\"" + spec.choices.front() + "\"";
    }
    return fmt::format("one of \"{}\"", fmt::join(spec.choices, "\", \""));
  }
  static constexpr const char* articles[] = {"a", "an", "a", "a", "a", "a", "a"};
  std::string text = fmt::format("{} {}", articles[spec.default_value.index()], type_name(spec.default_value));
  if (spec.minimum && spec.maximum) {
    text += fmt::format(" from {} to {}", limit(*spec.minimum), limit(*spec.maximum));
  } else if (spec.minimum) {
    text += fmt::format(" of at least {}", limit(*spec.minimum));
  } else if (spec.maximum) {
    text += fmt::format(" of at most {}", limit(*spec.maximum));
  }
  return text;
}

std::optional<Value> check_value(const KeySpec& spec, const std::string& name, const Node& node,
                                 Diagnostics& diagnostics) {
  Checker checker(spec, name, diagnostics);
  return std::visit(
      [&](const auto& alternative) -> std::optional<Value> {
        using T = std::decay_t<decltype(alternative)>;
        T value{};
        if (!checker.take(value, node)) {
          return std::nullopt;
        }
        if constexpr (is_list<T>) {
          if (spec.length > 0 && value.size() != spec.length) {
            diagnostics.add(node.origin,
                            fmt::format("{}: expected {} values, found {}", name, spec.length, value.size()),
                            fmt::format("write {} values, as in {}", spec.length, toml_text(spec.default_value)));
            return std::nullopt;
          }
        }
        return Value(std::move(value));
      },
      spec.default_value);
}

bool make_absolute(Value& value, const std::filesystem::path& directory) {
  const auto one = [&](std::string& path, bool may_be_empty) {
    const bool good = path.size() <= 4096 && path.find('\0') == std::string::npos && (may_be_empty || !path.empty());
    path = good && !path.empty() ? (directory / path).lexically_normal().string() : path;
    return good;
  };
  if (auto* path = std::get_if<std::string>(&value)) {
    return one(*path, true);
  }
  auto& paths = std::get<std::vector<std::string>>(value);
  return std::all_of(paths.begin(), paths.end(), [&](std::string& path) { return one(path, false); });
}

std::optional<Value> written_value(const std::string& name, const Node& node, Diagnostics& diagnostics) {
  KeySpec spec{"", false, ""};
  const Node::Kind kind = node.kind != Node::Kind::array ? node.kind
                          : node.items.empty()           ? Node::Kind::text
                                                         : node.items.front().kind;
  switch (kind) {
    case Node::Kind::integer: spec.default_value = std::int64_t{0}; break;
    case Node::Kind::number: spec.default_value = 0.0; break;
    case Node::Kind::text: spec.default_value = std::string(); break;
    default: break;
  }
  if (node.kind == Node::Kind::array) {
    switch (kind) {
      case Node::Kind::integer: spec.default_value = std::vector<std::int64_t>(); break;
      case Node::Kind::number: spec.default_value = std::vector<double>(); break;
      default: spec.default_value = std::vector<std::string>();
    }
  }
  return check_value(spec, name, node, diagnostics);
}

}  // namespace orthant
