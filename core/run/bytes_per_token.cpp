#include "core/run/bytes_per_token.h"

#include <orthant/error.h>
#include <orthant/objective.h>

#include <algorithm>
#include <memory>
#include <numbers>
#include <vector>

#include "core/data/source.h"
#include "core/run/run_tokenizer.h"

namespace orthant {
namespace {

constexpr std::int64_t most_tokens = 2'000'000;  // of a larger set evenly spread sequences stand for all

struct Counted {
  double bytes = 0, tokens = 0;

  std::optional<double> mean() const { return bytes > 0 ? std::optional(bytes / tokens) : std::nullopt; }
};

// tokenizer null: a token is a byte.
Counted counted(const HeldOut& set, const Tokenizer* tokenizer, std::int64_t positions) {
  Counted all;
  const std::int64_t sequences = set.validation_sequences();
  const std::int64_t wanted =
      std::clamp<std::int64_t>(most_tokens / positions, 1, std::max<std::int64_t>(sequences, 1));
  for (std::int64_t i = 0; i < std::min(wanted, sequences); ++i) {
    const HostBatch batch = set.validation(i * sequences / wanted, 1);
    std::vector<std::int32_t> text;
    for (const std::int32_t label : batch.label) {
      all.tokens += label >= 0 ? 1 : 0;
      const bool special =
          tokenizer != nullptr &&
          (label == tokenizer->special().bos || label == tokenizer->special().eos || label == tokenizer->special().pad);
      if (label >= 0 && !special) {
        text.push_back(label);
      }
    }
    all.bytes += static_cast<double>(tokenizer == nullptr ? text.size() : tokenizer->decode(text).size());
  }
  return all;
}

}  // namespace

BytesPerToken bytes_per_token(const BatchSource& source, const Settings& settings) try {
  BytesPerToken found;
  const DataSettings& data = settings.data;
  const bool reads_files = settings.catalogue->get<Source>(data.source).reads_files();
  if (!reads_files || objective_of(settings).unit(settings) != "nats per token") {
    return found;
  }
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_to_keep(settings);
  const bool bytes = tokenizer == nullptr && tokenizer_hash(settings) == 0 && source.vocabulary() == 256;
  if (tokenizer == nullptr && !bytes) {
    return found;
  }
  Counted sets;
  for (const NamedSet& set : source.sets()) {
    const Counted of_set = counted(*set.sequences, tokenizer.get(), data.sequence_length);
    sets.bytes += of_set.bytes;
    sets.tokens += of_set.tokens;
    if (const auto mean = of_set.mean()) {
      found.sets[set.name] = *mean;
    }
  }
  found.all =
      source.validation_sequences() > 0 ? counted(source, tokenizer.get(), data.sequence_length).mean() : sets.mean();
  return found;
} catch (const Error&) {  // the data have ids that are no tokens of data.tokenizer
  return {};
}

double bits_per_byte(double nats_per_token, double bytes_per_token) {
  return nats_per_token / (std::numbers::ln2 * bytes_per_token);
}

}  // namespace orthant
