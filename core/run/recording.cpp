#include "core/run/recording.h"

#include <orthant/error.h>
#include <orthant/gate.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/safetensors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t all_up_to = 64, beyond_top_k = 8;

class TextSink final : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

// What goes into a file, and its bytes.
struct Entries {
  std::vector<FileTensor> tensors;
  std::vector<std::span<const std::byte>> bytes;

  template <class T>
  void add(const std::string& name, DType dtype, const std::vector<T>& values, std::vector<std::int64_t> sizes) {
    tensors.push_back({.name = name, .dtype = dtype, .sizes = std::move(sizes)});
    bytes.push_back(std::as_bytes(std::span(values)));
  }
};

// Rows of `columns` elements in another order.
template <class T>
void reorder(std::vector<T>& rows, const std::vector<std::size_t>& order) {
  const std::size_t columns = order.empty() ? 0 : rows.size() / order.size();
  std::vector<T> sorted;
  sorted.reserve(rows.size());
  for (const std::size_t row : order) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(row * columns);
    sorted.insert(sorted.end(), first, first + static_cast<std::ptrdiff_t>(columns));
  }
  rows = std::move(sorted);
}

}  // namespace

bool needs_all_logits(const Settings& settings) {
  const MoeSettings& moe = settings.moe;
  const Gate& gate = gate_of(settings);
  return gate.config(settings).experts_choose || gate.keeps_state(moe) || moe.groups_per_token < moe.expert_groups;
}

std::int64_t recorded_logits(const Settings& settings) {
  const MoeSettings& moe = settings.moe;
  if (needs_all_logits(settings) || moe.experts <= all_up_to) {
    return moe.experts;
  }
  const std::int64_t wanted = settings.run.record_logits;
  return std::min(moe.experts, std::max(wanted > 0 ? wanted : moe.top_k + beyond_top_k, moe.top_k));
}

fs::path recording_folder(const fs::path& run, std::int64_t step) {
  return run / "routing" / fmt::format("step_{:06}", step);
}

std::string part_name(int rank) {
  return fmt::format("rank_{:05}.safetensors", rank);
}

void sort_tokens(RecordedTokens& tokens) {
  std::vector<std::size_t> order(tokens.index.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tokens.index[a] < tokens.index[b]; });
  if (std::is_sorted(tokens.index.begin(), tokens.index.end())) {
    return;
  }
  reorder(tokens.index, order);
  reorder(tokens.valid, order);
  reorder(tokens.token, order);
  for (RecordedLayer& layer : tokens.layers) {
    reorder(layer.logits, order);
    reorder(layer.expert, order);
    reorder(layer.lse, order);
  }
}

std::string recorded_checksum(std::uint64_t checksum) {
  return fmt::format("xxh3:{:016x}", checksum);
}

std::string recorded_name(int layer, const char* what) {
  return fmt::format("layers.{}.{}", layer, what);
}

RecordedPart write_part(const fs::path& folder, int rank, RecordedTokens tokens, std::int64_t experts,
                        std::int64_t kept_logits) {
  sort_tokens(tokens);
  const auto count = static_cast<std::int64_t>(tokens.index.size());
  Entries entries;
  entries.add("index", DType::i64, tokens.index, {count});
  entries.add("valid", DType::u8, tokens.valid, {count});
  if (!tokens.token.empty()) {
    entries.add("token", DType::i32, tokens.token, {count});
  }
  for (const RecordedLayer& layer : tokens.layers) {
    entries.add(recorded_name(layer.layer, "logits"), DType::f32, layer.logits, {count, kept_logits});
    if (!layer.expert.empty()) {
      entries.add(recorded_name(layer.layer, "experts"), DType::i32, layer.expert, {count, kept_logits});
    }
    entries.add(recorded_name(layer.layer, "lse"), DType::f32, layer.lse, {count});
    if (!layer.state.empty()) {
      entries.add(recorded_name(layer.layer, "state"), DType::f32, layer.state, {experts});
    }
  }
  TextSink sink;
  SafetensorsWriter writer(sink, entries.tensors, {});
  for (const std::span<const std::byte> bytes : entries.bytes) {
    writer.write(bytes);
  }
  writer.finish();
  const Disk disk;
  disk.create_folder(folder);
  disk.replace_file(folder / part_name(rank), sink.text);
  return {part_name(rank), recorded_checksum(checksum_of(std::as_bytes(std::span(sink.text))))};
}

void finish_recording(const fs::path& folder, std::int64_t step, const std::vector<RecordedPart>& parts,
                      std::int64_t tokens, std::int64_t kept_logits) {
  std::vector<std::string> names, checksums;
  for (const RecordedPart& part : parts) {
    names.push_back(part.name);
    checksums.push_back(part.checksum);
  }
  const nlohmann::ordered_json json = {{"format", recording_format}, {"step", step},   {"tokens", tokens},
                                       {"logits", kept_logits},      {"parts", names}, {"checksums", checksums}};
  const Disk disk;
  disk.replace_file(folder / "recording.json", json.dump(2) + "\n");
  disk.sync_folder(folder);
}

}  // namespace orthant
