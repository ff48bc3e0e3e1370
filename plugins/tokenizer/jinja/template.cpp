#include "plugins/tokenizer/jinja/template.h"

#include "plugins/tokenizer/jinja/lexer.h"
#include "plugins/tokenizer/jinja/parser.h"
#include "plugins/tokenizer/jinja/run.h"

namespace orthant::jinja {

Template::Template(const std::string& source) {
  constexpr std::size_t longest = 1 << 20;
  if (source.size() > longest) {
    refuse("the template has {} bytes: expected at most {}", source.size(), longest);
  }
  body_ = Parser(tokens_of(source)).parse();
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

RenderedTemplate Template::render(Dict variables, const Limits& limits) const {
  auto scope = std::make_shared<Scope>();
  for (const auto& [name, value] : variables.items()) {
    scope->variables.insert_or_assign(name.as_text(), value);
  }
  Run run(limits, std::move(scope));
  run_all(run, body_);
  RenderedTemplate made{.text = {}, .generated = run.generated()};
  made.text = run.take();
  return made;
}

}  // namespace orthant::jinja
