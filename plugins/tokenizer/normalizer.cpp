#include "plugins/tokenizer/normalizer.h"

#include <orthant/error.h>
#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "core/base/utf8.h"

namespace orthant {
namespace {

// Unicode's four forms, by utf8proc.
class Form final : public NormalizerStep {
 public:
  explicit Form(int options, bool keeps_latin) : options_(options), keeps_latin_(keeps_latin) {}

  void apply(std::string& text, NormalizerWork& work) const override {
    // NFC changes nothing below U+0300, which begins with the byte CC, and no form changes ASCII.
    const unsigned char first_changed = keeps_latin_ ? 0xcc : 0x80;
    if (std::none_of(text.begin(), text.end(),
                     [&](char c) { return static_cast<unsigned char>(c) >= first_changed; })) {
      return;
    }
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto size = static_cast<utf8proc_ssize_t>(text.size());
    const auto options = static_cast<utf8proc_option_t>(options_);
    work.codes.resize(text.size() + 1);
    utf8proc_ssize_t count =
        utf8proc_decompose(bytes, size, work.codes.data(), static_cast<utf8proc_ssize_t>(text.size()), options);
    if (count > static_cast<utf8proc_ssize_t>(text.size())) {  // a few characters become more than they have bytes
      work.codes.resize(static_cast<std::size_t>(count) + 1);
      count = utf8proc_decompose(bytes, size, work.codes.data(), count, options);
    }
    require(count >= 0, "a text of {} bytes cannot be normalized: {}", text.size(), utf8proc_errmsg(count));
    const std::size_t bytes_in = text.size();
    text.clear();
    // utf8proc drops U+11A7 behind a syllable, as if it were the final consonant that is none. It composes with
    // nothing.
    const auto begin = work.codes.begin(), end = begin + count;
    for (auto part = begin; part != end;) {
      const auto next = std::find(part + 1, end, no_final);
      append_composed(text, {&*part, static_cast<std::size_t>(next - part)}, options, bytes_in);
      part = next;
    }
  }

 private:
  static constexpr utf8proc_int32_t no_final = 0x11a7;

  static void append_composed(std::string& text, std::span<utf8proc_int32_t> codes, utf8proc_option_t options,
                              std::size_t bytes_in) {
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
    require(count >= 0, "a text of {} bytes cannot be normalized: {}", bytes_in, utf8proc_errmsg(count));
    for (const utf8proc_int32_t code : codes.first(static_cast<std::size_t>(count))) {
      append_utf8(text, static_cast<char32_t>(code));
    }
  }

  int options_;
  bool keeps_latin_;
};

class Lowercase final : public NormalizerStep {
 public:
  void apply(std::string& text, NormalizerWork& work) const override {
    work.other.swap(text);
    text.clear();
    for (std::size_t at = 0; at < work.other.size();) {
      const std::string_view rest = std::string_view(work.other).substr(at);
      const char32_t code = utf8_code(rest);
      if (code == 0x130) {  // the one capital whose small form is two characters
        text += "i\u0307";
      } else {
        append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
      }
      at += utf8_length(rest);
    }
  }
};

class Prepend final : public NormalizerStep {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, NormalizerWork&) const override {
    if (!text.empty()) {
      text.insert(0, prefix_);
    }
  }

 private:
  std::string prefix_;
};

class Replace final : public NormalizerStep {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, NormalizerWork& work) const override {
    work.other.swap(text);
    text.clear();
    pattern_.parts(work.other, work.regex, [&](TextSpan part, bool is_match) {
      is_match ? text.append(content_) : text.append(work.other, part.begin, part.end - part.begin);
      work.growth.require_room(text.size(), "normalizer");
    });
  }

 private:
  Regex pattern_;
  std::string content_;
};

class Strip final : public NormalizerStep {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, NormalizerWork&) const override {
    while (right_ && !text.empty()) {
      const std::size_t last = last_character(text);
      if (!is_white_space(utf8_code(std::string_view(text).substr(last)))) {
        break;
      }
      text.resize(last);
    }
    std::size_t begin = 0;
    while (left_ && begin < text.size() && is_white_space(utf8_code(std::string_view(text).substr(begin)))) {
      begin += utf8_length(std::string_view(text).substr(begin));
    }
    text.erase(0, begin);
  }

 private:
  bool left_, right_;
};

void add_steps(Normalizer& steps, const JsonField& field) {
  const std::string type = field.at("type").text();
  if (type == "Sequence") {
    field.only({"type", "normalizers"});
    const JsonField list = field.at("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) {
      add_steps(steps, list.element(i));
    }
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    field.only({"type"});
    const bool composed = type.back() == 'C', compatible = type.size() == 4;
    steps.push_back(std::make_unique<Form>(
        UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0),
        composed && !compatible));
  } else if (type == "Lowercase") {
    field.only({"type"});
    steps.push_back(std::make_unique<Lowercase>());
  } else if (type == "Prepend") {
    field.only({"type", "prepend"});
    steps.push_back(std::make_unique<Prepend>(field.at("prepend").text()));
  } else if (type == "Replace") {
    field.only({"type", "pattern", "content"});
    steps.push_back(std::make_unique<Replace>(read_pattern(field.at("pattern")), field.at("content").text()));
  } else if (type == "Strip") {
    field.only({"type", "strip_left", "strip_right"});
    steps.push_back(std::make_unique<Strip>(field.at("strip_left").flag(), field.at("strip_right").flag()));
  } else {
    field.at("type").refuse("the normalizer \"{}\" is not implemented", type);
  }
}

}  // namespace

void TextGrowth::require_room(std::size_t bytes, const char* steps) const {
  constexpr std::size_t times = 64, short_text = 4096;
  const std::size_t most = times * std::max(before_, short_text);
  require(bytes <= most,
          "tokenizer.json: its {} makes more than {} bytes of a text of {}: its steps multiply each other (Replace)",
          steps, most, before_);
}

Normalizer read_normalizer(const JsonField& field) {
  Normalizer steps;
  add_steps(steps, field);
  return steps;
}

void normalize(const Normalizer& normalizer, std::string& text, NormalizerWork& work) {
  work.growth = TextGrowth(text.size());
  for (const auto& step : normalizer) {
    step->apply(text, work);
    work.growth.require_room(text.size(), "normalizer");
  }
}

Regex read_pattern(const JsonField& field) {
  field.only({"String", "Regex"});
  try {
    if (const auto literal = field.find("String")) {
      return Regex::literal(literal->text());
    }
    return Regex::pattern(field.at("Regex").text());
  } catch (const ConfigError& error) {
    field.refuse("{}", error.what());
  }
}

}  // namespace orthant
