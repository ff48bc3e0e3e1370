// Tokens to expressions and statements. What is not known is refused, by name and line.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/tokenizer/jinja/lexer.h"
#include "plugins/tokenizer/jinja/statements.h"

namespace orthant::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  // Errors: TemplateError, with its line.
  Body parse();

 private:
  // Tokens.
  const Token& now() const { return tokens_[at_]; }
  bool is(TokenKind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool symbol(std::string_view text) const { return is(TokenKind::symbol, text); }
  bool word(std::string_view text) const { return is(TokenKind::name, text); }
  bool take(TokenKind kind, std::string_view text);
  bool take_symbol(std::string_view text) { return take(TokenKind::symbol, text); }
  bool take_word(std::string_view text) { return take(TokenKind::name, text); }
  void want(TokenKind kind, std::string_view text, const char* words);
  void want_symbol(std::string_view text) { want(TokenKind::symbol, text, "in this expression"); }
  std::string want_name(const char* what);
  [[noreturn]] void fail_at(const std::string& message) const { throw TemplateError(message, now().line); }
  std::string shown() const;
  class Deeper;

  // Expressions: parse_expression.cpp.
  ExpressionPtr expression(bool with_if = true);
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negated();
  ExpressionPtr compared();
  ExpressionPtr sum();
  ExpressionPtr joined();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr of);
  ExpressionPtr subscript(ExpressionPtr of);
  ExpressionPtr filtered(ExpressionPtr of);
  std::unique_ptr<Filtered> filter(ExpressionPtr of);
  ExpressionPtr tested(ExpressionPtr of);
  ArgumentList arguments();
  ExpressionPtr tuple(bool with_if = true);

  // Statements: parse_statement.cpp.
  // Up to one of these words behind {%, which is left to be read; the end of the template where none is given.
  Body body(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> parse_if(int line);
  std::unique_ptr<Statement> parse_for(int line);
  std::unique_ptr<Statement> parse_set(int line);
  std::unique_ptr<Statement> parse_macro(int line);
  Filters filters();
  Target target(bool with_fields);
  Target one_target(bool with_fields);
  void end_tag() { want(TokenKind::end, {}, "at the end of this tag"); }
  void end_of(std::string_view word);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace orthant::jinja
