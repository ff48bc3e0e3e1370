// What a template is made of: expressions that have a value, and statements that write.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugins/tokenizer/jinja/operations.h"
#include "plugins/tokenizer/jinja/run.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

// Thread safety of both: constant.
class Expression {
 public:
  virtual ~Expression() = default;
  Value value(Run& run) const {
    const Run::Deeper deeper(run);
    run.spend();
    return compute(run);
  }

 private:
  virtual Value compute(Run& run) const = 0;
};

// What a loop's turn is told by the statements in it.
enum class Flow { on, next, over };  // over: break

class Statement {
 public:
  explicit Statement(int line) : line_(line) {}
  virtual ~Statement() = default;
  int line() const { return line_; }
  Flow run(Run& run) const;  // Errors: TemplateError, with the line of the innermost statement

 private:
  virtual Flow act(Run& run) const = 0;
  int line_;
};

using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

Flow run_all(Run& run, const Body& body);
// What the body writes. break and continue are none of its.
std::string text_of_body(Run& run, const Body& body);

// Arguments of a call, a filter or a test.
struct ArgumentList {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  Arguments values(Run& run) const;
};

// What is assigned to: a name, a field of a namespace, or several of these that a row of as many is dealt to.
struct Target {
  std::string name, field = {};
  std::vector<Target> parts = {};
  void assign(Run& run, const Value& value) const;
};

}  // namespace orthant::jinja
