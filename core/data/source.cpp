#include "core/data/source.h"

#include <orthant/error.h>

#include "core/data/corpus.h"
#include "core/data/dealt_source.h"
#include "core/data/document_source.h"
#include "core/data/stream_source.h"
#include "core/data/synthetic_source.h"

namespace orthant {
namespace {

std::unique_ptr<Sequences> sequences_of(Corpus corpus, const Settings& settings) {
  if (settings.data.documents == Documents::stream) {
    return std::make_unique<StreamSource>(std::move(corpus), settings);
  }
  return std::make_unique<DocumentSource>(std::move(corpus), settings);
}

void require_files(const DataSettings& data) {
  if (data.path.empty()) {
    throw ConfigError("data.path: name at least one file, or use data.source = \"synthetic\"");
  }
}

class TextSource final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    const DataSettings& data = settings.data;
    require_files(data);
    if (data.tokenizer != "bytes") {
      throw ConfigError(
          fmt::format("data.tokenizer: text is read with tokenizer \"bytes\", found \"{}\"; for another "
                      "tokenizer make token files and use data.source = \"tokens\"",
                      data.tokenizer));
    }
    if (data.documents != Documents::stream && data.separator.empty()) {
      throw ConfigError("data.separator: documents need a separator between them, it is empty");
    }
    return sequences_of(Corpus::text(data.path), settings);
  }
  bool reads_files() const override { return true; }
};

class TokenSource final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    require_files(settings.data);
    return sequences_of(Corpus::tokens(settings.data.path), settings);
  }
  bool reads_files() const override { return true; }
};

class SyntheticKind final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    return std::make_unique<SyntheticSource>(settings);
  }
};

}  // namespace

void add_sources(Catalogue& catalogue) {
  catalogue.add<Source>("text", "Text files, a token a byte.", std::make_shared<TextSource>());
  catalogue.add<Source>("tokens", "Token files.", std::make_shared<TokenSource>());
  catalogue.add<Source>("synthetic", "A Markov chain of known entropy.", std::make_shared<SyntheticKind>());
}

std::unique_ptr<BatchSource> make_batch_source(std::unique_ptr<Sequences> sequences, const Settings& settings) {
  if (settings.model.vocab_size < sequences->vocabulary()) {
    throw ConfigError(fmt::format(
        "model.vocab_size: {} is too small for {}, whose tokens are 0 to {}; write {} or more",
        settings.model.vocab_size, sequences->name(), sequences->vocabulary() - 1, sequences->vocabulary()));
  }
  return std::make_unique<DealtSource>(std::move(sequences), settings);
}

std::unique_ptr<BatchSource> make_batch_source(const Settings& settings) {
  const DataSettings& data = settings.data;
  if (data.sequence_length < 1) {
    throw ConfigError(fmt::format("data.sequence_length: {} is not positive", data.sequence_length));
  }
  if (!(data.validation_fraction >= 0 && data.validation_fraction < 1)) {
    throw ConfigError(fmt::format("data.validation_fraction: {} is not in [0, 1)", data.validation_fraction));
  }
  return make_batch_source(settings.catalogue->get<Source>(data.source).open(settings), settings);
}

double synthetic_entropy(const Settings& settings) {
  return SyntheticSource(settings).entropy();
}

}  // namespace orthant
