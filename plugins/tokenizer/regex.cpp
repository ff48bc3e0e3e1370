#include "plugins/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <orthant/error.h>
#include <pcre2.h>

#include "core/base/utf8.h"

namespace orthant {
namespace {

constexpr std::size_t first_stack = 32 << 10, largest_stack = 16 << 20;

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) > 0 ? reinterpret_cast<const char*>(text) : "unknown";
}

}  // namespace

RegexWork::RegexWork()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(first_stack, largest_stack, nullptr)) {
  require(data_ != nullptr && context_ != nullptr, "no memory for a regular expression's matches");
  if (stack_ != nullptr) {  // null: PCRE2 was built without its compiler, and interprets
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
}

RegexWork::~RegexWork() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) {
    pcre2_jit_stack_free(stack_);
  }
}

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Regex Regex::compile(std::string_view pattern, std::string_view shown, unsigned options) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  require(context != nullptr, "no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  Regex regex(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | options, &error,
                            &at, context.get()));
  if (regex.code_ == nullptr) {
    throw ConfigError(fmt::format("the pattern '{}': {}", shown, pcre_message(error)));
  }
  pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE);  // without it the same matches are found, slower
  return regex;
}

Regex Regex::pattern(std::string_view pattern) {
  return compile(pcre_pattern(pattern), pattern, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

Regex Regex::literal(std::string_view text) {
  return compile(text, text, PCRE2_LITERAL);
}

bool Regex::find(std::string_view text, std::size_t from, TextSpan& match, RegexWork& work) const {
  const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, work.data_, work.context_);
  if (found == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  require(found >= 0, "a regular expression of the tokenizer stops in a text of {} bytes: {}", text.size(),
          pcre_message(found));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(work.data_);
  match = {ends[0], ends[1]};
  return true;
}

std::size_t Regex::next_character(std::string_view text, std::size_t from) {
  return from + std::max<std::size_t>(1, utf8_length(text.substr(from)));
}

}  // namespace orthant
