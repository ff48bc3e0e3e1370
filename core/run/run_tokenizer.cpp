#include "core/run/run_tokenizer.h"

#include <orthant/error.h>
#include <orthant/source.h>

#include <optional>

#include "core/checkpoint/disk.h"
#include "core/data/chat_sources.h"
#include "core/data/source.h"
#include "core/run/run_text_rules.h"
#include "core/run/starting_weights.h"
#include "core/tokenizer/tokenizer_module.h"

namespace orthant {

std::shared_ptr<const Tokenizer> tokenizer_to_keep(const Settings& settings) {
  const bool none =
      settings.data.tokenizer == "bytes" || !settings.catalogue->get<Source>(settings.data.source).reads_files();
  return none ? nullptr : load_tokenizer(settings.data.tokenizer);
}

void keep_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& run) {
  const std::filesystem::path folder = run / tokenizer_folder;
  const Disk disk;
  disk.create_folder(folder);
  for (const TokenizerFile& file : tokenizer.files()) {
    disk.replace_file(folder / file.name, file.bytes);
  }
  disk.sync_folder(folder);
}

void require_same_tokenizer(const Settings& settings, const std::filesystem::path& run) {
  const std::filesystem::path folder = run / tokenizer_folder;
  const std::optional<std::uint64_t> kept = tokenizer_hash_in(folder), now = tokenizer_hash(settings);
  if (kept.has_value() && now.has_value() && *now != *kept) {
    throw ConfigError(
        fmt::format("data.tokenizer: the run was trained with the tokenizer {:016x}, which is kept in '{}', the data "
                    "have {:016x} now{}: its ids mean other texts; give data.tokenizer = \"{}\" or start another run",
                    *kept, folder.string(), *now, *now == 0 ? " (bytes)" : "", folder.string()));
  }
}

namespace {

// Of the model of a run: its own tokenizer, or that of the published model it came from. No hash: it has neither.
struct KeptTokenizer {
  std::filesystem::path folder;
  std::optional<std::uint64_t> hash;
};

KeptTokenizer kept_by(const std::filesystem::path& run) {
  KeptTokenizer kept{run / tokenizer_folder, tokenizer_hash_in(run / tokenizer_folder)};
  if (!kept.hash.has_value()) {
    kept = {run / pretrained_folder, tokenizer_hash_in(run / pretrained_folder)};
  }
  return kept;
}

bool same_token(const Tokenizer& a, const Tokenizer& b, std::int32_t id) {
  try {
    const std::vector one = {id};
    return a.decode(one) == b.decode(one);
  } catch (const Error&) {  // no token of one of them
    return false;
  }
}

}  // namespace

void require_tokenizer_of_teacher(const Settings& settings, const std::filesystem::path& run) {
  const KeptTokenizer theirs = kept_by(run);
  const std::optional<std::uint64_t> ours = theirs.hash.has_value() ? tokenizer_hash(settings) : std::nullopt;
  if (ours.has_value() && *ours != *theirs.hash) {
    throw ConfigError(fmt::format(
        "{}: its tokenizer is {:016x}, the data are of {:016x}{}: their ids mean other texts; give "
        "data.tokenizer = \"{}\"",
        teacher_of(settings).key, *theirs.hash, *ours, *ours == 0 ? " (bytes)" : "", theirs.folder.string()));
  }
}

TextRules rules_to_keep(const Settings& settings, const std::filesystem::path& from) {
  TextRules rules = from.empty() ? TextRules() : text_rules_in(from);
  std::erase_if(rules.end_ids, [&](std::int32_t id) { return id >= settings.model.vocab_size; });
  if (!settings.catalogue->get<Source>(settings.data.source).reads_files()) {
    return rules;
  }
  const KeptTokenizer theirs = from.empty() ? KeptTokenizer() : kept_by(from);
  const std::optional<std::uint64_t> ours = theirs.hash.has_value() ? tokenizer_hash(settings) : std::nullopt;
  const bool other = ours.has_value() && *ours != *theirs.hash;
  const bool by_model = reads_by_template(settings) && settings.data.chat_template == model_template_name;
  const bool by_template = reads_by_template(settings) && !by_model;
  if (by_model) {
    rules.chat_template.clear();  // of an earlier run: the one beside the tokenizer holds now
  }
  if (!other && !by_template) {
    return rules;
  }
  const auto tokenizer = load_tokenizer(settings.data.tokenizer);
  if (other) {
    const auto before = load_tokenizer(theirs.folder.string());
    std::erase_if(rules.end_ids, [&](std::int32_t id) { return !same_token(*before, *tokenizer, id); });
  }
  return by_template ? joined(std::move(rules),
                              tokenizer_module().rules_of_chat(settings.data.chat_template, *tokenizer), *tokenizer)
                     : rules;
}

std::string other_tokenizer(const Settings& settings, const std::filesystem::path& run) {
  const KeptTokenizer theirs = kept_by(run);
  const std::optional<std::uint64_t> ours = theirs.hash.has_value() ? tokenizer_hash(settings) : std::nullopt;
  return !ours.has_value() || *ours == *theirs.hash
             ? ""
             : fmt::format(
                   "train.from: the weights are of the tokenizer {:016x}, the data of {:016x}{}: the same ids "
                   "mean other texts, unless one extends the other; data.tokenizer = \"{}\" is theirs",
                   *theirs.hash, *ours, *ours == 0 ? " (bytes)" : "", theirs.folder.string());
}

}  // namespace orthant
