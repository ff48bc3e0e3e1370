// Oniguruma's Ruby syntax as PCRE2 reads it: the part of it that tokenizers use.
#include <orthant/error.h>

#include <cctype>

#include "plugins/tokenizer/regex.h"

namespace orthant {
namespace {

// Oniguruma's \w, inside a character class: Unicode's, and the numbers of Latin-1. PCRE2's own lacks marks, and its \s
// has U+180E too.
constexpr const char* word_members = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (!ended()) {
      item();
    }
    return std::move(result_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError(fmt::format("the pattern '{}': {} at byte {} is not implemented", pattern_,
                                  fmt::format(format, std::forward<Args>(args)...), at_));
  }
  bool ended() const { return at_ == pattern_.size(); }
  char next() const { return ended() ? '\0' : pattern_[at_]; }
  bool take(std::string_view words) {
    if (!pattern_.substr(at_).starts_with(words)) {
      return false;
    }
    at_ += words.size();
    return true;
  }

  void item() {
    const char c = next();
    switch (c) {
      case '\\': escape(false); break;
      case '[': members(); break;
      case '(': group(); break;
      case '{': interval(); break;
      case '?':
      case '*':
      case '+':
        result_ += c;
        ++at_;
        if (next() == '+' || next() == '?') {
          result_ += pattern_[at_++];
        }
        break;
      default: result_ += c; ++at_;
    }
  }

  // What begins a group; its items follow.
  void group() {
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (take(opening)) {
        result_ += opening;
        return;
      }
    }
    if (pattern_.substr(at_).starts_with("(?") || pattern_.substr(at_).starts_with("(*")) {  // PCRE2's verbs
      refuse("'{}'", pattern_.substr(at_, 4));
    }
    result_ += pattern_[at_++];
  }

  void interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0) {
        ++end;
      }
      return end > begin;
    };
    bool good = digits(), exact = true;
    if (good && end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      digits();
      exact = false;
    }
    good = good && end < pattern_.size() && pattern_[end] == '}';
    if (!good) {
      refuse("a brace that counts nothing");
    }
    ++end;
    result_ += pattern_.substr(at_, end - at_);
    at_ = end;
    if (next() == '+') {
      refuse("'+' behind a count");
    }
    if (exact && next() == '?') {
      refuse("'?' behind a count");  // there it makes all of it optional, to PCRE2 nothing
    }
    if (next() == '?') {
      result_ += pattern_[at_++];
    }
  }

  void members() {
    result_ += pattern_[at_++];
    if (next() == '^') {
      result_ += pattern_[at_++];
    }
    if (next() == ']') {
      refuse("a class that begins with ']'");
    }
    while (!ended() && next() != ']') {
      if (next() == '[') {
        refuse("a class in a class");
      } else if (pattern_.substr(at_).starts_with("&&")) {
        refuse("'&&' in a class");
      } else if (next() == '\\') {
        escape(true);
      } else {
        result_ += pattern_[at_++];
      }
    }
    if (ended()) {
      refuse("a class without its end");
    }
    result_ += pattern_[at_++];
  }

  void escape(bool in_class) {
    ++at_;
    const char c = next();
    if (ended()) {
      refuse("a backslash");
    }
    ++at_;
    switch (c) {
      case 's': result_ += R"(\p{White_Space})"; return;
      case 'S': result_ += R"(\P{White_Space})"; return;
      case 'd': result_ += R"(\p{Nd})"; return;
      case 'D': result_ += R"(\P{Nd})"; return;
      case 'w': result_ += in_class ? word_members : fmt::format("[{}]", word_members); return;
      case 'v': result_ += R"(\x0b)"; return;
      case 'n':
      case 'r':
      case 't':
      case 'f': (result_ += '\\') += c; return;
      case 'p':
      case 'P': property(c); return;
      case 'x':
      case 'u': code(c); return;
      case 'A':
      case 'z':
        if (!in_class) {
          (result_ += '\\') += c;
          return;
        }
        break;
      case 'W':
        if (!in_class) {
          result_ += fmt::format("[^{}]", word_members);
          return;
        }
        break;
      default: break;
    }
    if (std::ispunct(static_cast<unsigned char>(c)) == 0) {
      --at_;
      refuse("'\\{}'", c);
    }
    (result_ += '\\') += c;
  }

  // \p{L}, \p{Lu}, \pL: a category; White_Space and Alphabetic; any other name is a script, without its extensions.
  void property(char kind) {
    std::string name;
    if (take("{")) {
      const std::size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) {
        refuse("a property without its end");
      }
      name = pattern_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      refuse("'\\{}' without a brace", kind);
    }
    for (const char c : name) {
      if (std::isalpha(static_cast<unsigned char>(c)) == 0 && c != '_') {
        refuse("the property '{}'", name);
      }
    }
    const bool known = name.size() <= 2 || name == "White_Space" || name == "Alphabetic";
    result_ += fmt::format("\\{}{{{}{}}}", kind, known ? "" : "sc:", name);
  }

  // \x{H...}, \xHH below 80, \uHHHH.
  void code(char kind) {
    std::string_view digits;
    if (kind == 'x' && take("{")) {
      const std::size_t end = pattern_.find('}', at_);
      digits = pattern_.substr(at_, end == std::string_view::npos ? 0 : end - at_);
      at_ += digits.size() + (end == std::string_view::npos ? 0 : 1);
    } else {
      digits = pattern_.substr(at_, kind == 'x' ? 2 : 4);
      at_ += digits.size();
      if (digits.size() != (kind == 'x' ? 2 : 4) || (kind == 'x' && digits[0] > '7')) {
        refuse("'\\{}{}'", kind, digits);
      }
    }
    if (digits.empty() || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse("'\\{}' without its digits", kind);
    }
    result_ += fmt::format("\\x{{{}}}", digits);
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string result_;
};

}  // namespace

std::string pcre_pattern(std::string_view pattern) {
  return Translation(pattern).run();
}

}  // namespace orthant
