// A template's source as tokens, with Jinja's rules for the white space around tags.
#pragma once

#include <string>
#include <vector>

namespace orthant::jinja {

enum class TokenKind {
  data,     // text between tags
  begin,    // {%
  end,      // %}
  print,    // {{
  printed,  // }}
  name,
  string,  // what it says, without quotes and escapes
  integer,
  decimal,  // with a point or an exponent
  symbol,   // of an expression: "(", "==", ...
  finish,   // of the template
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// The last one is `finish`. Errors: TemplateError.
std::vector<Token> tokens_of(const std::string& source);

}  // namespace orthant::jinja
