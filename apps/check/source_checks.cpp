#include <orthant/source.h>

#include <algorithm>

#include "apps/check/kind_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t looked_at = 64;  // sequences of each part

bool same(const Sequence& a, const Sequence& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const SequenceDocument& x, const SequenceDocument& y) {
    return x.token == y.token && x.label == y.label;
  });
}

// What is wrong with a sequence; empty: nothing.
std::string wrong(const Sequence& sequence, std::int64_t vocabulary, std::int64_t positions) {
  std::int64_t tokens = 0;
  for (const SequenceDocument& document : sequence) {
    tokens += static_cast<std::int64_t>(document.token.size());
    if (!document.label.empty() && document.label.size() != document.token.size()) {
      return fmt::format("{} labels for {} tokens", document.label.size(), document.token.size());
    }
    for (const std::int32_t id : document.token) {
      if (id < 0 || id >= vocabulary) {
        return fmt::format("token {} is outside its vocabulary of {}", id, vocabulary);
      }
    }
    for (const std::int32_t id : document.label) {
      if (id < -1 || id >= vocabulary) {
        return fmt::format("label {} is outside its vocabulary of {}", id, vocabulary);
      }
    }
  }
  return tokens >= 1 && tokens <= positions ? "" : fmt::format("{} tokens, expected 1 to {}", tokens, positions);
}

struct Share {
  const char* name;
  std::int64_t count;
  Sequence (Sequences::*get)(std::int64_t) const;
};

}  // namespace

Finding check_source_sequences(const KindUnderTest& kind) {
  const Config config = kind.experiment();
  const Settings& settings = config.settings;
  const Source& source = settings.catalogue->get<Source>(kind.name);
  const std::unique_ptr<Sequences> one = source.open(settings), other = source.open(settings);
  if (one == nullptr || other == nullptr) {
    return Finding::failed(fmt::format("source '{}' opens nothing", settings.data.source));
  }
  if (one->vocabulary() < 1 || one->training_sequences().value_or(1) < 1 || one->validation_sequences() < 0) {
    return Finding::failed("its vocabulary or its number of sequences is below 1");
  }
  const Share parts[] = {
      {"training", std::min(looked_at, one->training_sequences().value_or(looked_at)), &Sequences::training},
      {"validation", std::min(looked_at, one->validation_sequences()), &Sequences::validation}};
  for (const Share& part : parts) {
    std::vector<Sequence> in_order;
    for (std::int64_t i = 0; i < part.count; ++i) {
      in_order.push_back((one.get()->*part.get)(i));
      if (const std::string fault = wrong(in_order.back(), one->vocabulary(), settings.data.sequence_length);
          !fault.empty()) {
        return Finding::failed(fmt::format("{} sequence {}: {}", part.name, i, fault));
      }
    }
    // Another reader, backwards; then the same reader again.
    for (std::int64_t i = part.count - 1; i >= 0; --i) {
      for (const Sequences* reader : {other.get(), one.get()}) {
        if (!same((reader->*part.get)(i), in_order[i])) {
          return Finding::failed(
              fmt::format("{} sequence {} is another one when asked for in another order", part.name, i));
        }
      }
    }
  }
  return Finding::ok(fmt::format("{} to train on, {} held out", parts[0].count, parts[1].count));
}

}  // namespace orthant
