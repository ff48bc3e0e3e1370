#include "plugins/tokenizer/jinja/lexer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/utf8.h"
#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/template_error.h"

namespace orthant::jinja {
namespace {

bool letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// Ends of lines as \n, and without the last.
std::string normalized(std::string_view source) {
  std::string made;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool carriage = source[i] == '\r';
    made += carriage ? '\n' : source[i];
    i += carriage && i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
  }
  if (made.ends_with('\n')) {
    made.pop_back();
  }
  return made;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(normalized(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      take_data();
    }
    put(TokenKind::finish, {});
    return std::move(tokens_);
  }

 private:
  void put(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void skip(std::size_t bytes) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(bytes), '\n'));
    line_starts_ = bytes > 0 ? rest_[bytes - 1] == '\n' : line_starts_;
    rest_.remove_prefix(bytes);
  }
  void skip_space() { skip(rest_.size() - stripped(rest_, true, false).size()); }
  bool take(std::string_view text) {
    const bool there = rest_.starts_with(text);
    skip(there ? text.size() : 0);
    return there;
  }

  // Text before a tag; sign: '-' behind the tag's brace takes away the space before it, '+' keeps it.
  void put_data(std::string_view text, char sign, bool printed) {
    if (sign == '-') {
      text = stripped(text, false, true);
    } else if (sign != '+' && !printed) {
      const std::size_t line = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
      if ((line > 0 || line_starts_) && stripped(text.substr(line), true, false).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) {
      put(TokenKind::data, std::string(text));
    }
  }

  // The end of a tag, whose closing brace has been taken but for `sign` before it.
  void trim(char sign, bool printed) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && !printed) {
      take("\n");
    }
  }

  void take_data() {
    std::size_t at = 0;
    while (true) {
      at = rest_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= rest_.size()) {
        put(TokenKind::data, std::string(rest_));
        skip(rest_.size());
        return;
      }
      const char next = rest_[at + 1];
      if (next == '{' || next == '%' || next == '#') {
        break;
      }
      ++at;
    }
    const char kind = rest_[at + 1], sign = at + 2 < rest_.size() ? rest_[at + 2] : ' ';
    const bool signed_tag = sign == '-' || sign == '+';
    const std::string_view text = rest_.substr(0, at);
    put_data(text, signed_tag ? sign : ' ', kind == '{');
    skip(at + 2 + (signed_tag ? 1 : 0));
    if (kind == '#') {
      take_comment();
    } else if (kind == '{') {
      put(TokenKind::print, {});
      take_expression("}}", TokenKind::printed);
    } else if (!take_raw()) {
      put(TokenKind::begin, {});
      take_expression("%}", TokenKind::end);
    }
  }

  void take_comment() {
    const std::size_t end = rest_.find("#}");
    if (end == std::string_view::npos) {
      throw TemplateError("a comment without its end, '#}'", line_);
    }
    const char sign = end > 0 ? rest_[end - 1] : ' ';
    skip(end + 2);
    trim(sign, false);
  }

  bool take_raw() {
    const std::string_view before = rest_;
    std::string_view word = stripped(rest_, true, false);
    if (!word.starts_with("raw")) {
      return false;
    }
    word = stripped(word.substr(3), true, false);
    if (!word.starts_with("%}") && !word.starts_with("-%}")) {
      return false;
    }
    const bool strips = word.starts_with("-");
    skip(before.size() - word.size() + (strips ? 3 : 2));
    if (strips) {
      skip_space();
    }
    for (std::size_t at = rest_.find("{%"); at != std::string_view::npos; at = rest_.find("{%", at + 1)) {
      const char sign = at + 2 < rest_.size() ? rest_[at + 2] : ' ';
      const bool signed_tag = sign == '-' || sign == '+';
      std::string_view end = stripped(rest_.substr(at + 2 + (signed_tag ? 1 : 0)), true, false);
      if (!end.starts_with("endraw")) {
        continue;
      }
      end = stripped(end.substr(6), true, false);
      const char last = end.starts_with("-") || end.starts_with("+") ? end[0] : ' ';
      end.remove_prefix(last == ' ' ? 0 : 1);
      if (!end.starts_with("%}")) {
        continue;
      }
      put_data(rest_.substr(0, at), signed_tag ? sign : ' ', false);
      skip(rest_.size() - end.size() + 2);
      trim(last, false);
      return true;
    }
    throw TemplateError("'raw' without its 'endraw'", line_);
  }

  // Tokens up to `end`, which a brace that is open hides.
  void take_expression(std::string_view end, TokenKind kind) {
    const int began = line_;
    std::vector<char> open;
    while (true) {
      skip_space();
      if (rest_.empty()) {
        throw TemplateError(fmt::format("a tag without its end, '{}'", end), began);
      }
      if (open.empty()) {
        const char sign = rest_[0];
        const bool signed_end =
            (sign == '-' || (sign == '+' && kind == TokenKind::end)) && rest_.substr(1).starts_with(end);
        if (signed_end || rest_.starts_with(end)) {
          put(kind, {});
          skip(end.size() + (signed_end ? 1 : 0));
          trim(signed_end ? sign : ' ', kind == TokenKind::printed);
          return;
        }
      }
      take_token(open);
    }
  }

  void take_token(std::vector<char>& open) {
    const char c = rest_[0];
    if (letter(c)) {
      put(TokenKind::name, taken_while([](char k) { return letter(k) || digit(k); }));
    } else if (digit(c)) {
      take_number();
    } else if (c == '"' || c == '\'') {
      take_string();
    } else {
      take_symbol(open);
    }
  }

  template <class Wanted>
  std::string taken_while(Wanted&& wanted) {
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), wanted);
    const std::string text(rest_.begin(), end);
    skip(text.size());
    return text;
  }

  void take_number() {
    std::string text = taken_while([](char c) { return digit(c) || c == '_'; });
    bool whole = true;
    const bool point = rest_.size() > 1 && rest_[0] == '.' && digit(rest_[1]);
    if (point) {
      skip(1);
      text += "." + taken_while([](char c) { return digit(c) || c == '_'; });
      whole = false;
    }
    if (!rest_.empty() && (rest_[0] == 'e' || rest_[0] == 'E')) {
      const bool sign = rest_.size() > 1 && (rest_[1] == '-' || rest_[1] == '+');
      if (rest_.size() > (sign ? 2 : 1) && digit(rest_[sign ? 2 : 1])) {
        text += rest_.substr(0, sign ? 2 : 1);
        skip(sign ? 2 : 1);
        text += taken_while([](char c) { return digit(c) || c == '_'; });
        whole = false;
      }
    }
    if (!rest_.empty() && letter(rest_[0])) {
      throw TemplateError(fmt::format("'{}{}' is no number that is read here", text, rest_[0]), line_);
    }
    std::erase(text, '_');
    if (whole && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
      throw TemplateError(fmt::format("'{}': a number does not begin with 0", text), line_);
    }
    put(whole ? TokenKind::integer : TokenKind::decimal, text);
  }

  void take_string() {
    const char quote = rest_[0];
    std::size_t at = 1;
    while (at < rest_.size() && rest_[at] != quote) {
      at += rest_[at] == '\\' ? 2 : 1;
    }
    if (at >= rest_.size()) {
      throw TemplateError("a text in quotes without its end", line_);
    }
    put(TokenKind::string, unescaped(rest_.substr(1, at - 1)));
    skip(at + 1);
  }

  // The number of `digits` hexadecimal digits behind a backslash and a letter.
  char32_t hexadecimal(std::string_view text, std::size_t digits) const {
    char32_t code = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const std::size_t value = i < text.size()
                                    ? std::string_view("0123456789abcdef").find(static_cast<char>(text[i] | 0x20))
                                    : std::string_view::npos;
      if (value == std::string_view::npos) {
        throw TemplateError(fmt::format("an escape in a text lacks its {} hexadecimal digits", digits), line_);
      }
      code = code * 16 + static_cast<char32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      throw TemplateError("an escape in a text is no character", line_);
    }
    return code;
  }

  std::string unescaped(std::string_view text) const {
    std::string made;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        made += text[i];
        continue;
      }
      const char next = text[++i];
      constexpr std::string_view names = "ntrabfv\\'\"", letters = "\n\t\r\a\b\f\v\\'\"";
      if (const std::size_t at = names.find(next); at != std::string_view::npos) {
        made += letters[at];
      } else if (next == 'x' || next == 'u' || next == 'U') {
        const std::size_t digits = next == 'x' ? 2 : next == 'u' ? 4 : 8;
        append_utf8(made, hexadecimal(text.substr(i + 1), digits));
        i += digits;
      } else if (next >= '0' && next <= '7') {
        char32_t code = 0;
        std::size_t count = 0;
        while (count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7') {
          code = code * 8 + static_cast<char32_t>(text[i + count++] - '0');
        }
        append_utf8(made, code);
        i += count - 1;
      } else if (next == 'N') {
        throw TemplateError("a character by its name, '\\N', is not done here", line_);
      } else if (next != '\n') {  // the end of a line goes with the backslash; what is no escape stays as it is
        made += '\\';
        made += next;
      }
    }
    return made;
  }

  void take_symbol(std::vector<char>& open) {
    constexpr std::string_view symbols[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                            ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|"};
    const auto found = std::find_if(std::begin(symbols), std::end(symbols),
                                    [&](std::string_view symbol) { return rest_.starts_with(symbol); });
    if (found == std::end(symbols)) {
      throw TemplateError(
          fmt::format("'{}' in an expression", rest_.substr(0, std::max<std::size_t>(1, utf8_length(rest_)))), line_);
    }
    constexpr std::string_view opening = "([{", closing = ")]}";
    if (found->size() == 1 && opening.find(*found) != std::string_view::npos) {
      open.push_back((*found)[0]);
    } else if (found->size() == 1 && closing.find(*found) != std::string_view::npos) {
      if (open.empty() || closing[opening.find(open.back())] != (*found)[0]) {
        throw TemplateError(fmt::format("'{}' closes what is not open", *found), line_);
      }
      open.pop_back();
    }
    put(TokenKind::symbol, std::string(*found));
    skip(found->size());
  }

  const std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(const std::string& source) {
  if (valid_utf8(source) != source.size()) {
    throw TemplateError("the template is no UTF-8");
  }
  return Lexer(source).run();
}

}  // namespace orthant::jinja
