#include "apps/data/raw_tokens.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

namespace orthant {
namespace {

constexpr std::string_view numpy_magic = "\x93NUMPY";
constexpr std::size_t llm_c_header = 1024;
constexpr std::int32_t llm_c_narrow = 20240520, llm_c_wide = 20240801;

template <class... Args>
void expect_ids(bool ok, const MappedFile& file, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) {
    throw ConfigError(fmt::format("'{}': {}", file.path().string(), fmt::format(format, std::forward<Args>(args)...)));
  }
}

template <class T>
T value_at(const MappedFile& file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.bytes().data() + offset, sizeof value);
  return value;
}

RawTokens of_llm_c(const MappedFile& file, std::size_t width) {
  const std::int64_t said = value_at<std::int32_t>(file, 8);
  const auto room = static_cast<std::int64_t>((file.size() - llm_c_header) / width);
  expect_ids(said == room && (file.size() - llm_c_header) % width == 0, file,
             "its header (of llm.c) says {} tokens of {} bytes, and {} bytes follow it (cut short?)", said, width,
             file.size() - llm_c_header);
  return {.width = width, .byte_offset = llm_c_header, .tokens = said};
}

// What stands behind a key of the header, a dictionary of Python's, up to one of the ends.
std::string_view value_of(std::string_view header, std::string_view key, char end) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) {
    return {};
  }
  std::string_view rest = header.substr(at + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" :"), rest.size()));
  return rest.substr(0, rest.find(end));
}

RawTokens of_numpy(const MappedFile& file) {
  expect_ids(file.size() >= 12, file, "its header (of NumPy) is cut short");
  const auto version = value_at<std::uint8_t>(file, 6);
  const std::size_t begin = version == 1 ? 10 : 12;
  const std::size_t size = version == 1 ? value_at<std::uint16_t>(file, 8) : value_at<std::uint32_t>(file, 8);
  expect_ids(size <= file.size() - begin, file, "its header (of NumPy) is cut short");
  const std::string_view header(reinterpret_cast<const char*>(file.bytes().data()) + begin, size);
  const std::string_view type = value_of(header, "'descr'", ','), shape = value_of(header, "'shape'", ')');
  constexpr std::array known = {std::pair("u1", 1), std::pair("i1", 1), std::pair("u2", 2), std::pair("i2", 2),
                                std::pair("u4", 4), std::pair("i4", 4), std::pair("u8", 8), std::pair("i8", 8)};
  const std::string_view bare = type.size() >= 5 ? type.substr(2, 2) : std::string_view();
  const auto found = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == bare; });
  expect_ids(found != known.end() && (type[1] == '<' || type[1] == '|'), file,
             "its elements are {}, expected integers, little-endian", type);
  std::int64_t count = -1;
  const char* from = shape.empty() ? shape.data() : shape.data() + 1;  // behind the bracket
  const auto [end, error] = std::from_chars(from, shape.data() + shape.size(), count);
  const std::string_view rest(end, static_cast<std::size_t>(shape.data() + shape.size() - end));
  expect_ids(error == std::errc() && count >= 0 && rest.find_first_not_of(", ") == std::string_view::npos, file,
             "its shape is {}), expected one dimension", shape);
  const auto width = static_cast<std::size_t>(found->second);
  const std::size_t offset = begin + size;
  expect_ids((file.size() - offset) % width == 0 && (file.size() - offset) / width == static_cast<std::size_t>(count),
             file, "its header says {} elements of {} bytes, and {} bytes follow it (cut short?)", count, width,
             file.size() - offset);
  return {.width = width, .is_signed = bare[0] == 'i', .byte_offset = offset, .tokens = count};
}

// A negative id is a very large one.
std::uint64_t raw_id_at(const MappedFile& file, const RawTokens& raw, std::int64_t at) {
  std::uint64_t id = 0;
  std::memcpy(&id, file.bytes().data() + raw.byte_offset + static_cast<std::size_t>(at) * raw.width, raw.width);
  const std::uint64_t sign = std::uint64_t{1} << (8 * raw.width - 1);
  return raw.is_signed ? (id ^ sign) - sign : id;
}

void put_ids(const MappedFile& file, const RawTokens& raw, std::int64_t vocabulary, const TokenBytes& put) {
  constexpr std::int64_t block = 1 << 16;
  std::vector<std::uint16_t> narrow;
  std::vector<std::uint32_t> wide;
  for (std::int64_t begin = 0; begin < raw.tokens; begin += block) {
    narrow.clear();
    wide.clear();
    for (std::int64_t at = begin; at < std::min(begin + block, raw.tokens); ++at) {
      const std::uint64_t id = raw_id_at(file, raw, at);
      expect_ids(
          id < static_cast<std::uint64_t>(vocabulary), file,
          "token {} is {}, and the vocabulary has {}: is it that of another tokenizer, or are its ids of another "
          "size (--ids)?",
          at, static_cast<std::int64_t>(id), vocabulary);
      narrow.push_back(static_cast<std::uint16_t>(id));
      wide.push_back(static_cast<std::uint32_t>(id));
    }
    put(token_width(vocabulary) == sizeof(std::uint16_t) ? std::as_bytes(std::span(narrow))
                                                         : std::as_bytes(std::span(wide)));
  }
}

}  // namespace

std::optional<RawTokens> raw_tokens_in(const MappedFile& file, std::size_t width) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  if (bytes.starts_with(numpy_magic)) {
    return of_numpy(file);
  }
  if (file.size() >= llm_c_header) {
    const auto magic = value_at<std::int32_t>(file, 0);
    if (magic == llm_c_narrow || magic == llm_c_wide) {
      return of_llm_c(file, magic == llm_c_narrow ? 2 : 4);
    }
  }
  if (width == 0) {
    return std::nullopt;
  }
  expect_ids(file.size() % width == 0, file, "its {} bytes are no whole number of ids of {} bytes", file.size(), width);
  return RawTokens{.width = width, .tokens = static_cast<std::int64_t>(file.size() / width)};
}

TokenFile prepare_raw_tokens(const RawTokensOptions& options) {
  std::vector<MappedFile> files;
  std::vector<RawTokens> found;
  TokenFile content{.vocabulary = options.vocabulary, .tokenizer = options.tokenizer};
  std::int64_t tokens = 0;
  for (const std::string& path : options.files) {
    files.emplace_back(path);
    const std::optional<RawTokens> raw = raw_tokens_in(files.back(), options.width);
    expect_ids(raw.has_value(), files.back(),
               "it has no header of llm.c or NumPy; say --ids uint16 or uint32 for ids alone");
    expect_ids(raw->tokens > 0, files.back(), "it has no tokens");
    content.documents.push_back({tokens, tokens + raw->tokens});
    tokens += raw->tokens;
    found.push_back(*raw);
  }
  return write_token_file(options.output, std::move(content), [&](const TokenBytes& put) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      put_ids(files[i], found[i], options.vocabulary, put);
    }
  });
}

}  // namespace orthant
