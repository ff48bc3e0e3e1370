// The kinds of expressions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plugins/tokenizer/jinja/filters.h"
#include "plugins/tokenizer/jinja/node.h"

namespace orthant::jinja {

class Constant final : public Expression {
 public:
  explicit Constant(Value value) : value_(std::move(value)) {}

 private:
  Value compute(Run&) const override { return value_; }
  Value value_;
};

class Name final : public Expression {
 public:
  explicit Name(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

 private:
  Value compute(Run& run) const override;
  std::string name_;
};

class ListOf final : public Expression {
 public:
  ListOf(std::vector<ExpressionPtr> items, bool tuple) : items_(std::move(items)), tuple_(tuple) {}

 private:
  Value compute(Run& run) const override;
  std::vector<ExpressionPtr> items_;
  bool tuple_;
};

class DictOf final : public Expression {
 public:
  explicit DictOf(std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items) : items_(std::move(items)) {}

 private:
  Value compute(Run& run) const override;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items_;
};

class AttributeOf final : public Expression {
 public:
  AttributeOf(ExpressionPtr of, std::string name) : of_(std::move(of)), name_(std::move(name)) {}

 private:
  Value compute(Run& run) const override { return attribute(run, of_->value(run), name_); }
  ExpressionPtr of_;
  std::string name_;
};

class ItemOf final : public Expression {
 public:
  ItemOf(ExpressionPtr of, ExpressionPtr key) : of_(std::move(of)), key_(std::move(key)) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr of_, key_;
};

class SliceOf final : public Expression {
 public:
  // Null: not given.
  SliceOf(ExpressionPtr of, ExpressionPtr begin, ExpressionPtr end, ExpressionPtr step)
      : of_(std::move(of)), begin_(std::move(begin)), end_(std::move(end)), step_(std::move(step)) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr of_, begin_, end_, step_;
};

class CallOf final : public Expression {
 public:
  CallOf(ExpressionPtr function, ArgumentList arguments)
      : function_(std::move(function)), arguments_(std::move(arguments)) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr function_;
  ArgumentList arguments_;
};

class Filtered final : public Expression {
 public:
  // of: null in {% set x | filter %}, whose value is given.
  Filtered(ExpressionPtr of, Filter filter, ArgumentList arguments)
      : of_(std::move(of)), filter_(filter), arguments_(std::move(arguments)) {}
  Value apply(Run& run, Value value) const;

 private:
  Value compute(Run& run) const override { return apply(run, of_->value(run)); }
  ExpressionPtr of_;
  Filter filter_;
  ArgumentList arguments_;
};

class Tested final : public Expression {
 public:
  Tested(ExpressionPtr of, Test test, ArgumentList arguments, bool negated)
      : of_(std::move(of)), test_(test), arguments_(std::move(arguments)), negated_(negated) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr of_;
  Test test_;
  ArgumentList arguments_;
  bool negated_;
};

class Conditional final : public Expression {
 public:
  // otherwise: null: what is undefined.
  Conditional(ExpressionPtr value, ExpressionPtr condition, ExpressionPtr otherwise)
      : value_(std::move(value)), condition_(std::move(condition)), otherwise_(std::move(otherwise)) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr value_, condition_, otherwise_;
};

class Not final : public Expression {
 public:
  explicit Not(ExpressionPtr of) : of_(std::move(of)) {}

 private:
  Value compute(Run& run) const override { return Value(!of_->value(run).truth()); }
  ExpressionPtr of_;
};

// `and` and `or`: the first value that decides, or the last.
class Logical final : public Expression {
 public:
  Logical(bool all, ExpressionPtr left, ExpressionPtr right)
      : all_(all), left_(std::move(left)), right_(std::move(right)) {}

 private:
  Value compute(Run& run) const override;
  bool all_;
  ExpressionPtr left_, right_;
};

enum class Comparison { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };

// a < b < c: each with the next.
class Compared final : public Expression {
 public:
  Compared(ExpressionPtr first, std::vector<std::pair<Comparison, ExpressionPtr>> rest)
      : first_(std::move(first)), rest_(std::move(rest)) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr first_;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest_;
};

class Computed final : public Expression {
 public:
  Computed(Operator op, ExpressionPtr left, ExpressionPtr right)
      : op_(op), left_(std::move(left)), right_(std::move(right)) {}

 private:
  Value compute(Run& run) const override;
  Operator op_;
  ExpressionPtr left_, right_;
};

class Negative final : public Expression {
 public:
  Negative(ExpressionPtr of, bool minus) : of_(std::move(of)), minus_(minus) {}

 private:
  Value compute(Run& run) const override;
  ExpressionPtr of_;
  bool minus_;
};

class Joined final : public Expression {
 public:
  explicit Joined(std::vector<ExpressionPtr> parts) : parts_(std::move(parts)) {}

 private:
  Value compute(Run& run) const override;
  std::vector<ExpressionPtr> parts_;
};

}  // namespace orthant::jinja
