// The kinds of statements.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/tokenizer/jinja/expressions.h"
#include "plugins/tokenizer/jinja/node.h"

namespace orthant::jinja {

class Data final : public Statement {
 public:
  Data(int line, std::string text) : Statement(line), text_(std::move(text)) {}

 private:
  Flow act(Run& run) const override;
  std::string text_;
};

class Print final : public Statement {
 public:
  Print(int line, ExpressionPtr value) : Statement(line), value_(std::move(value)) {}

 private:
  Flow act(Run& run) const override;
  ExpressionPtr value_;
};

class If final : public Statement {
 public:
  // The first branch whose condition holds; null: always.
  using Branch = std::pair<ExpressionPtr, Body>;
  If(int line, std::vector<Branch> branches) : Statement(line), branches_(std::move(branches)) {}

 private:
  Flow act(Run& run) const override;
  std::vector<Branch> branches_;
};

class For final : public Statement {
 public:
  // filter: null: all items.
  For(int line, Target target, ExpressionPtr over, ExpressionPtr filter, Body body, Body otherwise)
      : Statement(line),
        target_(std::move(target)),
        over_(std::move(over)),
        filter_(std::move(filter)),
        body_(std::move(body)),
        otherwise_(std::move(otherwise)) {}

 private:
  Flow act(Run& run) const override;
  Target target_;
  ExpressionPtr over_, filter_;
  Body body_, otherwise_;
};

class Leave final : public Statement {
 public:
  Leave(int line, Flow flow) : Statement(line), flow_(flow) {}

 private:
  Flow act(Run&) const override { return flow_; }
  Flow flow_;
};

class Set final : public Statement {
 public:
  Set(int line, Target target, ExpressionPtr value)
      : Statement(line), target_(std::move(target)), value_(std::move(value)) {}

 private:
  Flow act(Run& run) const override;
  Target target_;
  ExpressionPtr value_;
};

using Filters = std::vector<std::unique_ptr<Filtered>>;

// {% set x | filter %}...{% endset %}
class Block final : public Statement {
 public:
  Block(int line, Target target, Filters filters, Body body)
      : Statement(line), target_(std::move(target)), filters_(std::move(filters)), body_(std::move(body)) {}

 private:
  Flow act(Run& run) const override;
  Target target_;
  Filters filters_;
  Body body_;
};

// Parameters with their defaults, and what a call writes.
struct MacroBody {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // null: no default
  Body body;
};

class Macro final : public Statement {
 public:
  Macro(int line, MacroBody macro) : Statement(line), macro_(std::make_shared<const MacroBody>(std::move(macro))) {}

 private:
  Flow act(Run& run) const override;
  std::shared_ptr<const MacroBody> macro_;
};

// {% generation %}...{% endgeneration %}: what a model is to learn.
class Generation final : public Statement {
 public:
  Generation(int line, Body body) : Statement(line), body_(std::move(body)) {}

 private:
  Flow act(Run& run) const override;
  Body body_;
};

}  // namespace orthant::jinja
