#include "plugins/tokenizer/chat/pair_source.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/data/chat_sources.h"
#include "plugins/tokenizer/chat/template_encoder.h"
#include "plugins/tokenizer/chat/template_lines.h"

namespace orthant {
namespace {

// The codes of what stands in `coded` from `begin` on become those of a rejected answer.
void mark_rejected(std::vector<std::int32_t>& coded, std::size_t begin, std::int32_t vocabulary) {
  std::for_each(coded.begin() + static_cast<std::ptrdiff_t>(begin), coded.end(),
                [&](std::int32_t& token) { token += 2 * vocabulary; });
}

class PairEncoder final : public Encoder {
 public:
  PairEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat)
      : vocabulary_(static_cast<std::int32_t>(tokenizer.vocabulary())), chat_(tokenizer, std::move(chat)) {}
  void encode(std::string_view line, std::vector<std::int32_t>& coded) override {
    const AnswerPair pair = read_pair(line);
    chat_.encode(pair.chosen, coded, pair.given);
    const std::size_t behind_chosen = coded.size();
    chat_.encode(pair.rejected, coded, pair.given);
    mark_rejected(coded, behind_chosen, vocabulary_);
  }

 private:
  std::int32_t vocabulary_;
  ChatEncoder chat_;
};

class TemplatePairEncoder final : public Encoder {
 public:
  TemplatePairEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ModelTemplate> chat)
      : vocabulary_(static_cast<std::int32_t>(tokenizer.vocabulary())),
        chat_(std::move(chat)),
        encoder_(tokenizer, chat_) {}
  void encode(std::string_view line, std::vector<std::int32_t>& coded) override {
    const TemplateRows rows = read_template_pair(line, *chat_);
    encoder_.encode(rows.chosen, coded);
    const std::size_t behind_chosen = coded.size();
    encoder_.encode(rows.rejected, coded);
    mark_rejected(coded, behind_chosen, vocabulary_);
  }

 private:
  std::int32_t vocabulary_;
  std::shared_ptr<const ModelTemplate> chat_;
  TemplateEncoder encoder_;
};

// "'a.jsonl', line 3": of the number of a line in all files. No line is without tokens.
std::string place_of_pair(const DataSettings& data, std::size_t line) {
  for (const std::string& path : data.path) {
    const TextFile file(path, template_lines());
    if (line < file.documents().size()) {
      return file.place(file.documents()[line]);
    }
    line -= file.documents().size();
  }
  return fmt::format("pair {}", line + 1);
}

bool has_answer(const SequenceDocument& document) {
  return std::any_of(document.label.begin(), document.label.end(), [](std::int32_t label) { return label >= 0; });
}

}  // namespace

PrepareOptions tokens_of_pairs(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                               std::filesystem::path output) {
  if (settings.data.chat_template == model_template_name) {
    return tokens_by_model_template(settings, std::move(tokenizer), std::move(output), "pairs", 4,
                                    [](const Tokenizer& by, std::shared_ptr<const ModelTemplate> chat) {
                                      return std::make_unique<TemplatePairEncoder>(by, std::move(chat));
                                    });
  }
  return tokens_by_template(settings, std::move(tokenizer), std::move(output), "pairs", 4,
                            [](const Tokenizer& by, std::shared_ptr<const ChatTemplate> chat) {
                              return std::make_unique<PairEncoder>(by, std::move(chat));
                            });
}

PairSource::PairSource(const std::vector<std::string>& coded, const Settings& settings, std::int64_t vocabulary)
    : name_(name_of_files(settings.data, coded.size())), vocabulary_(vocabulary), corpus_(Corpus::tokens(coded)) {
  const DataSettings& data = settings.data;
  const std::vector<Document> found = corpus_.documents("");
  std::int64_t shortened = 0, left_out = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    Pair pair = pair_of(found[i]);
    const std::int64_t whole = std::int64_t{pair.chosen_size} + pair.rejected_size;
    const bool too_long = cut(pair, data.sequence_length);
    if (too_long && data.too_long == TooLong::refuse) {
      throw SettingError(
          "data.too_long",
          fmt::format(
              "{}: the pair takes {} positions, both answers with the prompt before each, data.sequence_length is "
              "{}; make that longer, leave the row out, or write data.too_long = \"cut\" or \"leave_out\"",
              place_of_pair(data, i), whole, data.sequence_length));
    }
    if (too_long && data.too_long == TooLong::leave_out) {
      ++left_out;
      continue;
    }
    shortened += too_long ? 1 : 0;
    const bool chosen = has_answer(document(pair.chosen, pair.chosen_size));
    if (!chosen || !has_answer(document(pair.rejected, pair.rejected_size))) {
      throw SettingError(
          "data.sequence_length",
          fmt::format("{}: no token of the {} answer is left to compare within data.sequence_length = "
                      "{}, both answers with the prompt before each take {}; make that longer, or leave "
                      "the line out",
                      place_of_pair(data, i), chosen ? "rejected" : "chosen", data.sequence_length, whole));
    }
    pairs_.push_back(pair);
  }
  if (shortened > 0) {
    notes_.push_back(
        fmt::format("{} of {} pairs are longer than data.sequence_length = {} and are cut at the ends of their answers "
                    "(data.too_long)",
                    shortened, pairs_.size(), data.sequence_length));
  }
  if (left_out > 0) {
    notes_.push_back(
        fmt::format("{} of {} pairs are longer than data.sequence_length = {} and are left out (data.too_long)",
                    left_out, found.size(), data.sequence_length));
  }
  if (pairs_.empty()) {
    throw SettingError("data.sequence_length",
                       fmt::format("data.sequence_length: all {} pairs of {} are longer than {}; make that longer, or "
                                   "write data.too_long = \"cut\"",
                                   found.size(), name_, data.sequence_length));
  }
  hold_out(data);
}

// Those that begin in the last validation_fraction of all tokens, as documents are.
void PairSource::hold_out(const DataSettings& data) {
  const std::int64_t from =
      static_cast<std::int64_t>(std::floor(static_cast<double>(corpus_.size()) * (1.0 - data.validation_fraction)));
  train_ = std::count_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.chosen < from; });
  if (train_ == 0 && data.validation_fraction != 1) {
    throw ConfigError(fmt::format("data.path: {} has no pair to train on ({} pairs)", name_, pairs_.size()));
  }
  const std::int64_t held_out = static_cast<std::int64_t>(pairs_.size()) - train_;
  if (data.validation_fraction == 0 || data.validation_sequences == 0) {
    return;
  }
  if (held_out == 0) {
    throw ConfigError(
        fmt::format("data.validation_fraction: no pair begins in the last {} of {} ({} pairs); raise it, or 0 for none",
                    data.validation_fraction, name_, pairs_.size()));
  }
  measured_ = std::min(data.validation_sequences, held_out);
}

PairSource::Pair PairSource::pair_of(const Document& line) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(line.end - line.begin));
  corpus_.read(line.begin, tokens);
  const auto rejected =
      std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t token) { return token >= 2 * vocabulary_; });
  const std::int64_t chosen_tokens = rejected - tokens.begin();
  const auto positions = [](std::int64_t count) {
    return static_cast<std::int32_t>(std::max<std::int64_t>(count - 1, 0));
  };
  return {line.begin, line.begin + chosen_tokens, positions(chosen_tokens),
          positions(line.end - line.begin - chosen_tokens)};
}

bool PairSource::cut(Pair& pair, std::int64_t positions) {
  if (std::int64_t{pair.chosen_size} + pair.rejected_size <= positions) {
    return false;
  }
  const std::int64_t half = positions / 2, chosen = pair.chosen_size, rejected = pair.rejected_size;
  pair.chosen_size = static_cast<std::int32_t>(std::min(chosen, std::max(half, positions - rejected)));
  pair.rejected_size = static_cast<std::int32_t>(std::min(rejected, std::max(half, positions - chosen)));
  return true;
}

SequenceDocument PairSource::document(std::int64_t begin, std::int64_t size) const {
  if (size == 0) {
    return {};
  }
  std::vector<std::int32_t> coded(static_cast<std::size_t>(size) + 1);
  corpus_.read(begin, coded);
  SequenceDocument document;
  const std::int32_t rejected = static_cast<std::int32_t>(2 * vocabulary_);
  for (std::size_t t = 0; t < coded.size(); ++t) {
    const std::int32_t token = coded[t] % rejected;
    if (t > 0) {
      document.label.push_back(token % 2 == 1 ? token / 2 : -1);
    }
    if (t + 1 < coded.size()) {
      document.token.push_back(token / 2);
    }
  }
  return document;
}

Sequence PairSource::sequence(const Pair& pair) const {
  return {document(pair.chosen, pair.chosen_size), document(pair.rejected, pair.rejected_size)};
}

std::optional<DataSize> PairSource::size() const {
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < train_; ++i) {
    const Pair& pair = pairs_[static_cast<std::size_t>(i)];
    tokens += std::int64_t{pair.chosen_size} + pair.rejected_size;
  }
  return DataSize{.sequences = train_, .tokens = tokens};
}

Sequence PairSource::validation(std::int64_t i) const {
  const std::int64_t held_out = static_cast<std::int64_t>(pairs_.size()) - train_;
  return sequence(pairs_[static_cast<std::size_t>(train_ + i * held_out / measured_)]);
}

}  // namespace orthant
