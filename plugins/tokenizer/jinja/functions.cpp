#include "plugins/tokenizer/jinja/functions.h"

#include <algorithm>
#include <ctime>

#include "plugins/tokenizer/jinja/operations.h"
#include "plugins/tokenizer/jinja/value_text.h"

namespace orthant::jinja {
namespace {

constexpr std::int64_t longest_range = 100'000;  // as Jinja's sandbox

Value range(Run& run, Arguments& arguments) {
  const std::vector<Value>& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) {
    refuse("range takes one to three whole numbers");
  }
  const auto at = [&](std::size_t i) { return integer_of(given[i], "an argument of range"); };
  const std::int64_t begin = given.size() > 1 ? at(0) : 0, end = at(given.size() > 1 ? 1 : 0);
  const std::int64_t step = given.size() > 2 ? at(2) : 1;
  if (step == 0) {
    refuse("range with a step of 0");
  }
  const double count = (static_cast<double>(end) - static_cast<double>(begin)) / static_cast<double>(step);
  if (count > static_cast<double>(longest_range)) {
    refuse("range of more than {} numbers", longest_range);
  }
  List list{.items = {}, .row = Row::range};
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    list.items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  run.make(list.items.size() * sizeof(Value));
  return Value(std::move(list));
}

// dict(a=1), dict({"a": 1}, b=2)
Dict dict_of(Run& run, Arguments& arguments, const char* function) {
  Dict made;
  if (arguments.positional.size() > 1) {
    refuse("{} takes one dictionary, and names with values", function);
  }
  for (const Value& value : arguments.positional) {
    if (value.dict() == nullptr) {
      refuse("{} of a {}: expected a dictionary", function, value.type());
    }
    made = *value.dict();
  }
  for (auto& [name, value] : arguments.named) {
    made.set(Value(name), value);
  }
  run.make(made.items().size() * 4 * sizeof(Value));
  return made;
}

Value make_dict(Run& run, Arguments& arguments) {
  return Value(dict_of(run, arguments, "dict"));
}

Value make_namespace(Run& run, Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  const Dict fields = dict_of(run, arguments, "namespace");
  for (const auto& [name, value] : fields.items()) {
    space->fields.insert_or_assign(text_of(name, "a name in a namespace"), value);
  }
  return Value(std::move(space));
}

Value raise_exception(Run& run, Arguments& arguments) {
  const auto given = taken("raise_exception", arguments, {"message"});
  if (!given[0].has_value()) {
    refuse("raise_exception takes a message");
  }
  throw TemplateError(to_text(run, *given[0]), 0, true);
}

Value strftime_now(Run& run, Arguments& arguments) {
  const auto given = taken("strftime_now", arguments, {"format"});
  const std::string format = text_of(given[0].value_or(Value(Undefined{"format"})), "strftime_now's format");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  if (format.size() > 1000) {
    refuse("strftime_now with a format of {} bytes", format.size());
  }
  // A mark behind the text tells an empty one from one that found no room.
  std::string made(64 * format.size() + 64, '\0');
  made.resize(std::strftime(made.data(), made.size(), (format + ".").c_str(), &local));
  made.resize(made.empty() ? 0 : made.size() - 1);
  run.make(made.size());
  return Value(std::move(made));
}

}  // namespace

std::optional<Value> function_named(const std::string& name) {
  using Function = Value (*)(Run&, Arguments&);
  constexpr std::pair<const char*, Function> functions[] = {{"range", range},
                                                            {"dict", make_dict},
                                                            {"namespace", make_namespace},
                                                            {"raise_exception", raise_exception},
                                                            {"strftime_now", strftime_now}};
  for (const auto& [known, function] : functions) {
    if (name == known) {
      return Value(Callable{.name = name, .call = function});
    }
  }
  return std::nullopt;
}

std::vector<std::optional<Value>> taken(const std::string& function, const Arguments& arguments,
                                        std::initializer_list<const char*> names) {
  std::vector<std::optional<Value>> made(names.size());
  if (arguments.positional.size() > names.size()) {
    refuse("{} is given {} values: it takes {}", function, arguments.positional.size(), names.size());
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), made.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      refuse("{} is given '{}', which is not known here", function, name);
    }
    std::optional<Value>& place = made[static_cast<std::size_t>(found - names.begin())];
    if (place.has_value()) {
      refuse("{} is given '{}' twice", function, name);
    }
    place = value;
  }
  return made;
}

}  // namespace orthant::jinja
