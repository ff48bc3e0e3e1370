// Regular expressions as tokenizer files write them, compiled by PCRE2.
//
// The files mean Oniguruma's Ruby syntax over Unicode. Where PCRE2 reads the same letters differently (\s, \w, \v, \p
// of a script) the pattern is translated; what has no equal is refused. ^ and $ stand at every line. Thread safety: a
// Regex is constant; a RegexWork belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace orthant {

// What a search writes to.
class RegexWork {
 public:
  RegexWork();
  ~RegexWork();
  RegexWork(const RegexWork&) = delete;
  RegexWork& operator=(const RegexWork&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Regex {
 public:
  // Errors: ConfigError for a pattern that is wrong, or that is not done here, beginning with the pattern.
  static Regex pattern(std::string_view pattern);
  static Regex literal(std::string_view text);

  // The first match at or after `from`. REQUIRES: text is UTF-8, from <= text.size(). Errors: Error for a search that
  // needs too much memory or time.
  bool find(std::string_view text, std::size_t from, TextSpan& match, RegexWork& work) const;

  // Calls part(span, is_match) for all matches and for what lies between them, in order. Empty matches count, but for
  // one where the match before it ends. An empty text is one part that does not match.
  template <class Part>
  void parts(std::string_view text, RegexWork& work, const Part& part) const {
    if (text.empty()) {
      part(TextSpan{0, 0}, false);
      return;
    }
    std::size_t covered = 0, from = 0;
    bool matched = false;
    for (TextSpan match; from <= text.size() && find(text, from, match, work);) {
      if (match.begin == match.end && matched && match.end == covered) {
        from = next_character(text, from);
        continue;
      }
      if (covered != match.begin) {
        part(TextSpan{covered, match.begin}, false);
      }
      part(match, true);
      matched = true;
      covered = from = match.end;
    }
    if (covered != text.size()) {
      part(TextSpan{covered, text.size()}, false);
    }
  }

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}
  static Regex compile(std::string_view pattern, std::string_view shown, unsigned options);
  static std::size_t next_character(std::string_view text, std::size_t from);

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

// The same expression for PCRE2, with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. Errors: ConfigError, as above.
std::string pcre_pattern(std::string_view pattern);

}  // namespace orthant
