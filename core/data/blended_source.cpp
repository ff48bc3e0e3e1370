#include "core/data/blended_source.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/data/epochs.h"

namespace orthant {
namespace {

Settings settings_of_part(const Settings& all, const BlendOrder& order, std::size_t part) {
  const double share = static_cast<double>(order.turns()[part]) / static_cast<double>(order.period());
  const std::int64_t measured = all.data.validation_sequences;
  Settings settings = all;
  settings.data.path = {all.data.path[part]};
  settings.data.blend.clear();
  settings.data.validation_sequences =
      measured == 0 ? 0 : std::max<std::int64_t>(1, std::llround(share * static_cast<double>(measured)));
  return settings;
}

}  // namespace

std::unique_ptr<BlendedSource> BlendedSource::open(const Source& source, const Settings& settings, bool may_write) {
  const DataSettings& data = settings.data;
  if (data.blend.size() != data.path.size()) {
    throw SettingError("data.blend", fmt::format("data.blend: {} weights for the {} files of data.path; write one for "
                                                 "each file",
                                                 data.blend.size(), data.path.size()));
  }
  BlendOrder order(data.blend);
  std::vector<std::unique_ptr<Sequences>> parts;
  bool all = true;
  for (std::size_t i = 0; i < data.path.size(); ++i) {
    const Settings own = settings_of_part(settings, order, i);
    parts.push_back(may_write ? source.open(own) : source.peek(own));
    all = all && parts.back() != nullptr;
    if (all && parts.back()->training_sequences().value_or(1) < 1) {
      throw ConfigError(fmt::format("{} has no sequence to train on", parts.back()->name()));
    }
  }
  return all ? std::unique_ptr<BlendedSource>(new BlendedSource(std::move(order), std::move(parts), settings))
             : nullptr;
}

BlendedSource::BlendedSource(BlendOrder order, std::vector<std::unique_ptr<Sequences>> parts, const Settings& settings)
    : order_(std::move(order)),
      parts_(std::move(parts)),
      seed_(settings.run.seed),
      run_sequences_(sequences_before(settings.batch, settings.run.steps)) {}

std::string BlendedSource::name() const {
  return parts_.size() == 1 ? parts_[0]->name()
                            : fmt::format("the blend of {} and {} more", parts_[0]->name(), parts_.size() - 1);
}

std::int64_t BlendedSource::vocabulary() const {
  std::int64_t largest = 0;
  for (const auto& part : parts_) {
    largest = std::max(largest, part->vocabulary());
  }
  return largest;
}

Sequence BlendedSource::training(std::int64_t i) const {
  const BlendOrder::Turn turn = order_(i);
  const Sequences& part = *parts_[turn.part];
  return part.in_epoch(number_in_epoch(seed_, turn.number, part.training_sequences()));
}

std::int64_t BlendedSource::validation_sequences() const {
  std::int64_t count = 0;
  for (const auto& part : parts_) {
    count += part->validation_sequences();
  }
  return count;
}

Sequence BlendedSource::validation(std::int64_t i) const {
  std::size_t part = 0;
  for (; i >= parts_[part]->validation_sequences(); ++part) {
    i -= parts_[part]->validation_sequences();
  }
  return parts_[part]->validation(i);
}

std::optional<DataSize> BlendedSource::size() const {
  DataSize all{.tokens = 0};
  for (const auto& part : parts_) {
    const std::optional<DataSize> own = size_of(*part);
    if (!own.has_value()) {
      return std::nullopt;
    }
    all.sequences += own->sequences;
    all.tokens = all.tokens && own->tokens ? std::optional(*all.tokens + *own->tokens) : std::nullopt;
    all.windows = all.windows || own->windows;
  }
  return all;
}

std::vector<std::string> BlendedSource::notes() const {
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const double share = static_cast<double>(order_.turns()[i]) / static_cast<double>(order_.period());
    const double taken = share * static_cast<double>(run_sequences_);
    const auto epoch = parts_[i]->training_sequences();
    notes.push_back(fmt::format(
        "data.blend: {} gives {:.4g} % of the sequences, {:.0f} in this run{}", parts_[i]->name(), 100 * share, taken,
        epoch ? fmt::format(", {:.3g} epochs of its {}", taken / static_cast<double>(*epoch), *epoch) : ""));
    for (std::string& own : parts_[i]->notes()) {
      notes.push_back(std::move(own));
    }
  }
  return notes;
}

}  // namespace orthant
