// The manifest of a checkpoint, as it is and with its checksum repaired.
#include "core/checkpoint/manifest.h"

#include <orthant/error.h>

#include <algorithm>

#include "core/base/json.h"
#include "core/checkpoint/disk.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

void parse(const std::string& text) {
  try {
    parse_manifest(std::as_bytes(std::span(text)), "manifest");
  } catch (const Error&) {
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  parse(text);
  Json json = Json::parse(text, nullptr, false);
  // As the parser limits depth itself, what is repaired must not be deeper than that either.
  if (json.is_object() && json.contains("format") && std::count(text.begin(), text.end(), '[') < 100 &&
      std::count(text.begin(), text.end(), '{') < 100) {
    json.erase("xxh3");
    const std::string body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    json["xxh3"] = fmt::format("{:016x}", checksum_of(std::as_bytes(std::span(body))));
    parse(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return 0;
}

std::vector<std::string> seeds() {
  Manifest manifest{.step = 7, .world = 2, .files = {}, .tensors = {}, .state = {{"step", "7"}, {"run", "x"}}};
  manifest.files = {{rank_file_name(0), 64, 1}, {rank_file_name(1), 64, 2}};
  const auto slice = [](std::size_t file, std::int64_t begin) {
    return ManifestSlice{file, "w", Box{{begin, 0}, {2, 3}}};
  };
  manifest.tensors["w"] = {DType::f32, {4, 3}, {slice(0, 0), slice(1, 2)}};
  manifest.tensors["b"] = {DType::bf16, {3}, {ManifestSlice{1, "b", Box{{0}, {3}}}}};
  return {to_json(manifest)};
}

}  // namespace

const Target manifest = {"manifest", run, seeds};

}  // namespace orthant::fuzz
