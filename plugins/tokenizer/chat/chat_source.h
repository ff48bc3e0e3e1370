// ChatSource: conversations, of whose tokens only the answers are learnt.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <string>
#include <vector>

#include "core/data/data_size.h"
#include "core/data/document_source.h"
#include "core/data/prepare.h"

namespace orthant {

// How the lines of chat files become coded tokens (chat_template.h). output: as given. Errors: SettingError for a
// template that is not known, or that does not fit the tokenizer.
PrepareOptions tokens_of_chat(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                              std::filesystem::path output);

// Each conversation is a document: packed with others into a sequence, or alone in one. One that is longer than a
// sequence is cut at its end, refused or left out. A label is the next token where that is one of an answer, its end of
// turn among them, and -1 elsewhere.
class ChatSource final : public SizedSequences {
 public:
  // coded: the token files that tokens_of_chat makes, one for each of settings.data.path. Errors: ConfigError for a
  // conversation that is too long by data.too_long, by file and line, and where there is no answer to learn or to
  // measure.
  ChatSource(const std::vector<std::string>& coded, const Settings& settings, std::int64_t vocabulary);

  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::optional<std::int64_t> training_sequences() const override { return documents_->training_sequences(); }
  Sequence training(std::int64_t i) const override { return decoded(documents_->training(i)); }
  std::int64_t validation_sequences() const override { return documents_->validation_sequences(); }
  Sequence validation(std::int64_t i) const override { return decoded(documents_->validation(i)); }
  std::optional<DataSize> size() const override { return documents_->size(); }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  static Sequence decoded(Sequence sequence);
  void leave_out_long(std::vector<Document>& conversations, const DataSettings& data);

  std::string name_;
  std::int64_t vocabulary_;
  std::unique_ptr<DocumentSource> documents_;
  std::vector<std::string> notes_;
};

}  // namespace orthant
