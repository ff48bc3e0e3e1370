#include "plugins/tokenizer/chat/chat_source.h"

#include <orthant/error.h>

#include <algorithm>
#include <utility>

#include "core/data/chat_sources.h"
#include "core/data/token_file.h"
#include "plugins/tokenizer/chat/template_encoder.h"
#include "plugins/tokenizer/chat/template_lines.h"

namespace orthant {
namespace {

// A line of a chat file as coded tokens.
class LineEncoder final : public Encoder {
 public:
  LineEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat)
      : chat_(tokenizer, std::move(chat)) {}
  void encode(std::string_view line, std::vector<std::int32_t>& coded) override {
    const std::size_t before = coded.size();
    chat_.encode(read_conversation(line), coded);
    if (coded.size() == before) {
      throw ConfigError("the conversation has no token: its messages are empty");
    }
  }

 private:
  ChatEncoder chat_;
};

// Positions have a label each, so one token more than positions fits.
bool fits(const Document& conversation, const DataSettings& data) {
  return conversation.end - conversation.begin <= data.sequence_length + 1;
}

// Refuses the first conversation that does not fit. Lines and documents are as many: no conversation is empty.
void require_short(const std::vector<std::string>& coded, const DataSettings& data) {
  for (std::size_t f = 0; f < coded.size(); ++f) {
    const std::vector<Document> documents = read_token_file(MappedFile(coded[f])).documents;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      if (!fits(documents[i], data)) {
        const TextFile file(data.path[f], template_lines());
        throw SettingError(
            "data.too_long",
            fmt::format("{}: the conversation has {} tokens, data.sequence_length is {}; make that longer, leave the "
                        "row out, or write data.too_long = \"cut\" or \"leave_out\"",
                        file.place(file.documents().at(i)), documents[i].end - documents[i].begin,
                        data.sequence_length));
      }
    }
  }
}

}  // namespace

PrepareOptions tokens_of_chat(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                              std::filesystem::path output) {
  if (settings.data.chat_template == model_template_name) {
    return tokens_by_model_template(settings, std::move(tokenizer), std::move(output), "chat", 2,
                                    [](const Tokenizer& by, std::shared_ptr<const ModelTemplate> chat) {
                                      return std::make_unique<TemplateEncoder>(by, std::move(chat));
                                    });
  }
  return tokens_by_template(settings, std::move(tokenizer), std::move(output), "chat", 2,
                            [](const Tokenizer& by, std::shared_ptr<const ChatTemplate> chat) {
                              return std::make_unique<LineEncoder>(by, std::move(chat));
                            });
}

ChatSource::ChatSource(const std::vector<std::string>& coded, const Settings& settings, std::int64_t vocabulary)
    : name_(name_of_files(settings.data, coded.size())), vocabulary_(vocabulary) {
  const DataSettings& data = settings.data;
  if (data.too_long == TooLong::refuse) {
    require_short(coded, data);
  }
  Corpus corpus = Corpus::tokens(coded);
  std::vector<Document> documents = corpus.documents("");
  if (data.too_long == TooLong::leave_out) {
    leave_out_long(documents, data);
  }
  std::int64_t cut = 0, silent = 0, answers = 0;
  std::vector<std::int32_t> tokens;
  for (Document& d : documents) {
    cut += fits(d, data) ? 0 : 1;
    d.end = std::min(d.end, d.begin + data.sequence_length + 1);  // one more, as a label
    tokens.resize(static_cast<std::size_t>(d.end - d.begin));
    corpus.read(d.begin, tokens);
    const auto learnt = std::count_if(tokens.begin() + 1, tokens.end(), [](std::int32_t t) { return t % 2 == 1; });
    answers += learnt;
    silent += learnt == 0 ? 1 : 0;
  }
  if (answers == 0) {
    throw ConfigError(fmt::format("data.path: none of the {} conversations of {} has an answer within {} tokens",
                                  documents.size(), name_, data.sequence_length));
  }
  if (cut > 0) {
    notes_.push_back(
        fmt::format("{} of {} conversations are longer than data.sequence_length = {} and are cut at "
                    "their end (data.too_long)",
                    cut, documents.size(), data.sequence_length));
  }
  if (silent > 0) {
    notes_.push_back(fmt::format("{} of {} conversations have no token of an answer: nothing is learnt of them", silent,
                                 documents.size()));
  }
  documents_ = std::make_unique<DocumentSource>(std::move(corpus), documents, settings);
  bool measured = data.validation_fraction == 1 || documents_->validation_sequences() == 0;
  for (std::int64_t i = 0; !measured && i < documents_->validation_sequences(); ++i) {
    for (const SequenceDocument& document : validation(i)) {
      measured = measured || std::any_of(document.label.begin(), document.label.end(), [](auto l) { return l >= 0; });
    }
  }
  if (!measured) {
    throw ConfigError(
        fmt::format("data.validation_fraction: the conversations that are held out of {} have no answer "
                    "to measure; raise it, or 0 for none",
                    name_));
  }
}

void ChatSource::leave_out_long(std::vector<Document>& conversations, const DataSettings& data) {
  const std::size_t all = conversations.size();
  std::erase_if(conversations, [&](const Document& conversation) { return !fits(conversation, data); });
  const std::size_t left_out = all - conversations.size();
  if (conversations.empty()) {
    throw SettingError("data.sequence_length",
                       fmt::format("data.sequence_length: all {} conversations of {} are longer than {}; make that "
                                   "longer, or write data.too_long = \"cut\"",
                                   all, name_, data.sequence_length));
  }
  if (left_out > 0) {
    notes_.push_back(
        fmt::format("{} of {} conversations are longer than data.sequence_length = {} and are left out (data.too_long)",
                    left_out, all, data.sequence_length));
  }
}

Sequence ChatSource::decoded(Sequence sequence) {
  for (SequenceDocument& document : sequence) {
    for (std::size_t i = 0; i < document.token.size(); ++i) {
      document.token[i] /= 2;
      const std::int32_t next = document.label[i];
      document.label[i] = next >= 0 && next % 2 == 1 ? next / 2 : -1;
    }
  }
  return sequence;
}

}  // namespace orthant
