#include "plugins/tokenizer/chat/lines_source.h"

#include <orthant/error.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "core/data/data_tokenizer.h"
#include "core/data/prepare.h"
#include "core/data/token_cache.h"
#include "plugins/tokenizer/chat/chat_source.h"
#include "plugins/tokenizer/chat/pair_source.h"
#include "plugins/tokenizer/chat/row_keys.h"

namespace orthant {
namespace {

using TokensOf = PrepareOptions (*)(const Settings&, std::shared_ptr<const Tokenizer>, std::filesystem::path);

// As `tokens_of` makes tokens, for an `Opened`.
template <class Opened, TokensOf tokens_of>
class LinesSource final : public Source {
 public:
  // check: what this source refuses of settings, before a file is read.
  explicit LinesSource(void (*check)(const DataSettings&)) : check_(check) {}
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    const PrepareOptions options = options_of(settings);
    return std::make_unique<Opened>(cached_tokens(options), settings, options.tokenizer->vocabulary());
  }
  std::unique_ptr<Sequences> peek(const Settings& settings) const override {
    const PrepareOptions options = options_of(settings);
    const std::optional<std::vector<std::string>> files = find_cached_tokens(options);
    return files ? std::make_unique<Opened>(*files, settings, options.tokenizer->vocabulary()) : nullptr;
  }
  std::optional<std::int64_t> vocabulary(const Settings& settings) const override {
    return tokenizer_of(settings.data)->vocabulary();
  }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }

 private:
  PrepareOptions options_of(const Settings& settings) const {
    check_(settings.data);
    PrepareOptions options = tokens_of(settings, fitting_tokenizer(settings), token_cache_folder(settings));
    options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    return options;
  }

  void (*check_)(const DataSettings&);
};

void check_conversations(const DataSettings& data) {
  require_files(data);
  if (data.documents == Documents::stream) {
    throw SettingError("data.documents",
                       "data.documents: conversations are no stream; write \"packed\" (several in a sequence, none "
                       "sees another) or \"separate\" (one in each)");
  }
}

}  // namespace

std::shared_ptr<const Source> lines_source(const std::string& name) {
  if (name == "chat") {
    return std::make_shared<LinesSource<ChatSource, tokens_of_chat>>(check_conversations);
  }
  require(name == "pairs", "the module \"tokenizer\" has no source \"{}\"", name);
  return std::make_shared<LinesSource<PairSource, tokens_of_pairs>>(require_files);
}

std::vector<std::string> notes_of_lines(const Settings& settings) {
  const DataSettings& data = settings.data;
  const RowKind kind = data.source == "pairs" ? RowKind::pair : RowKind::conversation;
  std::vector<std::string> notes;
  for (const std::vector<std::string>* paths : {&data.path, &data.validation_path}) {
    for (std::string& note : notes_of_row_keys(*paths, kind)) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

}  // namespace orthant
