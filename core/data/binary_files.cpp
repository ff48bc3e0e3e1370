#include "core/data/binary_files.h"

#include <orthant/error.h>

#include <fstream>

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

std::vector<std::string> notes_of_binary_files(const std::vector<std::string>& paths) {
  std::vector<std::string> notes;
  for (const std::string& path : paths) {
    const std::string begin = beginning_of(path, looked_at);
    if (const std::size_t at = begin.find('\0'); at != std::string::npos) {
      notes.push_back(fmt::format(
          "'{}' seems to be no text: its byte {} is zero; data.source = \"text\" reads it as it is", path, at));
    }
  }
  return notes;
}

}  // namespace orthant
