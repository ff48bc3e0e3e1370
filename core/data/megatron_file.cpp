#include "core/data/megatron_file.h"

#include <orthant/error.h>

#include <array>
#include <cstring>
#include <fstream>
#include <string_view>

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::size_t header_bytes = 9 + 8 + 1 + 8 + 8;

template <class... Args>
void demand(bool ok, const MappedFile& file, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) {
    throw ConfigError(
        fmt::format("Megatron index '{}': {}", file.path().string(), fmt::format(format, std::forward<Args>(args)...)));
  }
}

template <class T>
T read_at(const MappedFile& file, std::size_t offset) {
  T value;  // the files are little-endian, as are the machines this runs on
  std::memcpy(&value, file.bytes().data() + offset, sizeof value);
  return value;
}

struct IdType {
  const char* name;
  std::size_t width;
  bool is_integer, is_signed;
};
constexpr std::array<IdType, 8> types = {{{"u8", 1, true, false},
                                          {"i8", 1, true, true},
                                          {"i16", 2, true, true},
                                          {"i32", 4, true, true},
                                          {"i64", 8, true, true},
                                          {"f64", 8, false, true},
                                          {"f32", 4, false, true},
                                          {"u16", 2, true, false}}};

}  // namespace

bool is_megatron(const std::string& path) {
  if (!path.ends_with(".bin")) {
    return path.ends_with(".idx");
  }
  // A token file of ours may have any name.
  std::array<char, 8> head{};
  std::ifstream(path, std::ios::binary).read(head.data(), head.size());
  return std::string_view(head.data(), head.size()) != "ORTHTOKN";
}

MegatronIndex read_megatron_index(const std::string& path) {
  const fs::path place = fs::path(path).replace_extension(".idx");
  std::error_code error;
  if (path.ends_with(".bin") && fs::exists(path, error) && !fs::exists(place, error)) {
    throw ConfigError(
        fmt::format("'{}' has no '{}' beside it, as Megatron's sets have; where it is a file of llm.c or "
                    "nanoGPT, make a token file of it: orthant data prepare '{}' -o '{}.tokens' "
                    "--tokenizer ... (--ids uint16 for ids without a header)",
                    path, place.filename().string(), path, path));
  }
  const MappedFile data(fs::path(path).replace_extension(".bin"));
  MegatronIndex index = parse_megatron_index(MappedFile(fs::path(path).replace_extension(".idx")), data.size());
  index.tokens_file = data.path();
  return index;
}

MegatronIndex parse_megatron_index(const MappedFile& index, std::uint64_t bytes) {
  demand(index.size() >= header_bytes, index, "{} bytes are too few for its {}-byte header", index.size(),
         header_bytes);
  const std::string_view begin(reinterpret_cast<const char*>(index.bytes().data()), magic.size());
  demand(begin == magic, index, "it does not begin with MMIDIDX: only indices of memory-mapped sets are read");
  const auto version = read_at<std::uint64_t>(index, 9);
  demand(version == 1, index, "version {} is not known, expected 1", version);
  const auto code = read_at<std::uint8_t>(index, 17);
  demand(code >= 1 && code <= types.size(), index, "the code {} of its ids' type is not known, expected 1 to {}", code,
         types.size());
  const IdType& type = types[code - 1];
  demand(type.is_integer, index, "its ids are {} (code {}), expected integers", type.name, code);

  // Counts are compared with what the file has room for before anything is multiplied or allocated.
  const auto sequences = read_at<std::uint64_t>(index, 18), entries = read_at<std::uint64_t>(index, 26);
  const std::uint64_t body = index.size() - header_bytes;
  demand(sequences <= body / 12 && entries <= body / 8, index, "{} sequences and {} documents do not fit its {} bytes",
         sequences, entries, index.size());
  const std::uint64_t tables = 12 * sequences + 8 * entries;
  demand(body != tables + sequences, index, "it has a mode for each sequence: multimodal sets are not read");
  demand(body == tables, index, "{} sequences and {} documents take {} bytes, it has {} (cut short?)", sequences,
         entries, header_bytes + tables, index.size());
  demand(sequences > 0 && entries >= 2, index, "it has no document");

  MegatronIndex result{.tokens_file = {}, .width = type.width, .is_signed = type.is_signed};
  const auto most = static_cast<std::int64_t>(bytes / type.width);
  const std::size_t pointers = header_bytes + 4 * sequences, firsts = pointers + 8 * sequences;
  const auto first_of = [&](std::uint64_t document) { return read_at<std::int64_t>(index, firsts + 8 * document); };
  demand(first_of(0) == 0 && first_of(entries - 1) == static_cast<std::int64_t>(sequences), index,
         "its documents are sequences {} to {}, expected 0 to {}", first_of(0), first_of(entries - 1), sequences);
  std::uint64_t sequence = 0;
  for (std::uint64_t d = 0; d + 1 < entries; ++d) {
    const std::int64_t end = first_of(d + 1);
    demand(end >= first_of(d) && end <= static_cast<std::int64_t>(sequences), index,
           "document {} is sequences {} to {} of {}", d, first_of(d), end, sequences);
    Document document{.begin = result.tokens, .end = result.tokens};
    for (; sequence < static_cast<std::uint64_t>(end); ++sequence) {
      const auto size = read_at<std::int32_t>(index, header_bytes + 4 * sequence);
      const auto place = read_at<std::int64_t>(index, pointers + 8 * sequence);
      demand(size >= 0 && size <= most - document.end, index, "sequence {} has {} tokens, its ids take {} bytes",
             sequence, size, bytes);
      demand(place == document.end * static_cast<std::int64_t>(type.width), index,
             "sequence {} begins at byte {}, expected {} behind the one before it", sequence, place,
             document.end * static_cast<std::int64_t>(type.width));
      document.end += size;
    }
    result.tokens = document.end;
    result.documents.push_back(document);
  }
  demand(bytes == static_cast<std::uint64_t>(result.tokens) * type.width, index,
         "its {} tokens take {} bytes, its .bin has {}", result.tokens,
         result.tokens * static_cast<std::int64_t>(type.width), bytes);
  demand(result.tokens > 0, index, "it has no tokens");
  return result;
}

}  // namespace orthant
