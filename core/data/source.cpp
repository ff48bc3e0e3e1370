#include "core/data/source.h"

#include <orthant/error.h>

#include "core/data/corpus.h"
#include "core/data/document_source.h"
#include "core/data/stream_source.h"
#include "core/data/synthetic_source.h"

namespace orthant {
namespace {

Corpus open_corpus(const Settings& settings) {
  const DataSettings& data = settings.data;
  if (data.path.empty()) {
    throw ConfigError("data.path: name at least one file, or use data.source = \"synthetic\"");
  }
  if (data.source == DataSource::text && data.tokenizer != "bytes") {
    throw ConfigError(
        fmt::format("data.tokenizer: text is read with tokenizer \"bytes\", found \"{}\"; for another "
                    "tokenizer make token files and use data.source = \"tokens\"",
                    data.tokenizer));
  }
  Corpus corpus = data.source == DataSource::text ? Corpus::text(data.path) : Corpus::tokens(data.path);
  if (settings.model.vocab_size < corpus.vocabulary()) {
    throw ConfigError(
        fmt::format("model.vocab_size: {} is too small for {}, whose tokens are 0 to {}; write {} or more",
                    settings.model.vocab_size, corpus.name(), corpus.vocabulary() - 1, corpus.vocabulary()));
  }
  return corpus;
}

}  // namespace

std::unique_ptr<BatchSource> make_batch_source(const Settings& settings) {
  const DataSettings& data = settings.data;
  if (data.sequence_length < 1) {
    throw ConfigError(fmt::format("data.sequence_length: {} is not positive", data.sequence_length));
  }
  if (!(data.validation_fraction >= 0 && data.validation_fraction < 1)) {
    throw ConfigError(fmt::format("data.validation_fraction: {} is not in [0, 1)", data.validation_fraction));
  }
  if (data.source == DataSource::synthetic) {
    return std::make_unique<SyntheticSource>(settings);
  }
  Corpus corpus = open_corpus(settings);
  if (data.documents == Documents::stream) {
    return std::make_unique<StreamSource>(std::move(corpus), settings);
  }
  return std::make_unique<DocumentSource>(std::move(corpus), settings);
}

double synthetic_entropy(const Settings& settings) {
  return SyntheticSource(settings).entropy();
}

}  // namespace orthant
