#include "plugins/tokenizer/jinja/expressions.h"

#include <algorithm>

#include "plugins/tokenizer/jinja/functions.h"

namespace orthant::jinja {

Value Name::compute(Run& run) const {
  if (const Value* found = run.find(name_)) {
    return *found;
  }
  const std::optional<Value> function = function_named(name_);
  return function.has_value() ? *function : Value(Undefined{name_});
}

Value ListOf::compute(Run& run) const {
  List list{.items = {}, .row = tuple_ ? Row::tuple : Row::list};
  for (const ExpressionPtr& item : items_) {
    list.items.push_back(item->value(run));
  }
  run.make(list.items.size() * sizeof(Value));
  return Value(std::move(list));
}

Value DictOf::compute(Run& run) const {
  Dict dict;
  for (const auto& [key, item] : items_) {
    Value name = key->value(run);
    dict.set(std::move(name), item->value(run));
  }
  run.make(items_.size() * 4 * sizeof(Value));
  return Value(std::move(dict));
}

Value ItemOf::compute(Run& run) const {
  const Value of = of_->value(run);
  return item(run, of, key_->value(run));
}

Value SliceOf::compute(Run& run) const {
  const Value of = of_->value(run);
  const auto bound = [&](const ExpressionPtr& at) -> std::optional<std::int64_t> {
    const Value value = at != nullptr ? at->value(run) : Value();
    return value.none() ? std::nullopt : std::optional(integer_of(value, "the end of a slice"));
  };
  Slice cut;
  cut.begin = bound(begin_);
  cut.end = bound(end_);
  cut.step = bound(step_);
  return slice(run, of, cut);
}

Arguments ArgumentList::values(Run& run) const {
  Arguments made;
  for (const ExpressionPtr& argument : positional) {
    made.positional.push_back(argument->value(run));
  }
  for (const auto& [name, argument] : named) {
    made.named.emplace_back(name, argument->value(run));
  }
  return made;
}

Value CallOf::compute(Run& run) const {
  const Value function = function_->value(run);
  Arguments arguments = arguments_.values(run);
  return call(run, function, arguments);
}

Value Filtered::apply(Run& run, Value value) const {
  Arguments arguments = arguments_.values(run);
  return filter_(run, value, arguments);
}

Value Tested::compute(Run& run) const {
  const Value value = of_->value(run);
  Arguments arguments = arguments_.values(run);
  return Value(test_(run, value, arguments) != negated_);
}

Value Conditional::compute(Run& run) const {
  if (condition_->value(run).truth()) {
    return value_->value(run);
  }
  return otherwise_ != nullptr ? otherwise_->value(run) : Value(Undefined{"the inline if-expression without else"});
}

Value Logical::compute(Run& run) const {
  Value left = left_->value(run);
  return left.truth() == all_ ? right_->value(run) : left;
}

Value Compared::compute(Run& run) const {
  Value left = first_->value(run);
  bool holds = true;
  for (const auto& [comparison, expression] : rest_) {
    Value right = expression->value(run);
    switch (comparison) {
      case Comparison::equal: holds = equal(run, left, right); break;
      case Comparison::unequal: holds = !equal(run, left, right); break;
      case Comparison::less: holds = less(run, left, right); break;
      case Comparison::less_equal: holds = less(run, left, right) || equal(run, left, right); break;
      case Comparison::greater: holds = less(run, right, left); break;
      case Comparison::greater_equal: holds = less(run, right, left) || equal(run, left, right); break;
      case Comparison::in: holds = contains(run, right, left); break;
      case Comparison::not_in: holds = !contains(run, right, left); break;
    }
    if (!holds) {
      break;
    }
    left = std::move(right);
  }
  return Value(holds);
}

Value Computed::compute(Run& run) const {
  const Value left = left_->value(run);
  return arithmetic(run, op_, left, right_->value(run));
}

Value Negative::compute(Run& run) const {
  const Value value = of_->value(run), less = negative(value);
  return minus_ ? less : negative(less);
}

Value Joined::compute(Run& run) const {
  std::vector<Value> values;
  for (const ExpressionPtr& part : parts_) {
    values.push_back(part->value(run));
  }
  return joined(run, values);
}

}  // namespace orthant::jinja
