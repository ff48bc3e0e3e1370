#include "plugins/tokenizer/jinja/statements.h"

#include <optional>

#include "plugins/tokenizer/jinja/functions.h"
#include "plugins/tokenizer/jinja/value_text.h"

namespace orthant::jinja {
namespace {

// `loop` of turn i.
Value loop_of(const std::vector<Value>& items, std::size_t i, std::int64_t depth,
              const std::shared_ptr<std::optional<Value>>& changed) {
  auto loop = std::make_shared<Namespace>();
  loop->loop = true;
  const auto index = static_cast<std::int64_t>(i), count = static_cast<std::int64_t>(items.size());
  const auto put = [&](const char* name, Value value) { loop->fields.insert_or_assign(name, std::move(value)); };
  put("index0", Value(index));
  put("index", Value(index + 1));
  put("revindex0", Value(count - index - 1));
  put("revindex", Value(count - index));
  put("first", Value(i == 0));
  put("last", Value(i + 1 == items.size()));
  put("length", Value(count));
  put("depth", Value(depth));
  put("depth0", Value(depth - 1));
  put("previtem", i > 0 ? items[i - 1] : Value(Undefined{"there is no previous item"}));
  put("nextitem", i + 1 < items.size() ? items[i + 1] : Value(Undefined{"there is no next item"}));
  put("cycle", Value(Callable{.name = "cycle", .call = [i](Run&, Arguments& arguments) {
                                const auto& given = arguments.positional;
                                if (given.empty()) {
                                  refuse("loop.cycle of nothing");
                                }
                                return given[i % given.size()];
                              }}));
  put("changed", Value(Callable{.name = "changed", .call = [changed](Run& run, Arguments& arguments) {
                                  Value now(List{.items = arguments.positional, .row = Row::tuple});
                                  const bool differs = !changed->has_value() || !equal(run, **changed, now);
                                  *changed = std::move(now);
                                  return Value(differs);
                                }}));
  return Value(std::move(loop));
}

// Turns a macro into a function that keeps the variables around it.
Value function_of(Run& run, const std::shared_ptr<const MacroBody>& macro) {
  run.keep(run.scope());
  const auto call = [macro, around = run.scope()](Run& in, Arguments& arguments) {
    const Run::Inner scope(in, around);
    const std::size_t count = macro->parameters.size();
    if (arguments.positional.size() > count) {
      refuse("macro '{}' takes {} values, and is given {}", macro->name, count, arguments.positional.size());
    }
    std::vector<bool> given(count);
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
      in.set(macro->parameters[i].first, arguments.positional[i]);
      given[i] = true;
    }
    for (auto& [name, value] : arguments.named) {
      std::size_t at = 0;
      while (at < count && macro->parameters[at].first != name) {
        ++at;
      }
      if (at == count) {
        refuse("macro '{}' is given '{}', which is none of its parameters", macro->name, name);
      }
      if (given[at]) {
        refuse("macro '{}' is given '{}' twice", macro->name, name);
      }
      in.set(name, value);
      given[at] = true;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto& [name, otherwise] = macro->parameters[i];
      if (!given[i]) {
        in.set(name, otherwise != nullptr ? otherwise->value(in) : Value(Undefined{name}));
      }
    }
    return Value(text_of_body(in, macro->body));
  };
  return Value(Callable{.name = macro->name, .call = call});
}

}  // namespace

Flow Statement::run(Run& run) const {
  try {
    const Run::Deeper deeper(run);
    run.spend();
    return act(run);
  } catch (const TemplateError& error) {
    if (error.line() > 0) {
      throw;
    }
    throw TemplateError(error.what(), line_, error.raised());
  }
}

Flow run_all(Run& run, const Body& body) {
  for (const auto& statement : body) {
    if (const Flow flow = statement->run(run); flow != Flow::on) {
      return flow;
    }
  }
  return Flow::on;
}

std::string text_of_body(Run& run, const Body& body) {
  std::string text;
  const Run::Capture capture(run, text);
  run_all(run, body);
  return text;
}

void Target::assign(Run& run, const Value& value) const {
  if (parts.empty()) {
    if (field.empty()) {
      run.set(name, value);
      return;
    }
    const Value* space = run.find(name);
    if (space == nullptr || space->space() == nullptr || space->space()->loop) {
      refuse("'{}.{}' cannot be set: '{}' is no namespace", name, field, name);
    }
    check_item(value);
    run.make(sizeof(Value) + field.size());
    space->space()->fields.insert_or_assign(field, value);
    return;
  }
  if (value.undefined()) {
    refuse("'{}' is undefined, and {} names want its items", value.name(), parts.size());
  }
  const std::vector<Value> items = items_of(run, value);
  if (items.size() != parts.size()) {
    refuse("{} names for {} items", parts.size(), items.size());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].assign(run, items[i]);
  }
}

Flow Data::act(Run& run) const {
  run.write(text_);
  return Flow::on;
}

Flow Print::act(Run& run) const {
  run.write(to_text(run, value_->value(run)));
  return Flow::on;
}

Flow If::act(Run& run) const {
  for (const auto& [condition, body] : branches_) {
    if (condition == nullptr || condition->value(run).truth()) {
      return run_all(run, body);
    }
  }
  return Flow::on;
}

Flow For::act(Run& run) const {
  const Value over = over_->value(run);
  std::vector<Value> items = items_of(run, over);
  if (filter_ != nullptr) {
    std::vector<Value> kept;
    for (const Value& one : items) {
      const Run::Inner scope(run, run.scope());
      target_.assign(run, one);
      if (filter_->value(run).truth()) {
        kept.push_back(one);
      }
    }
    items = std::move(kept);
  }
  const auto changed = std::make_shared<std::optional<Value>>();
  for (std::size_t i = 0; i < items.size(); ++i) {
    run.spend(16);
    const Run::Inner scope(run, run.scope());
    run.set("loop", loop_of(items, i, 1, changed));
    target_.assign(run, items[i]);
    if (run_all(run, body_) == Flow::over) {
      break;
    }
  }
  if (items.empty()) {
    const Run::Inner scope(run, run.scope());
    return run_all(run, otherwise_);
  }
  return Flow::on;
}

Flow Set::act(Run& run) const {
  target_.assign(run, value_->value(run));
  return Flow::on;
}

Flow Block::act(Run& run) const {
  Value text;
  {
    const Run::Inner scope(run, run.scope());
    text = Value(text_of_body(run, body_));
  }
  for (const auto& filter : filters_) {
    text = filter->apply(run, text);
  }
  target_.assign(run, text);
  return Flow::on;
}

Flow Macro::act(Run& run) const {
  run.set(macro_->name, function_of(run, macro_));
  return Flow::on;
}

Flow Generation::act(Run& run) const {
  if (!run.at_top()) {
    refuse("'generation' within a macro or a block that is set is not done here");
  }
  const std::size_t begin = run.out().size();
  const Run::Inner scope(run, run.scope());
  const Flow flow = run_all(run, body_);
  run.generated().emplace_back(begin, run.out().size());
  return flow;
}

}  // namespace orthant::jinja
