// A recording of routing: what the routers of a run decided from, on some of its steps (run.record_routing). It is read
// by apps/route/recorded.h.
//
// runs/NAME/routing/step_000001/ has a safetensors file of each rank that counts tokens, and recording.json, which is
// written last: a folder without it is no recording. Whatever the layout was, what is read is in the order of the
// global batch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <orthant/settings.h>

namespace orthant {

// One routed layer's decisions about some tokens, in the order of `index`.
struct RecordedLayer {
  int layer = 0;                     // 1 + block
  std::vector<float> logits;         // [T, M] of each token's M greatest, greatest first; with M = E: of all, by number
  std::vector<std::int32_t> expert;  // [T, M] whose they are; with M = E: empty
  std::vector<float> lse;            // [T] logsumexp of all E
  std::vector<float> state;          // [E] of the gate, or empty
};

struct RecordedTokens {
  std::vector<std::int64_t> index;  // [T] number in the global batch
  std::vector<std::uint8_t> valid;  // [T] 0: padding
  std::vector<std::int32_t> token;  // [T] ids, where the gate reads them; else empty
  std::vector<RecordedLayer> layers;
};

// Whether a token's greatest logits do not tell what the gate chooses: experts choose, an expert's bias counts too, or
// groups of experts are chosen first.
bool needs_all_logits(const Settings& settings);

// How many logits of a token are kept: all where needs_all_logits, where there are no more than 64, or where the run
// asks for so many; else top_k + 8 or as many as it asks for (run.record_logits).
std::int64_t recorded_logits(const Settings& settings);

constexpr int recording_format = 1;
std::filesystem::path recording_folder(const std::filesystem::path& run, std::int64_t step);

// "layers.LAYER.WHAT"
std::string recorded_name(int layer, const char* what);
// "xxh3:0123456789abcdef"
std::string recorded_checksum(std::uint64_t checksum);
// By their index.
void sort_tokens(RecordedTokens& tokens);

// The name of the file of a rank.
std::string part_name(int rank);
// A rank's file, and the XXH3-64 of its bytes.
struct RecordedPart {
  std::string name;
  std::string checksum;  // recorded_checksum
};
// Writes one rank's tokens, sorted. Errors: Error naming the file.
RecordedPart write_part(const std::filesystem::path& folder, int rank, RecordedTokens tokens, std::int64_t experts,
                        std::int64_t kept_logits);
// Behind all parts: now there is a recording.
void finish_recording(const std::filesystem::path& folder, std::int64_t step, const std::vector<RecordedPart>& parts,
                      std::int64_t tokens, std::int64_t kept_logits);

}  // namespace orthant
