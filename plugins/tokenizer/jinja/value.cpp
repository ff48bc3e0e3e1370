#include "plugins/tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "plugins/tokenizer/jinja/template_error.h"

namespace orthant::jinja {
namespace {

// Values are compared, written and destroyed by recursion.
constexpr int deepest_value = 64;

// Nothing: it cannot be a key.
std::optional<std::string> key_name(const Value& key) {
  if (key.text()) {
    return "s" + key.as_text();
  }
  if (key.none()) {
    return "n";
  }
  if (key.integer() || key.boolean()) {
    return fmt::format("i{}", key.as_integer());
  }
  if (key.floating()) {
    const double number = key.as_double();
    const bool whole = std::abs(number) < 0x1p62 && number == std::floor(number);
    return whole ? fmt::format("i{}", static_cast<std::int64_t>(number)) : fmt::format("f{}", number);
  }
  return std::nullopt;
}

}  // namespace

void check_item(const Value& value) {
  if (value.space() != nullptr) {
    throw TemplateError("a namespace, or 'loop', in a list, dictionary or namespace is not done here");
  }
  if (value.depth() >= deepest_value) {
    throw TemplateError(fmt::format("lists and dictionaries lie more than {} deep in each other", deepest_value));
  }
}

Value::Value(List list) {
  list.depth = 1;
  for (const Value& item : list.items) {
    check_item(item);
    list.depth = std::max(list.depth, item.depth() + 1);
  }
  data_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}

const List* Value::list() const {
  const auto* found = std::get_if<std::shared_ptr<const List>>(&data_);
  return found != nullptr ? found->get() : nullptr;
}

const Dict* Value::dict() const {
  const auto* found = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return found != nullptr ? found->get() : nullptr;
}

const Callable* Value::callable() const {
  const auto* found = std::get_if<std::shared_ptr<const Callable>>(&data_);
  return found != nullptr ? found->get() : nullptr;
}

Namespace* Value::space() const {
  const auto* found = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return found != nullptr ? found->get() : nullptr;
}

bool Value::truth() const {
  if (undefined() || none()) {
    return false;
  }
  if (number()) {
    return floating() ? as_double() != 0 : as_integer() != 0;
  }
  if (text()) {
    return !as_text().empty();
  }
  return list() != nullptr ? !list()->items.empty() || list()->row == Row::generator
                           : dict() == nullptr || !dict()->items().empty();
}

int Value::depth() const {
  return list() != nullptr       ? list()->depth
         : dict() != nullptr     ? dict()->depth()
         : callable() != nullptr ? callable()->depth
                                 : 0;
}

const char* Value::type() const {
  if (list() != nullptr) {
    constexpr const char* names[] = {"list", "tuple", "range", "view of a dictionary", "generator"};
    return names[static_cast<int>(list()->row)];
  }
  if (callable() != nullptr) {
    return "function";
  }
  return undefined()         ? "Undefined"
         : none()            ? "NoneType"
         : boolean()         ? "bool"
         : integer()         ? "int"
         : floating()        ? "float"
         : text()            ? "str"
         : dict() != nullptr ? "dict"
                             : "Namespace";
}

const void* Value::identity() const {
  if (list() != nullptr) {
    return list();
  }
  if (dict() != nullptr) {
    return dict();
  }
  return callable() != nullptr ? static_cast<const void*>(callable()) : space();
}

// A dictionary of a few keys is searched: most have a few.
std::optional<std::size_t> Dict::place(const std::string& name) const {
  if (!places_.empty()) {
    const auto found = places_.find(name);
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (key_name(items_[i].first) == name) {
      return i;
    }
  }
  return std::nullopt;
}

void Dict::set(Value key, Value value) {
  constexpr std::size_t few = 8;
  const std::optional<std::string> name = key_name(key);
  if (!name.has_value()) {
    throw TemplateError(fmt::format("a {} as the key of a dictionary is not done here", key.type()));
  }
  check_item(value);
  depth_ = std::max(depth_, value.depth() + 1);
  if (const auto found = place(*name)) {
    items_[*found].second = std::move(value);
    return;
  }
  items_.emplace_back(std::move(key), std::move(value));
  if (items_.size() == few) {
    for (std::size_t i = 0; i < few; ++i) {
      places_.emplace(*key_name(items_[i].first), i);
    }
  } else if (items_.size() > few) {
    places_.emplace(*name, items_.size() - 1);
  }
}

const Value* Dict::find(const Value& key) const {
  const std::optional<std::string> name = key_name(key);
  const auto found = name.has_value() ? place(*name) : std::nullopt;
  return found.has_value() ? &items_[*found].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (places_.empty()) {
    for (const Item& item : items_) {
      if (item.first.text() && item.first.as_text() == key) {
        return &item.second;
      }
    }
    return nullptr;
  }
  const auto found = places_.find("s" + std::string(key));
  return found == places_.end() ? nullptr : &items_[found->second].second;
}

}  // namespace orthant::jinja
