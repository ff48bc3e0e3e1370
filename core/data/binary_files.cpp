#include "core/data/binary_files.h"

#include <orthant/error.h>

#include <fstream>

#include "core/data/text_file.h"

namespace orthant {
namespace {

constexpr std::size_t looked_at = std::size_t{1} << 16;

std::string beginning_of(const std::string& path, std::size_t bytes) {
  std::string begin(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(bytes));
  begin.resize(static_cast<std::size_t>(in.gcount()));
  return begin;
}

// Of JSON rows. The first one tells.
std::string note_of_rows(const std::string& path, const DataSettings& data) {
  if (!is_json_lines(path) || !data.text_key.empty()) {
    return "";
  }
  if (data.tokenizer == "bytes") {
    return fmt::format(
        "'{}' is read as it stands, braces and keys too, as data.tokenizer is \"bytes\"; write "
        "data.text_key = \"text\", say, to read the texts under that key",
        path);
  }
  const TextFile rows(path, {.text_key = "text"});
  try {
    std::string decoded;
    rows.text(rows.documents().at(0), decoded);
    return "";
  } catch (const std::exception&) {
    return fmt::format(
        "the texts of '{}' are those under \"content\", as its first row has none under \"text\" "
        "(data.text_key names another key)",
        path);
  }
}

}  // namespace

void refuse_token_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const std::string begin = beginning_of(path, 8);
    const bool ours = begin == "ORTHTOKN";
    if (ours || begin.starts_with("MMIDIDX")) {
      throw ConfigError(fmt::format("data.path: '{}' is {}, no text; write data.source = \"tokens\"", path,
                                    ours ? "a token file" : "the index of a token file of Megatron-LM"));
    }
  }
}

std::vector<std::string> notes_of_texts(const std::vector<std::string>& paths, const DataSettings& data) {
  std::vector<std::string> notes;
  for (const std::string& path : paths) {
    const std::string begin = beginning_of(path, looked_at);
    if (const std::size_t at = begin.find('\0'); at != std::string::npos) {
      notes.push_back(fmt::format(
          "'{}' seems to be no text: its byte {} is zero; data.source = \"text\" reads it as it is", path, at));
    }
    if (std::string note = note_of_rows(path, data); !note.empty()) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

}  // namespace orthant
