#include "plugins/tokenizer/jinja/run.h"

namespace orthant::jinja {

namespace {
constexpr int deepest_run = 600;
}

Run::Run(const Limits& limits, std::shared_ptr<Scope> scope)
    : steps_left_(limits.steps), bytes_left_(limits.bytes), scope_(std::move(scope)) {}

Run::~Run() {
  for (const auto& scope : kept_) {
    scope->variables.clear();
  }
}

void Run::spend(std::int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ < 0) {
    refuse("the template takes more steps than a conversation needs: it may never end");
  }
}

void Run::make(std::size_t bytes) {
  bytes_left_ -= static_cast<std::int64_t>(bytes);
  if (bytes_left_ < 0) {
    refuse("the template makes more text than a conversation needs: it may never end");
  }
  spend(static_cast<std::int64_t>(bytes / 64));
}

const Value* Run::find(std::string_view name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->around.get()) {
    spend();
    if (const auto found = scope->variables.find(name); found != scope->variables.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

void Run::set(const std::string& name, Value value) {
  scope_->variables.insert_or_assign(name, std::move(value));
}

void Run::write(std::string_view text) {
  make(text.size());
  *out_ += text;
}

Run::Inner::Inner(Run& run, std::shared_ptr<Scope> around) : run_(run), before_(run.scope_) {
  run_.scope_ = std::make_shared<Scope>(Scope{std::move(around)});
}

Run::Inner::~Inner() {
  run_.scope_ = before_;
}

Run::Deeper::Deeper(Run& run) : run_(run) {
  if (run.depth_ >= deepest_run) {
    refuse("expressions, statements and macros lie more than {} deep in each other: does a macro call itself for ever?",
           deepest_run);
  }
  ++run.depth_;
}

}  // namespace orthant::jinja
