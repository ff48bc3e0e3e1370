// Megatron's indexed data sets: token ids in NAME.bin, and where its sequences and documents lie in NAME.idx.
//
// The index, little-endian: 9 bytes "MMIDIDX\0\0", u64 version 1, u8 code of the ids' type, u64 sequences, u64 entries
// of the last table; then i32 tokens of each sequence, i64 byte offset of each, i64 first sequence of each document and
// the number of sequences behind them. Codes: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16. Source:
// Megatron-LM, megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/mapped_file.h"
#include "core/data/corpus.h"

namespace orthant {

struct MegatronIndex {
  std::filesystem::path tokens_file;
  std::size_t width = 0;  // bytes an id
  bool is_signed = false;
  std::int64_t tokens = 0;
  std::vector<Document> documents = {};
};

// Whether the file is one of the two: its name ends in .bin or .idx.
bool is_megatron(const std::string& path);

// path: either file. Errors: ConfigError naming file, what was expected and what was found: another magic or version,
// ids that are no integers, sizes that do not fit the files, sequences that do not follow each other, a multimodal set.
MegatronIndex read_megatron_index(const std::string& path);

// The same of an index whose ids take `bytes` bytes; tokens_file is left empty.
MegatronIndex parse_megatron_index(const MappedFile& index, std::uint64_t bytes);

}  // namespace orthant
