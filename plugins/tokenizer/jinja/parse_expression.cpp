#include <algorithm>
#include <charconv>

#include "plugins/tokenizer/jinja/parser.h"

namespace orthant::jinja {
namespace {

// Expressions are read, computed and destroyed by recursion.
constexpr int deepest_expression = 200;

}  // namespace

class Parser::Deeper {
 public:
  explicit Deeper(Parser& parser, int by = 1) : parser_(parser), by_(by) {
    if (parser.depth_ + by > deepest_expression) {
      parser.fail_at(fmt::format("expressions or statements lie more than {} deep in each other", deepest_expression));
    }
    parser.depth_ += by;
  }
  ~Deeper() { parser_.depth_ -= by_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Parser& parser_;
  int by_;
};

std::string Parser::shown() const {
  switch (now().kind) {
    case TokenKind::data: return "text";
    case TokenKind::begin: return "'{%'";
    case TokenKind::end: return "'%}'";
    case TokenKind::print: return "'{{'";
    case TokenKind::printed: return "'}}'";
    case TokenKind::finish: return "the end of the template";
    default: return "'" + now().text.substr(0, 40) + "'";
  }
}

bool Parser::take(TokenKind kind, std::string_view text) {
  const bool there = is(kind, text);
  at_ += there ? 1 : 0;
  return there;
}

void Parser::want(TokenKind kind, std::string_view text, const char* words) {
  if (!take(kind, text)) {
    const std::string expected = kind == TokenKind::end ? "%}" : kind == TokenKind::printed ? "}}" : std::string(text);
    fail_at(fmt::format("{} {}: expected '{}'", shown(), words, expected));
  }
}

std::string Parser::want_name(const char* what) {
  if (now().kind != TokenKind::name) {
    fail_at(fmt::format("{} where {} is expected", shown(), what));
  }
  return tokens_[at_++].text;
}

ExpressionPtr Parser::expression(bool with_if) {
  const Deeper deeper(*this);
  ExpressionPtr value = either();
  int chain = 0;
  while (with_if && take_word("if")) {
    const Deeper longer(*this, ++chain);
    ExpressionPtr condition = either();
    ExpressionPtr otherwise = take_word("else") ? expression() : nullptr;
    value = std::make_unique<Conditional>(std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

ExpressionPtr Parser::either() {
  ExpressionPtr left = both();
  int chain = 0;
  while (take_word("or")) {
    const Deeper longer(*this, ++chain);
    left = std::make_unique<Logical>(false, std::move(left), both());
  }
  return left;
}

ExpressionPtr Parser::both() {
  ExpressionPtr left = negated();
  int chain = 0;
  while (take_word("and")) {
    const Deeper longer(*this, ++chain);
    left = std::make_unique<Logical>(true, std::move(left), negated());
  }
  return left;
}

ExpressionPtr Parser::negated() {
  if (take_word("not")) {
    const Deeper deeper(*this);
    return std::make_unique<Not>(negated());
  }
  return compared();
}

ExpressionPtr Parser::compared() {
  constexpr std::pair<const char*, Comparison> signs[] = {
      {"==", Comparison::equal},         {"!=", Comparison::unequal}, {"<=", Comparison::less_equal},
      {">=", Comparison::greater_equal}, {"<", Comparison::less},     {">", Comparison::greater}};
  ExpressionPtr first = sum();
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
  while (true) {
    const auto* found =
        std::find_if(std::begin(signs), std::end(signs), [&](const auto& sign) { return symbol(sign.first); });
    if (found != std::end(signs)) {
      ++at_;
      rest.emplace_back(found->second, sum());
    } else if (take_word("in")) {
      rest.emplace_back(Comparison::in, sum());
    } else if (word("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in") {
      at_ += 2;
      rest.emplace_back(Comparison::not_in, sum());
    } else {
      break;
    }
  }
  return rest.empty() ? std::move(first) : std::make_unique<Compared>(std::move(first), std::move(rest));
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = joined();
  int chain = 0;
  while (symbol("+") || symbol("-")) {
    const Deeper longer(*this, ++chain);
    const Operator op = take_symbol("+") ? Operator::add : (++at_, Operator::subtract);
    left = std::make_unique<Computed>(op, std::move(left), joined());
  }
  return left;
}

ExpressionPtr Parser::joined() {
  std::vector<ExpressionPtr> parts;
  parts.push_back(product());
  while (take_symbol("~")) {
    parts.push_back(product());
  }
  return parts.size() == 1 ? std::move(parts[0]) : std::make_unique<Joined>(std::move(parts));
}

ExpressionPtr Parser::product() {
  constexpr std::pair<const char*, Operator> signs[] = {
      {"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}};
  ExpressionPtr left = power();
  int chain = 0;
  while (true) {
    const auto* found =
        std::find_if(std::begin(signs), std::end(signs), [&](const auto& sign) { return symbol(sign.first); });
    if (found == std::end(signs)) {
      return left;
    }
    const Deeper longer(*this, ++chain);
    ++at_;
    left = std::make_unique<Computed>(found->second, std::move(left), power());
  }
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary();
  int chain = 0;
  while (take_symbol("**")) {
    const Deeper longer(*this, ++chain);
    left = std::make_unique<Computed>(Operator::power, std::move(left), unary());
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Deeper deeper(*this);
  ExpressionPtr made;
  if (symbol("-") || symbol("+")) {
    const bool minus = symbol("-");
    ++at_;
    made = std::make_unique<Negative>(unary(false), minus);
  } else {
    made = primary();
  }
  made = postfix(std::move(made));
  return with_filters ? filtered(std::move(made)) : std::move(made);
}

ExpressionPtr Parser::primary() {
  const Token token = now();
  switch (token.kind) {
    case TokenKind::name: {
      ++at_;
      const std::string& name = token.text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        return std::make_unique<Constant>(Value(name == "true" || name == "True"));
      }
      if (name == "none" || name == "None") {
        return std::make_unique<Constant>(Value());
      }
      if (name == "self" || name == "super" || name == "varargs" || name == "kwargs" || name == "caller") {
        throw TemplateError(fmt::format("'{}' is not known here", name), token.line);
      }
      return std::make_unique<Name>(name);
    }
    case TokenKind::string: {
      std::string text;
      while (now().kind == TokenKind::string) {
        text += tokens_[at_++].text;
      }
      return std::make_unique<Constant>(Value(std::move(text)));
    }
    case TokenKind::integer: {
      ++at_;
      std::int64_t value = 0;
      if (std::from_chars(token.text.data(), token.text.data() + token.text.size(), value).ec != std::errc()) {
        fail_at("a whole number beyond 64 bits is not done here");
      }
      return std::make_unique<Constant>(Value(value));
    }
    case TokenKind::decimal: {
      ++at_;
      double value = 0;
      if (std::from_chars(token.text.data(), token.text.data() + token.text.size(), value).ec != std::errc()) {
        fail_at(fmt::format("the number {} cannot be kept", token.text));
      }
      return std::make_unique<Constant>(Value(value));
    }
    default: break;
  }
  if (take_symbol("(")) {
    if (take_symbol(")")) {
      return std::make_unique<ListOf>(std::vector<ExpressionPtr>(), true);
    }
    ExpressionPtr made = tuple();
    want_symbol(")");
    return made;
  }
  if (take_symbol("[")) {
    std::vector<ExpressionPtr> items;
    while (!symbol("]")) {
      items.push_back(expression());
      if (!take_symbol(",")) {
        break;
      }
    }
    want_symbol("]");
    return std::make_unique<ListOf>(std::move(items), false);
  }
  if (take_symbol("{")) {
    return dict();
  }
  fail_at(fmt::format("{} where a value is expected", shown()));
}

ExpressionPtr Parser::dict() {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
  while (!symbol("}")) {
    ExpressionPtr key = expression();
    want_symbol(":");
    items.emplace_back(std::move(key), expression());
    if (!take_symbol(",")) {
      break;
    }
  }
  want_symbol("}");
  return std::make_unique<DictOf>(std::move(items));
}

ExpressionPtr Parser::tuple(bool with_if) {
  ExpressionPtr first = expression(with_if);
  if (!symbol(",")) {
    return first;
  }
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(first));
  while (take_symbol(",")) {
    if (symbol(")") || now().kind == TokenKind::end || now().kind == TokenKind::printed) {
      break;
    }
    items.push_back(expression(with_if));
  }
  return std::make_unique<ListOf>(std::move(items), true);
}

ExpressionPtr Parser::postfix(ExpressionPtr of) {
  for (int chain = 1;; ++chain) {
    if (!symbol(".") && !symbol("[") && !symbol("(")) {
      return of;
    }
    const Deeper longer(*this, chain);
    if (take_symbol(".")) {
      if (now().kind == TokenKind::integer) {
        ExpressionPtr index = primary();
        of = std::make_unique<ItemOf>(std::move(of), std::move(index));
      } else {
        const std::string name = want_name("the name of an attribute");
        if (symbol("(") && !method_known(name)) {
          fail_at(fmt::format("the method '{}' is not known here", name));
        }
        of = std::make_unique<AttributeOf>(std::move(of), name);
      }
    } else if (take_symbol("[")) {
      of = subscript(std::move(of));
    } else {
      of = std::make_unique<CallOf>(std::move(of), arguments());
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr of) {
  ExpressionPtr parts[3];
  int part = 0;
  while (!symbol("]")) {
    if (take_symbol(":")) {
      if (++part > 2) {
        fail_at("a slice has three parts");
      }
    } else if (parts[part] == nullptr) {
      parts[part] = expression();
    } else {
      fail_at(fmt::format("{} in a subscript: expected one key, or a slice", shown()));
    }
  }
  want_symbol("]");
  if (part > 0) {
    return std::make_unique<SliceOf>(std::move(of), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  }
  if (parts[0] == nullptr) {
    fail_at("a subscript without a key");
  }
  return std::make_unique<ItemOf>(std::move(of), std::move(parts[0]));
}

ArgumentList Parser::arguments() {
  want_symbol("(");
  ArgumentList made;
  while (!symbol(")")) {
    if (now().kind == TokenKind::name && tokens_[at_ + 1].kind == TokenKind::symbol && tokens_[at_ + 1].text == "=") {
      const std::string name = now().text;
      at_ += 2;
      made.named.emplace_back(name, expression());
    } else if (!made.named.empty()) {
      fail_at("a value without a name behind one with a name");
    } else {
      made.positional.push_back(expression());
    }
    if (!take_symbol(",")) {
      break;
    }
  }
  want_symbol(")");
  return made;
}

std::unique_ptr<Filtered> Parser::filter(ExpressionPtr of) {
  const std::string name = want_name("the name of a filter");
  const Filter found = filter_named(name);
  if (found == nullptr) {
    fail_at(fmt::format("the filter '{}' is not known here", name));
  }
  return std::make_unique<Filtered>(std::move(of), found, symbol("(") ? arguments() : ArgumentList{});
}

ExpressionPtr Parser::filtered(ExpressionPtr of) {
  for (int chain = 1;; ++chain) {
    const Deeper longer(*this, chain);
    if (take_symbol("|")) {
      of = filter(std::move(of));
    } else if (word("is")) {
      of = tested(std::move(of));
    } else if (symbol("(")) {
      of = std::make_unique<CallOf>(std::move(of), arguments());
    } else {
      return of;
    }
  }
}

ExpressionPtr Parser::tested(ExpressionPtr of) {
  want(TokenKind::name, "is", "in this expression");
  const bool negated = take_word("not");
  const std::string name = want_name("the name of a test");
  const Test found = test_named(name);
  if (found == nullptr) {
    fail_at(fmt::format("the test '{}' is not known here", name));
  }
  ArgumentList given;
  const bool value = now().kind == TokenKind::name || now().kind == TokenKind::string ||
                     now().kind == TokenKind::integer || now().kind == TokenKind::decimal || symbol("[") || symbol("{");
  const bool ends = word("else") || word("or") || word("and") || word("if") || word("is");
  if (symbol("(")) {
    given = arguments();
  } else if (value && !ends && !word("in") && !word("not")) {
    given.positional.push_back(postfix(primary()));
  }
  return std::make_unique<Tested>(std::move(of), found, std::move(given), negated);
}

}  // namespace orthant::jinja
