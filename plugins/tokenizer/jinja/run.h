// Run: one rendering of a template: its variables, its text so far, and what it may still spend.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/tokenizer/jinja/template.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

// Variables of a loop's turn, a macro's call or a block; what it lacks is looked for in the one around it.
struct Scope {
  std::shared_ptr<Scope> around;  // null: the outermost
  std::map<std::string, Value, std::less<>> variables = {};
};

class Run {
 public:
  Run(const Limits& limits, std::shared_ptr<Scope> scope);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Errors: TemplateError beyond the limits. A template is somebody else's program.
  void spend(std::int64_t steps = 1);
  void make(std::size_t bytes);  // of texts and lists

  const Value* find(std::string_view name);  // null: no such variable
  void set(const std::string& name, Value value);
  const std::shared_ptr<Scope>& scope() const { return scope_; }
  // A macro keeps the scope: what its variables hold may hold the macro, so the run's end empties it.
  void keep(const std::shared_ptr<Scope>& scope) { kept_.push_back(scope); }

  void write(std::string_view text);
  std::string& out() { return *out_; }
  std::vector<RenderedTemplate::Span>& generated() { return generated_; }
  bool at_top() const { return out_ == &whole_; }
  std::string take() { return std::move(whole_); }

  // For as long as this lives, variables are set in a scope of their own, within `around`.
  class Inner {
   public:
    Inner(Run& run, std::shared_ptr<Scope> around);
    ~Inner();
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Run& run_;
    std::shared_ptr<Scope> before_;
  };
  // For as long as this lives, text goes to `to`.
  class Capture {
   public:
    Capture(Run& run, std::string& to) : run_(run), before_(std::exchange(run.out_, &to)) {}
    ~Capture() { run_.out_ = before_; }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

   private:
    Run& run_;
    std::string* before_;
  };
  // One more expression or statement within others. Errors: TemplateError for too many.
  class Deeper {
   public:
    explicit Deeper(Run& run);
    ~Deeper() { --run_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Run& run_;
  };

 private:
  std::int64_t steps_left_, bytes_left_;
  int depth_ = 0;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> kept_;
  std::string whole_;
  std::string* out_ = &whole_;
  std::vector<RenderedTemplate::Span> generated_;
};

}  // namespace orthant::jinja
