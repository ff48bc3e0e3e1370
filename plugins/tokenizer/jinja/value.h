// Value: what a template computes with, by Python's rules: none, booleans, numbers, texts, lists, dictionaries.
//
// Lists and dictionaries never change once they are made, so that values are copied by reference and form no circles. A
// Namespace is the one thing that changes; it holds no other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace orthant::jinja {

class Value;
class Run;
struct List;
class Dict;
struct Arguments;

struct Undefined {
  std::string name;  // what is undefined, for messages
};
struct None {};
struct Text {
  std::shared_ptr<const std::string> text;  // UTF-8
  bool safe = false;                        // the filter `safe` has seen it: beside it others are escaped
};
// A macro, a method with its object, or a function of the environment.
struct Callable {
  std::string name;
  int depth = 0;  // of the value whose method it is
  std::function<Value(Run&, Arguments&)> call;
};
// By name; `loop` is one too, whose fields a template cannot set.
struct Namespace {
  bool loop = false;
  std::map<std::string, Value, std::less<>> fields;
};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(std::int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string text, bool safe = false)
      : data_(Text{std::make_shared<const std::string>(std::move(text)), safe}) {}
  explicit Value(const char* text) : Value(std::string(text)) {}
  // Errors: TemplateError for values that are nested too deeply, and for a namespace or loop in them.
  explicit Value(List list);
  explicit Value(Dict dict);
  explicit Value(Callable callable) : data_(std::make_shared<const Callable>(std::move(callable))) {}
  explicit Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}

  bool undefined() const { return is<Undefined>(); }
  bool none() const { return is<None>(); }
  bool boolean() const { return is<bool>(); }
  bool integer() const { return is<std::int64_t>(); }
  bool floating() const { return is<double>(); }
  bool number() const { return integer() || floating() || boolean(); }
  bool text() const { return is<Text>(); }
  bool safe() const { return text() && std::get<Text>(data_).safe; }

  const std::string& name() const { return std::get<Undefined>(data_).name; }
  std::int64_t as_integer() const { return boolean() ? std::get<bool>(data_) : std::get<std::int64_t>(data_); }
  double as_double() const { return floating() ? std::get<double>(data_) : static_cast<double>(as_integer()); }
  const std::string& as_text() const { return *std::get<Text>(data_).text; }
  // Null: it is something else.
  const List* list() const;
  const Dict* dict() const;
  const Callable* callable() const;
  Namespace* space() const;

  bool truth() const;
  int depth() const;             // of lists and dictionaries in each other
  const char* type() const;      // as Python names it: "str", "NoneType"
  const void* identity() const;  // of a list, dictionary, namespace or function; null: none

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<const Callable>, std::shared_ptr<Namespace>>
      data_;
};

// What Python makes of a row of values, which says what else can be done with it: a range and a view of a dictionary
// are no lists, and a generator (of map, select, ...) has no length and is true without an item.
enum class Row : char { list, tuple, range, view, generator };

struct List {
  std::vector<Value> items;
  Row row = Row::list;
  int depth = 0;  // as Value::depth; it is found where a Value is made of this
};

// In the order in which keys were set. Keys are texts, numbers, booleans and none: 1, 1.0 and true are one key.
class Dict {
 public:
  using Item = std::pair<Value, Value>;
  // Errors: TemplateError for a key of another type; those of Value(List).
  void set(Value key, Value value);
  const Value* find(const Value& key) const;  // null: it has none
  const Value* find(std::string_view key) const;
  const std::vector<Item>& items() const { return items_; }
  int depth() const { return depth_; }

 private:
  std::optional<std::size_t> place(const std::string& name) const;
  std::vector<Item> items_;
  std::unordered_map<std::string, std::size_t> places_;  // by a name for each key; empty: few enough to be searched
  int depth_ = 1;
};

// What may stand in a list, dictionary or namespace. Errors: TemplateError.
void check_item(const Value& value);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

}  // namespace orthant::jinja
