#include "core/data/not_text.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace orthant {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t most_looked_at = std::size_t{1} << 16;

// What a file begins with, what it is then, and how a text is made of it: {} is its name, {text} and {utf8} are names
// for the text.
struct OtherKind {
  std::string_view begin, what, advice;
};
constexpr std::string_view by_pandas =
    "python3 -c \"import pandas; pandas.read_{reader}('{}').to_json('{text}.jsonl', orient='records', lines=True)\"";
constexpr std::array other_kinds = {
    OtherKind{"\x1f\x8b"sv, "compressed (gzip)", "zcat '{}' > '{text}'"},
    OtherKind{"\x28\xb5\x2f\xfd"sv, "compressed (zstd)", "zstd -dk '{}' -o '{text}'"},
    OtherKind{"\xfd"
              "7zXZ\0"sv,
              "compressed (xz)", "xzcat '{}' > '{text}'"},
    OtherKind{"BZh91AY&SY"sv, "compressed (bzip2)", "bzcat '{}' > '{text}'"},
    OtherKind{"\x04\x22\x4d\x18"sv, "compressed (lz4)", "lz4 -dk '{}' '{text}'"},
    OtherKind{"PK\x03\x04"sv, "a zip archive", "unzip '{}'"},
    OtherKind{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "7z x '{}'"},
    OtherKind{"Rar!\x1a\x07"sv, "a rar archive", "unrar x '{}'"},
    OtherKind{"PAR1"sv, "a Parquet table", "parquet"},
    OtherKind{"ARROW1\0\0"sv, "an Arrow table", "feather"},
    OtherKind{"Obj\x01"sv, "an Avro file", ""},
    OtherKind{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file", ""},
    OtherKind{"SQLite format 3\0"sv, "an SQLite database", ""},
    OtherKind{"%PDF-"sv, "a PDF", "pdftotext '{}' '{text}.txt'"},
    OtherKind{"\x93NUMPY"sv, "a NumPy array",
              "orthant data prepare '{}' -o '{text}.tokens' (where it holds token ids)"},
    OtherKind{"version https://git-lfs."sv, "a pointer of Git LFS, not the file itself", "git lfs pull"},
    OtherKind{"\xff\xfe\0\0"sv, "UTF-32 (little-endian)", "iconv -f UTF-32 -t UTF-8 '{}' > '{utf8}'"},
    OtherKind{"\0\0\xfe\xff"sv, "UTF-32 (big-endian)", "iconv -f UTF-32 -t UTF-8 '{}' > '{utf8}'"},
    OtherKind{"\xff\xfe"sv, "UTF-16 (little-endian)", "iconv -f UTF-16 -t UTF-8 '{}' > '{utf8}'"},
    OtherKind{"\xfe\xff"sv, "UTF-16 (big-endian)", "iconv -f UTF-16 -t UTF-8 '{}' > '{utf8}'"}};

std::string put_in(std::string text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

// Of the same ending, by which JSON lines are known.
std::string name_in_utf8(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.parent_path() / ("utf8_" + file.filename().string())).string();
}

std::string advice_for(const OtherKind& kind, const std::string& path) {
  std::string advice(kind.advice);
  if (advice == "parquet" || advice == "feather") {
    advice = put_in(std::string(by_pandas), "{reader}", advice);
  }
  const std::filesystem::path file(path);
  const bool ends = file.extension() != ".txt" && file.extension() != ".jsonl" && file.extension() != ".json";
  const std::string text = (ends ? std::filesystem::path(file).replace_extension() : file).string();
  advice = put_in(std::move(advice), "{text}", text == path ? path + ".out" : text);
  return put_in(put_in(std::move(advice), "{utf8}", name_in_utf8(path)), "{}", path);
}

// UTF-16 and UTF-32 without a mark: Latin letters, each beside zeros that stand at the same place of every unit. A
// file of numbers has other bytes than letters there.
const char* units_of(std::string_view begin) {
  for (const std::size_t unit : {std::size_t{4}, std::size_t{2}}) {
    const std::size_t units = begin.size() / unit;
    for (std::size_t place = 0; units >= 4 && place < unit; place += unit - 1) {
      std::size_t letters = 0;
      for (std::size_t i = 0; i < units; ++i) {
        const std::string_view one = begin.substr(i * unit, unit);
        const unsigned char c = static_cast<unsigned char>(one[place]);
        const bool letter = (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\r' || c == '\t';
        letters += letter && std::count(one.begin(), one.end(), '\0') == static_cast<std::ptrdiff_t>(unit - 1) ? 1 : 0;
      }
      if (letters * 10 >= units * 9) {
        return unit == 4 ? (place == 0 ? "UTF-32LE" : "UTF-32BE") : (place == 0 ? "UTF-16LE" : "UTF-16BE");
      }
    }
  }
  return nullptr;
}

}  // namespace

std::string what_else_than_text(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), most_looked_at));
  for (const OtherKind& kind : other_kinds) {
    if (begin.starts_with(kind.begin)) {
      const std::string advice = advice_for(kind, path);
      return fmt::format("{}{}", kind.what,
                         advice.empty() ? ": write its texts as JSON lines, {\"text\": ...}" : ": " + advice);
    }
  }
  constexpr std::size_t tar_at = 257;
  if (begin.size() > tar_at && begin.substr(tar_at).starts_with("ustar")) {
    return fmt::format("a tar archive: tar xf '{}'", path);
  }
  if (const char* units = units_of(begin); units != nullptr) {
    return fmt::format("{} without a mark: iconv -f {} -t UTF-8 '{}' > '{}'", units, units, path, name_in_utf8(path));
  }
  return "";
}

void require_text(const MappedFile& file) {
  const std::string what = what_else_than_text(file.bytes(), file.path().string());
  if (!what.empty()) {
    throw ConfigError(fmt::format("'{}' is no text in UTF-8, it is {}", file.path().string(), what));
  }
}

std::size_t byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xef\xbb\xbf";
  return text.starts_with(mark) ? mark.size() : 0;
}

}  // namespace orthant
