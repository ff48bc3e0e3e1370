#include "core/data/source.h"

#include <orthant/error.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "core/arch/links.h"
#include "core/data/binary_files.h"
#include "core/data/blended_source.h"
#include "core/data/chat_sources.h"
#include "core/data/corpus.h"
#include "core/data/data_tokenizer.h"
#include "core/data/dealt_source.h"
#include "core/data/document_source.h"
#include "core/data/megatron_file.h"
#include "core/data/stream_source.h"
#include "core/data/synthetic_source.h"
#include "core/data/token_cache.h"
#include "core/data/validation_sets.h"

namespace orthant {
namespace {

std::unique_ptr<Sequences> sequences_of(Corpus corpus, const Settings& settings) {
  if (settings.data.documents == Documents::stream) {
    return std::make_unique<StreamSource>(std::move(corpus), settings);
  }
  return std::make_unique<DocumentSource>(std::move(corpus), settings);
}

int processors() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void require_shares(const DataSettings& data) {
  if (data.sequence_length < 1) {
    throw ConfigError(fmt::format("data.sequence_length: {} is not positive", data.sequence_length));
  }
  if (!(data.validation_fraction >= 0 && data.validation_fraction < 1)) {
    throw ConfigError(fmt::format("data.validation_fraction: {} is not in [0, 1)", data.validation_fraction));
  }
}

class TextSource final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    require_texts(settings.data);
    if (reads_bytes(settings.data)) {
      return sequences_of(Corpus::text(settings.data.path), settings);
    }
    return sequences_of(Corpus::tokens(cached_tokens(tokens_of_text(settings))), settings);
  }
  std::unique_ptr<Sequences> peek(const Settings& settings) const override {
    if (reads_bytes(settings.data)) {
      return open(settings);
    }
    require_texts(settings.data);
    const PrepareOptions options = tokens_of_text(settings);
    const std::optional<std::vector<std::string>> files = find_cached_tokens(options);
    return files ? sequences_of(Corpus::tokens(*files), settings) : nullptr;
  }
  std::optional<std::int64_t> vocabulary(const Settings& settings) const override {
    return tokenizer_of(settings.data)->vocabulary();
  }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }

 private:
  // As they stand: a key of JSON rows asks for the texts in them.
  static bool reads_bytes(const DataSettings& data) { return data.tokenizer == "bytes" && data.text_key.empty(); }
  static void require_texts(const DataSettings& data) {
    require_files(data);
    refuse_token_files(data.path);
    if (data.documents != Documents::stream && data.separator.empty()) {
      throw ConfigError("data.separator: documents need a separator between them, it is empty");
    }
  }
  // A stream has the separators as text, as one of bytes has.
  static PrepareOptions tokens_of_text(const Settings& settings) {
    const DataSettings& data = settings.data;
    const std::shared_ptr<const Tokenizer> tokenizer = fitting_tokenizer(settings);
    return {.files = data.path,
            .text = {.separator = data.documents == Documents::stream ? "" : data.separator, .text_key = data.text_key},
            .tokenizer = tokenizer,
            .threads = processors(),
            .output = token_cache_folder(settings)};
  }
};

class TokenSource final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    return sequences_of(corpus(settings), settings);
  }
  std::optional<std::int64_t> vocabulary(const Settings& settings) const override {
    const DataSettings& data = settings.data;
    require_files(data);
    if (data.tokenizer != "bytes") {
      return tokenizer_of(data)->vocabulary();
    }
    if (std::any_of(data.path.begin(), data.path.end(), &is_megatron)) {
      throw SettingError("model.vocab_size",
                         "[model] vocab_size: 0 leaves it to the data, and Megatron's files do not say; write it, or "
                         "name their data.tokenizer");
    }
    return Corpus::tokens(data.path).vocabulary();
  }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }

 private:
  // A tokenizer that is named must be the one that made the files.
  static Corpus corpus(const Settings& settings) {
    const DataSettings& data = settings.data;
    require_files(data);
    if (data.tokenizer == "bytes") {
      return Corpus::tokens(data.path, settings.model.vocab_size);
    }
    const std::shared_ptr<const Tokenizer> named = tokenizer_of(data);
    Corpus tokens = Corpus::tokens(data.path, named->vocabulary());
    const std::uint64_t made_by = tokens.tokenizer().value_or(named->hash());
    if (named->hash() != made_by) {
      throw SettingError(
          "data.tokenizer",
          fmt::format("data.tokenizer: {} was made by the tokenizer {:016x}{}, '{}' is {:016x}; name the "
                      "one that made it, or none",
                      tokens.name(), made_by, made_by == 0 ? " (bytes)" : "", named->name(), named->hash()));
    }
    return tokens;
  }
};

class SyntheticKind final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    return std::make_unique<SyntheticSource>(settings);
  }
};

// For commands that read a model and no data: of the token spaces of any model.
constexpr const char* no_source = "none";
class NoSource final : public Source {
 public:
  std::unique_ptr<Sequences> open(const Settings&) const override {
    throw SettingError("data.source", "[data] source: \"none\" is for commands that read no data\nname another one");
  }
  std::vector<std::string> spaces(const Settings& settings) const override {
    std::vector<std::string> names;
    for (const Space& space : settings.data.source == no_source ? spaces_of(settings) : std::vector<Space>()) {
      names.push_back(space.name);
    }
    return names;
  }
};

std::unique_ptr<BatchSource> dealt(std::unique_ptr<Sequences> sequences, ValidationSets sets,
                                   const Settings& settings) {
  require_vocabulary(settings, sequences->name(), sequences->vocabulary());
  return std::make_unique<DealtSource>(std::move(sequences), std::move(sets), settings);
}

// Nothing where a file would have to be written, and may not.
std::unique_ptr<Sequences> open_sequences(const Settings& settings, bool may_write) {
  require_shares(settings.data);
  const Source& source = settings.catalogue->get<Source>(settings.data.source);
  if (source.reads_files() && !settings.data.blend.empty()) {
    tokenizer_hash(settings);  // one tokenizer made all of token files
    return BlendedSource::open(source, settings, may_write);
  }
  std::unique_ptr<Sequences> sequences = may_write ? source.open(settings) : source.peek(settings);
  if (may_write && sequences == nullptr) {
    throw SettingError("data.source", fmt::format("source '{}' opens nothing", settings.data.source));
  }
  return sequences;
}

}  // namespace

void add_sources(Catalogue& catalogue) {
  catalogue.add<Source>("text", "Text files, as data.tokenizer makes tokens of them.", std::make_shared<TextSource>());
  catalogue.add<Source>("tokens", "Token files.", std::make_shared<TokenSource>());
  add_chat_sources(catalogue);
  catalogue.add<Source>("synthetic", "A Markov chain of known entropy.", std::make_shared<SyntheticKind>());
  catalogue.add<Source>(no_source, "No data, for commands that read none.", std::make_shared<NoSource>());
}

std::unique_ptr<BatchSource> make_batch_source(std::unique_ptr<Sequences> sequences, const Settings& settings) {
  return dealt(std::move(sequences), ValidationSets(settings, true), settings);
}

std::unique_ptr<BatchSource> make_batch_source(const Settings& settings) {
  return make_batch_source(open_sequences(settings, true), settings);
}

std::vector<std::string> check_batch_source(const Settings& settings, bool may_write) {
  std::unique_ptr<Sequences> sequences = open_sequences(settings, may_write);
  ValidationSets sets(settings, may_write);
  std::vector<std::string> notes = sequences == nullptr ? std::vector<std::string>() : sequences->notes();
  for (std::string& note : sets.notes()) {
    notes.push_back(std::move(note));
  }
  if (settings.data.source == "text") {
    for (const std::vector<std::string>* paths : {&settings.data.path, &settings.data.validation_path}) {
      for (std::string& note : notes_of_texts(*paths, settings.data)) {
        notes.push_back(std::move(note));
      }
    }
  }
  if (sequences != nullptr) {
    dealt(std::move(sequences), std::move(sets), settings);
  }
  return notes;
}

std::optional<OpenedSize> data_size(const Settings& settings, bool may_write) {
  const std::unique_ptr<Sequences> sequences = open_sequences(settings, may_write);
  return sequences == nullptr ? std::nullopt : std::optional(OpenedSize{sequences->name(), size_of(*sequences)});
}

std::optional<std::uint64_t> tokenizer_hash(const Settings& settings) {
  const DataSettings& data = settings.data;
  if (data.source == "tokens") {
    std::vector<std::string> own = data.path;
    std::erase_if(own, &is_megatron);  // these do not say
    return own.empty() ? std::nullopt : Corpus::tokens(own).tokenizer();
  }
  const bool reads_text = settings.catalogue->get<Source>(data.source).reads_files();
  return reads_text ? std::optional(tokenizer_of(data)->hash()) : std::nullopt;
}

double synthetic_entropy(const Settings& settings) {
  return SyntheticSource(settings).entropy();
}

}  // namespace orthant
