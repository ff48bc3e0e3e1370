#include "core/data/validation_sets.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/arch/links.h"
#include "core/data/batch_builder.h"
#include "core/data/source.h"

namespace orthant {
namespace {

constexpr const char* key = "data.validation_path";

// Those to train on of a source that does not hold all out, evenly spread, as what is measured.
class SpreadSequences final : public Sequences {
 public:
  SpreadSequences(std::unique_ptr<Sequences> all, std::int64_t most)
      : all_(std::move(all)), of_(*all_->training_sequences()), count_(std::min(most, of_)) {}
  std::string name() const override { return all_->name(); }
  std::int64_t vocabulary() const override { return all_->vocabulary(); }
  std::optional<std::int64_t> training_sequences() const override { return 0; }
  Sequence training(std::int64_t) const override { return {}; }
  std::int64_t validation_sequences() const override { return count_; }
  Sequence validation(std::int64_t i) const override {
    return all_->training(of_ / count_ * i + of_ % count_ * i / count_);
  }
  std::vector<std::string> notes() const override { return all_->notes(); }

 private:
  std::unique_ptr<Sequences> all_;
  std::int64_t of_, count_;
};

// [data] as if the file of a set were all there is.
Settings settings_of_set(const Settings& all, std::size_t set, bool held_out) {
  Settings settings = all;
  settings.data.path = {all.data.validation_path[set]};
  settings.data.blend.clear();
  settings.data.validation_path.clear();
  settings.data.validation_names.clear();
  settings.data.validation_fraction = held_out ? 1 : 0;
  return settings;
}

// Sources speak of data.path, which here is the set's file.
std::string without_key(std::string_view message) {
  for (const std::string_view before : {"data.path: ", "data.validation_fraction: ", "data.validation_path: "}) {
    if (message.starts_with(before)) {
      message.remove_prefix(before.size());
    }
  }
  return std::string(message);
}

bool counts(const Sequence& sequence) {
  return std::any_of(sequence.begin(), sequence.end(), [](const SequenceDocument& document) {
    return document.label.empty() ? document.token.size() > 1
                                  : std::any_of(document.label.begin(), document.label.end(),
                                                [](std::int32_t label) { return label >= 0; });
  });
}

void require_measurable(const Sequences& set) {
  for (std::int64_t i = 0; i < set.validation_sequences(); ++i) {
    if (counts(set.validation(i))) {
      return;
    }
  }
  throw ConfigError(fmt::format("{} has no token to measure", set.name()));
}

// Nothing: a file would have to be written, and may not.
std::unique_ptr<Sequences> open_set(const Source& source, const Settings& settings, bool may_write) {
  std::unique_ptr<Sequences> opened = may_write ? source.open(settings) : source.peek(settings);
  if (opened == nullptr) {
    if (may_write) {
      throw ConfigError(fmt::format("source '{}' opens nothing", settings.data.source));
    }
    return nullptr;
  }
  if (!source.holds_all_out()) {
    const std::optional<std::int64_t> count = opened->training_sequences();
    if (!count.has_value()) {
      throw ConfigError(
          fmt::format("source '{}' does not say how many sequences a file has, so it has no validation sets; leave out "
                      "validation_path, and let it hold out a part by validation_fraction",
                      settings.data.source));
    }
    if (*count < 1) {
      throw ConfigError(fmt::format("{} has no sequence", opened->name()));
    }
    opened = std::make_unique<SpreadSequences>(std::move(opened), settings.data.validation_sequences);
  }
  if (opened->vocabulary() > settings.model.vocab_size) {
    throw ConfigError(fmt::format("{} has tokens 0 to {}, model.vocab_size is {}", opened->name(),
                                  opened->vocabulary() - 1, settings.model.vocab_size));
  }
  if (settings.data.validation_sequences > 0) {
    require_measurable(*opened);
  }
  return opened;
}

// Token files say what made them. Nothing to compare: other sources make all tokens alike.
std::optional<std::uint64_t> token_file_hash(const Settings& settings) {
  return settings.data.source == "tokens" ? tokenizer_hash(settings) : std::nullopt;
}

void require_same_tokens(std::optional<std::uint64_t> data, std::optional<std::uint64_t> set, const std::string& file) {
  const auto text = [](std::uint64_t hash) { return fmt::format("{:016x}{}", hash, hash == 0 ? " (bytes)" : ""); };
  if (data.has_value() && set.has_value() && *data != *set) {
    throw ConfigError(fmt::format(
        "'{}' was made by the tokenizer {}, the data by {}: the same ids mean other texts; prepare both by one", file,
        text(*set), text(*data)));
  }
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) && !error;
}

}  // namespace

class ValidationSets::Set final : public HeldOut {
 public:
  Set(std::string name, std::unique_ptr<Sequences> sequences, const Settings& settings)
      : name_(std::move(name)),
        part_("set " + name_),
        sequences_(std::move(sequences)),
        spaces_(spaces_of(settings)),
        vocabulary_(settings.model.vocab_size) {}
  const std::string& name() const { return name_; }
  std::int64_t validation_sequences() const override { return sequences_->validation_sequences(); }
  HostBatch validation(std::int64_t first, std::int64_t count) const override {
    check_range(part_.c_str(), first, count, validation_sequences());
    HostBatch batch = padding_batch(first, count, spaces_);
    for (std::int64_t row = 0; row < count; ++row) {
      put_sequence(batch, row, sequences_->validation(first + row), vocabulary_,
                   {sequences_->name(), part_, first + row});
    }
    return batch;
  }

 private:
  std::string name_, part_;
  std::unique_ptr<Sequences> sequences_;
  std::vector<Space> spaces_;  // of the model
  std::int64_t vocabulary_;    // likewise
};

ValidationSets::ValidationSets(const Settings& settings, bool may_write) {
  const DataSettings& data = settings.data;
  if (data.validation_path.empty()) {
    return;
  }
  const Source& source = settings.catalogue->get<Source>(data.source);
  if (!source.reads_files()) {
    throw SettingError(key, fmt::format("[data] validation_path: source \"{}\" reads no files, so it has no validation "
                                        "sets; leave out validation_path (--set data.validation_path=[])",
                                        data.source));
  }
  const std::vector<std::string> names = validation_names_of(settings);
  const std::optional<std::uint64_t> tokens = token_file_hash(settings);
  for (std::size_t i = 0; i < data.validation_path.size(); ++i) {
    const std::string& file = data.validation_path[i];
    const Settings own = settings_of_set(settings, i, source.holds_all_out());
    std::unique_ptr<Sequences> opened;
    try {
      require_same_tokens(tokens, token_file_hash(own), file);
      opened = open_set(source, own, may_write);
    } catch (const ConfigError& error) {
      throw SettingError(key, fmt::format("[data] validation_path: set '{}': {}", names[i], without_key(error.what())),
                         i);
    }
    if (opened == nullptr) {
      continue;
    }
    if (std::any_of(data.path.begin(), data.path.end(), [&](const auto& path) { return same_file(path, file); })) {
      notes_.push_back(
          fmt::format("data.validation_path: set '{}' is a file of data.path: it is trained on", names[i]));
    }
    for (const std::string& note : opened->notes()) {
      notes_.push_back(fmt::format("validation set '{}': {}", names[i], note));
    }
    sets_.push_back(std::make_unique<Set>(names[i], std::move(opened), settings));
  }
}

ValidationSets::~ValidationSets() = default;
ValidationSets::ValidationSets(ValidationSets&&) noexcept = default;

std::vector<NamedSet> ValidationSets::sets() const {
  std::vector<NamedSet> all;
  for (const auto& set : sets_) {
    all.push_back({set->name(), set.get()});
  }
  return all;
}

}  // namespace orthant
