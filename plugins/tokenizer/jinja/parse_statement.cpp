#include <algorithm>

#include "plugins/tokenizer/jinja/parser.h"

namespace orthant::jinja {

Body Parser::parse() {
  return body({});
}

Body Parser::body(std::initializer_list<std::string_view> ends) {
  constexpr int deepest = 60;
  if (++depth_ > deepest) {
    fail_at(fmt::format("statements lie more than {} deep in each other", deepest));
  }
  Body made;
  while (true) {
    const int line = now().line;
    if (now().kind == TokenKind::finish) {
      if (ends.size() > 0) {
        fail_at(fmt::format("the template ends where '{}' is expected", *(ends.end() - 1)));
      }
      break;
    }
    if (now().kind == TokenKind::data) {
      made.push_back(std::make_unique<Data>(line, tokens_[at_++].text));
    } else if (now().kind == TokenKind::print) {
      ++at_;
      made.push_back(std::make_unique<Print>(line, tuple()));
      want(TokenKind::printed, {}, "at the end of what is written");
    } else {
      const Token& next = tokens_[at_ + 1];
      if (next.kind == TokenKind::name && std::find(ends.begin(), ends.end(), next.text) != ends.end()) {
        ++at_;
        break;
      }
      ++at_;
      made.push_back(statement());
    }
  }
  --depth_;
  return made;
}

void Parser::end_of(std::string_view word) {
  want(TokenKind::name, word, "here");
  end_tag();
}

std::unique_ptr<Statement> Parser::statement() {
  const int line = now().line;
  const std::string kind = want_name("a statement");
  if (kind == "if") {
    return parse_if(line);
  }
  if (kind == "for") {
    return parse_for(line);
  }
  if (kind == "set") {
    return parse_set(line);
  }
  if (kind == "macro") {
    return parse_macro(line);
  }
  if (kind == "break" || kind == "continue") {
    if (loops_ == 0) {
      throw TemplateError(fmt::format("'{}' outside a loop", kind), line);
    }
    end_tag();
    return std::make_unique<Leave>(line, kind == "break" ? Flow::over : Flow::next);
  }
  if (kind == "generation") {
    end_tag();
    Body inside = body({"endgeneration"});
    end_of("endgeneration");
    return std::make_unique<Generation>(line, std::move(inside));
  }
  throw TemplateError(fmt::format("the statement '{}' is not known here", kind), line);
}

std::unique_ptr<Statement> Parser::parse_if(int line) {
  std::vector<If::Branch> branches;
  while (true) {
    ExpressionPtr condition = tuple(false);
    end_tag();
    Body inside = body({"elif", "else", "endif"});
    branches.emplace_back(std::move(condition), std::move(inside));
    if (take_word("elif")) {
      continue;
    }
    if (take_word("else")) {
      end_tag();
      Body otherwise = body({"endif"});
      branches.emplace_back(nullptr, std::move(otherwise));
    }
    end_of("endif");
    return std::make_unique<If>(line, std::move(branches));
  }
}

std::unique_ptr<Statement> Parser::parse_for(int line) {
  Target to = target(false);
  want(TokenKind::name, "in", "in this loop");
  ExpressionPtr over = tuple(false), filter = take_word("if") ? expression() : nullptr;
  if (word("recursive")) {
    fail_at("'recursive' loops are not known here");
  }
  end_tag();
  ++loops_;
  Body inside = body({"else", "endfor"}), otherwise;
  --loops_;
  if (take_word("else")) {
    end_tag();
    otherwise = body({"endfor"});
  }
  end_of("endfor");
  return std::make_unique<For>(line, std::move(to), std::move(over), std::move(filter), std::move(inside),
                               std::move(otherwise));
}

Target Parser::one_target(bool with_fields) {
  if (take_symbol("(")) {
    Target made = target(with_fields);
    want_symbol(")");
    return made;
  }
  Target made{.name = want_name("a name to set")};
  constexpr std::string_view constants[] = {"true", "false", "none", "True", "False", "None", "loop"};
  if (std::find(std::begin(constants), std::end(constants), made.name) != std::end(constants)) {
    fail_at(fmt::format("'{}' cannot be set", made.name));
  }
  if (with_fields && take_symbol(".")) {
    made.field = want_name("the name of a field");
  }
  return made;
}

Target Parser::target(bool with_fields) {
  Target first = one_target(with_fields);
  if (!symbol(",")) {
    return first;
  }
  Target made;
  made.parts.push_back(std::move(first));
  while (take_symbol(",")) {
    if (word("in") || symbol("=") || symbol(")")) {
      break;
    }
    made.parts.push_back(one_target(with_fields));
  }
  return made;
}

Filters Parser::filters() {
  Filters made;
  while (take_symbol("|")) {
    made.push_back(filter(nullptr));
  }
  return made;
}

std::unique_ptr<Statement> Parser::parse_set(int line) {
  Target to = target(true);
  if (take_symbol("=")) {
    ExpressionPtr value = tuple();
    end_tag();
    return std::make_unique<Set>(line, std::move(to), std::move(value));
  }
  Filters through = filters();
  end_tag();
  const int outside = std::exchange(loops_, 0);
  Body inside = body({"endset"});
  loops_ = outside;
  end_of("endset");
  return std::make_unique<Block>(line, std::move(to), std::move(through), std::move(inside));
}

std::unique_ptr<Statement> Parser::parse_macro(int line) {
  MacroBody macro{.name = want_name("the name of a macro"), .parameters = {}, .body = {}};
  want_symbol("(");
  while (!symbol(")")) {
    const std::string name = want_name("the name of a parameter");
    ExpressionPtr otherwise = take_symbol("=") ? expression() : nullptr;
    if (otherwise == nullptr && !macro.parameters.empty() && macro.parameters.back().second != nullptr) {
      fail_at(fmt::format("parameter '{}' has no default, and stands behind one that has", name));
    }
    macro.parameters.emplace_back(name, std::move(otherwise));
    if (!take_symbol(",")) {
      break;
    }
  }
  want_symbol(")");
  end_tag();
  const int outside = std::exchange(loops_, 0);
  macro.body = body({"endmacro"});
  loops_ = outside;
  end_of("endmacro");
  return std::make_unique<Macro>(line, std::move(macro));
}

}  // namespace orthant::jinja
