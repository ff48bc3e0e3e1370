#include "plugins/tokenizer/pre_tokenizer.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/utf8.h"
#include "plugins/tokenizer/normalizer.h"

namespace orthant {
namespace {

// What becomes of the matches of a pattern.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class Split final : public PreTokenizerStep {
 public:
  Split(Regex pattern, Behavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(PieceWork& work) const override {
    work.next.clear();
    for (const TextSpan piece : work.pieces) {
      const auto put = [&](TextSpan span) {
        if (span.end > span.begin) {
          work.next.push_back({piece.begin + span.begin, piece.begin + span.end});
        }
      };
      const std::string_view text = work.text.substr(piece.begin, piece.end - piece.begin);
      if (behavior_ == Behavior::isolated) {
        pattern_.parts(text, work.regex, [&](TextSpan span, bool) { put(span); });
        continue;
      }
      work.parts.clear();
      pattern_.parts(text, work.regex, [&](TextSpan span, bool is_match) {
        work.parts.push_back({span, is_match != invert_});
      });
      join(work.parts);
      for (const PieceWork::Part& part : work.parts) {
        put(part.span);
      }
    }
    work.pieces.swap(work.next);
  }

 private:
  void join(std::vector<PieceWork::Part>& parts) const {
    switch (behavior_) {
      case Behavior::isolated: return;
      case Behavior::removed: std::erase_if(parts, [](const PieceWork::Part& part) { return part.is_match; }); return;
      case Behavior::merged_with_previous:
        join_neighbours(parts, [](bool is_match, bool before) { return is_match && !before; });
        return;
      case Behavior::contiguous:
        join_neighbours(parts, [](bool is_match, bool before) { return is_match == before; });
        return;
      case Behavior::merged_with_next:
        std::reverse(parts.begin(), parts.end());
        join_neighbours(parts, [](bool is_match, bool before) { return is_match && !before; });
        std::reverse(parts.begin(), parts.end());
    }
  }

  // A part joins the one before it where joins(its is_match, that of the part before). Nothing counts as no match.
  template <class Joins>
  static void join_neighbours(std::vector<PieceWork::Part>& parts, const Joins& joins) {
    std::size_t kept = 0;
    bool before = false;
    for (const PieceWork::Part part : std::as_const(parts)) {
      if (kept > 0 && joins(part.is_match, before)) {
        TextSpan& span = parts[kept - 1].span;
        span = {std::min(span.begin, part.span.begin), std::max(span.end, part.span.end)};
      } else {
        parts[kept++].span = part.span;
      }
      before = part.is_match;
    }
    parts.resize(kept);
  }

  Regex pattern_;
  Behavior behavior_;
  bool invert_;
};

// Writes every piece anew: edit(piece's text, whether it begins the input, new text).
template <class Edit>
void rewrite(PieceWork& work, const Edit& edit) {
  std::string& text = work.buffers[1 - work.current];
  text.clear();
  work.next.clear();
  for (const TextSpan piece : work.pieces) {
    const std::size_t begin = text.size();
    edit(work.text.substr(piece.begin, piece.end - piece.begin), work.at_start && piece.begin == 0, text);
    work.next.push_back({begin, text.size()});
  }
  work.pieces.swap(work.next);
  work.current = 1 - work.current;
  work.text = text;
}

// Puts `prefix` before pieces that do not begin with it.
class Prefix final : public PreTokenizerStep {
 public:
  Prefix(std::string prefix, bool first_only) : prefix_(std::move(prefix)), first_only_(first_only) {}
  void apply(PieceWork& work) const override {
    rewrite(work, [&](std::string_view piece, bool first, std::string& text) {
      if (!piece.starts_with(prefix_) && (first || !first_only_)) {
        text += prefix_;
      }
      text += piece;
    });
  }

 private:
  std::string prefix_;
  bool first_only_;
};

class SpacesAs final : public PreTokenizerStep {
 public:
  explicit SpacesAs(std::string replacement) : replacement_(std::move(replacement)) {}
  void apply(PieceWork& work) const override {
    rewrite(work, [&](std::string_view piece, bool, std::string& text) {
      for (const char c : piece) {
        c == ' ' ? text.append(replacement_) : text.append(1, c);
      }
    });
  }

 private:
  std::string replacement_;
};

// \w of Rust's regular expressions, which the type Whitespace means.
constexpr const char* word_members_of_rust = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";

// GPT-2's words (Radford et al. 2019), which the type ByteLevel means.
constexpr const char* gpt2_words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Behavior behavior_of(const JsonField& field) {
  static constexpr std::pair<const char*, Behavior> names[] = {{"Removed", Behavior::removed},
                                                               {"Isolated", Behavior::isolated},
                                                               {"MergedWithPrevious", Behavior::merged_with_previous},
                                                               {"MergedWithNext", Behavior::merged_with_next},
                                                               {"Contiguous", Behavior::contiguous}};
  const std::string text = field.text();
  for (const auto& [name, behavior] : names) {
    if (text == name) {
      return behavior;
    }
  }
  field.refuse("the behavior \"{}\" is not implemented", text);
}

class Reader {
 public:
  PreTokenizer result;

  void read(const JsonField& field) {
    const std::string type = field.at("type").text();
    if (result.byte_level) {
      field.refuse("nothing is implemented behind \"ByteLevel\"");
    }
    if (type == "Sequence") {
      field.only({"type", "pretokenizers"});
      const JsonField list = field.at("pretokenizers");
      for (std::size_t i = 0; i < list.size(); ++i) {
        read(list.element(i));
      }
    } else if (type == "ByteLevel") {
      byte_level(field);
    } else if (type == "Split") {
      field.only({"type", "pattern", "behavior", "invert"});
      add<Split>(read_pattern(field.at("pattern")), behavior_of(field.at("behavior")), field.flag("invert", false));
    } else if (type == "Digits") {
      field.only({"type", "individual_digits"});
      add<Split>(Regex::pattern(R"(\p{N})"),
                 field.flag("individual_digits", false) ? Behavior::isolated : Behavior::contiguous);
    } else if (type == "Punctuation") {
      field.only({"type", "behavior"});
      const auto behavior = field.find("behavior");
      add<Split>(Regex::pattern(R"([\p{P}$+<=>^`|~])"), behavior ? behavior_of(*behavior) : Behavior::isolated);
    } else if (type == "Whitespace") {
      field.only({"type"});
      add<Split>(Regex::pattern(fmt::format("[{0}]+|[^{0}\\s]+", word_members_of_rust)), Behavior::removed, true);
    } else if (type == "WhitespaceSplit") {
      field.only({"type"});
      add<Split>(Regex::pattern(R"(\s)"), Behavior::removed);
    } else if (type == "Metaspace") {
      metaspace(field);
    } else {
      field.at("type").refuse("the pre-tokenizer \"{}\" is not implemented", type);
    }
  }

 private:
  template <class Step, class... Args>
  void add(Args&&... args) {
    result.steps.push_back(std::make_unique<Step>(std::forward<Args>(args)...));
  }

  void byte_level(const JsonField& field) {
    field.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // offsets are not asked for here
    if (field.flag("add_prefix_space", true)) {
      add<Prefix>(" ", false);
    }
    if (field.flag("use_regex", true)) {
      add<Split>(Regex::pattern(gpt2_words), Behavior::isolated);
    }
    result.byte_level = true;
  }

  void metaspace(const JsonField& field) {
    field.only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    const std::string replacement = field.text("replacement", "\u2581");
    const std::string scheme = field.text("prepend_scheme", field.flag("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      field.at("prepend_scheme").refuse("\"{}\" is not implemented", scheme);
    }
    if (!field.flag("add_prefix_space", true) && scheme != "never") {
      field.at("prepend_scheme").refuse("\"{}\" contradicts add_prefix_space = false", scheme);
    }
    if (replacement.empty() || utf8_length(replacement) != replacement.size()) {
      field.at(field.find("replacement") ? "replacement" : "str_rep").refuse("one character was expected");
    }
    add<SpacesAs>(replacement);
    if (scheme != "never") {
      add<Prefix>(replacement, scheme == "first");
    }
    if (field.flag("split", true)) {
      add<Split>(Regex::literal(replacement), Behavior::merged_with_next);
    }
  }
};

}  // namespace

PreTokenizer read_pre_tokenizer(const JsonField& field) {
  Reader reader;
  reader.read(field);
  return std::move(reader.result);
}

void cut_pieces(const PreTokenizer& pre_tokenizer, std::string_view text, bool at_start, PieceWork& work) {
  work.text = text;
  work.at_start = at_start;
  work.pieces.clear();
  if (!text.empty()) {
    work.pieces.push_back({0, text.size()});
  }
  for (const auto& step : pre_tokenizer.steps) {
    step->apply(work);
  }
}

}  // namespace orthant
