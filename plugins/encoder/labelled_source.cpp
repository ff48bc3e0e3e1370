#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <orthant/catalogue.h>
#include <orthant/settings.h>

#include "masking.h"
#include "sources.h"

namespace orthant::encoder {
namespace {

// A row's classes: of the text, or of its tokens.
struct RowLabels {
  std::string where;  // file:line
  std::int32_t text = -1;
  std::vector<std::int32_t> tokens = {};
};

[[noreturn]] void wrong(const std::string& where, const std::string& what) {
  throw ConfigError(fmt::format("{}: {}", where, what));
}

std::int32_t class_in(const nlohmann::json& value, std::int64_t least, std::int64_t classes, const std::string& where) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < least || value.get<std::int64_t>() >= classes) {
    wrong(where, fmt::format("{} is no class: expected an integer from {} to {} (model.classes = {})", value.dump(),
                             least, classes - 1, classes));
  }
  return value.get<std::int32_t>();
}

// {"text": "...", "label": 3}, or "labels" with one for each token, -1 for none.
RowLabels labels_of(const std::string& line, std::int64_t classes, const std::string& where) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object()) {
    wrong(where, "expected a JSON object with a text, and \"label\" or \"labels\"");
  }
  RowLabels labels{.where = where};
  const bool of_text = row.contains("label"), of_tokens = row.contains("labels");
  if (of_text == of_tokens) {
    wrong(where, "expected one of \"label\", the text's class, and \"labels\", a class for each token");
  }
  if (of_text) {
    labels.text = class_in(row["label"], 0, classes, where);
    return labels;
  }
  if (!row["labels"].is_array()) {
    wrong(where, "\"labels\" must be a list with a class for each token, -1 for none");
  }
  for (const nlohmann::json& one : row["labels"]) {
    labels.tokens.push_back(class_in(one, -1, classes, where));
  }
  return labels;
}

std::vector<RowLabels> read_labels(const std::vector<std::string>& files, std::int64_t classes) {
  std::vector<RowLabels> rows;
  for (const std::string& file : files) {
    std::ifstream in(file);
    std::size_t number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string::npos) {
        rows.push_back(labels_of(line, classes, fmt::format("{}:{}", file, number)));
      }
    }
  }
  return rows;
}

class Labelled final : public Sequences {
 public:
  // text: a sequence for each row, in order.
  Labelled(std::unique_ptr<Sequences> text, std::vector<RowLabels> rows, const Settings& s)
      : text_(std::move(text)),
        rows_(std::move(rows)),
        frame_(frame_keys(s), text_->vocabulary()),
        types_(encoder_keys(s).token_types),
        most_(static_cast<std::size_t>(text_positions(s))) {
    const std::int64_t count = static_cast<std::int64_t>(rows_.size());
    const std::int64_t texts = text_->training_sequences().value_or(0);
    if (texts != count) {
      throw ConfigError(fmt::format("{} has {} rows, and {} texts of two tokens or more: each row needs one",
                                    text_->name(), count, texts));
    }
    const auto held_out = static_cast<std::int64_t>(static_cast<double>(count) * s.data.validation_fraction);
    train_ = count - held_out;
    validation_ = std::min(held_out, s.data.validation_sequences);
  }
  std::string name() const override { return text_->name(); }
  std::int64_t vocabulary() const override { return frame_.vocabulary; }
  std::optional<std::int64_t> training_sequences() const override { return train_; }
  Sequence training(std::int64_t i) const override { return row(i); }
  std::int64_t validation_sequences() const override { return validation_; }
  // Evenly spread over what is held out, the last rows.
  Sequence validation(std::int64_t i) const override {
    const std::int64_t held_out = static_cast<std::int64_t>(rows_.size()) - train_;
    return row(train_ + i * held_out / validation_);
  }
  std::vector<std::string> notes() const override { return text_->notes(); }

 private:
  Sequence row(std::int64_t i) const {
    const RowLabels& labels = rows_[static_cast<std::size_t>(i)];
    SequenceDocument document{.token = text_->training(i).at(0).token};
    document.label.assign(document.token.size(), -1);
    if (!labels.tokens.empty()) {
      if (labels.tokens.size() != document.token.size()) {
        wrong(labels.where, fmt::format("{} labels for {} tokens", labels.tokens.size(), document.token.size()));
      }
      document.label = labels.tokens;
    }
    if (document.token.size() > most_) {  // what is too long is cut
      document.token.resize(most_);
      document.label.resize(most_);
    }
    put_frame(document, frame_, types_);
    if (labels.text >= 0) {
      document.label.front() = labels.text;
    }
    return {document};
  }

  std::unique_ptr<Sequences> text_;
  std::vector<RowLabels> rows_;
  Frame frame_;
  std::int64_t types_, train_ = 0, validation_ = 0;
  std::size_t most_;
};

class LabelledSource final : public Source {
 public:
  std::vector<KindKey> keys() const override { return FrameKeys::keys().declared(); }
  bool reads_files() const override { return true; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override {
    const std::optional<std::int64_t> of_texts = text_source(s).vocabulary(s);
    return of_texts.has_value() ? std::optional(Frame(frame_keys(s), *of_texts).vocabulary) : std::nullopt;
  }
  std::unique_ptr<Sequences> open(const Settings& s) const override { return of(s, text_source(s).open(of_rows(s))); }
  std::unique_ptr<Sequences> peek(const Settings& s) const override { return of(s, text_source(s).peek(of_rows(s))); }

 private:
  static const Source& text_source(const Settings& s) { return s.catalogue->get<Source>("text"); }
  // A sequence for the text of each row, whole.
  static Settings of_rows(const Settings& s) {
    if (encoder_keys(s).classes == 0) {
      throw SettingError("model.classes",
                         "[model] classes: source \"labelled\" gives classes\nwrite how many there are");
    }
    Settings text = s;
    text.data.source = "text";
    text.data.documents = Documents::separate;
    text.data.text_key = s.data.text_key.empty() ? "text" : s.data.text_key;
    text.data.validation_fraction = 0;
    text.data.sequence_length = std::int64_t{1} << 30;
    text_positions(s);
    return text;
  }
  static std::unique_ptr<Sequences> of(const Settings& s, std::unique_ptr<Sequences> text) {
    if (text == nullptr) {
      return nullptr;
    }
    return std::make_unique<Labelled>(std::move(text), read_labels(s.data.path, encoder_keys(s).classes), s);
  }
};

}  // namespace

std::shared_ptr<const Source> make_labelled_source() {
  return std::make_shared<LabelledSource>();
}

}  // namespace orthant::encoder
