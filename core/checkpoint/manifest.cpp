#include "core/checkpoint/manifest.h"

#include <orthant/error.h>

#include "core/base/json.h"
#include "core/checkpoint/disk.h"

namespace orthant {
namespace {

constexpr std::int64_t format_version = 1;

std::string hexadecimal(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::uint64_t checksum_at(const Json& object, const char* key, const std::string& where) {
  const std::string text = text_at(object, key, where);
  require(text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
          "{}: '{}' must be 16 hexadecimal digits", where, key);
  return std::stoull(text, nullptr, 16);
}

DType dtype_at(const Json& object, const std::string& where) {
  const std::string name = text_at(object, "dtype", where);
  for (const DType dtype : all_dtypes) {
    if (name == name_of(dtype)) {
      return dtype;
    }
  }
  fail("{}: dtype '{}' is not known", where, name);
}

Json json_of(const ManifestFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", hexadecimal(file.checksum)}};
}

Json json_of(const std::map<std::string, ManifestTensor>& tensors) {
  Json result = Json::object();
  for (const auto& [name, tensor] : tensors) {
    const Box all = whole(tensor.shape);
    Json slices = Json::array();
    for (const ManifestSlice& slice : tensor.slices) {
      slices.push_back(
          {{"file", slice.file}, {"key", slice.key}, {"offset", slice.box.offset}, {"size", slice.box.size}});
    }
    result[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", all.size}, {"slices", slices}};
  }
  return result;
}

ManifestFile file_from(const Json& json, std::int64_t rank, const std::string& where) {
  ManifestFile file{.name = text_at(json, "name", where),
                    .bytes = static_cast<std::uint64_t>(integer_at(json, "bytes", where)),
                    .checksum = checksum_at(json, "xxh3", where)};
  // The name is known from the rank: a manifest cannot lead a reader out of its folder.
  require(file.name == rank_file_name(rank), "{}: the file of rank {} is '{}', expected '{}'", where, rank, file.name,
          rank_file_name(rank));
  return file;
}

std::map<std::string, ManifestTensor> tensors_from(const Json& json, const std::string& where) {
  require(json.is_object(), "{}: 'tensors' must be an object", where);
  std::map<std::string, ManifestTensor> tensors;
  for (const auto& [name, entry] : json.items()) {
    const std::string here = where + ", tensor '" + name + "'";
    ManifestTensor tensor{
        .dtype = dtype_at(entry, here), .shape = checked_shape(integers_at(entry, "shape", here), here), .slices = {}};
    const Json& slices = member(entry, "slices", here);
    require(slices.is_array(), "{}: 'slices' must be a list", here);
    for (const Json& slice : slices) {
      tensor.slices.push_back({.file = static_cast<std::size_t>(integer_at(slice, "file", here)),
                               .key = text_at(slice, "key", here),
                               .box = {integers_at(slice, "offset", here), integers_at(slice, "size", here)}});
      check_inside(tensor.slices.back().box, tensor.shape, here);
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

void check_tensors(const Manifest& manifest, const std::string& where) {
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::string here = where + ", tensor '" + name + "'";
    std::vector<Box> boxes;
    for (const ManifestSlice& slice : tensor.slices) {
      require(slice.file < manifest.files.size(), "{}: a slice in file {}, there are {}", here, slice.file,
              manifest.files.size());
      boxes.push_back(slice.box);
    }
    check_cover(tensor.shape, std::move(boxes), here);
  }
}

}  // namespace

std::string rank_file_name(std::int64_t rank) {
  return fmt::format("rank_{:05}.safetensors", rank);
}

std::string to_json(const ManifestPart& part) {
  const Json json = {
      {"rank", part.rank}, {"host", part.file.host}, {"file", json_of(part.file)}, {"tensors", json_of(part.tensors)}};
  return dump_json(json, "checkpoint");
}

std::string to_json(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(json_of(file));
  }
  Json json = {{"format", "orthant checkpoint"},
               {"version", format_version},
               {"step", manifest.step},
               {"world_size", manifest.world},
               {"files", files},
               {"tensors", json_of(manifest.tensors)},
               {"state", manifest.state}};
  const std::string body = dump_json(json, "checkpoint manifest");
  json["xxh3"] = hexadecimal(checksum_of(std::as_bytes(std::span(body))));
  return dump_json(json, "checkpoint manifest", 1) + "\n";
}

Manifest join(std::int64_t step, std::int64_t world, std::span<const std::string> parts,
              const std::map<std::string, std::string>& state) {
  Manifest manifest{.step = step, .world = world, .files = {}, .tensors = {}, .state = state};
  const std::string where = fmt::format("checkpoint of step {}", step);
  require(static_cast<std::int64_t>(parts.size()) == world, "{}: parts of {} ranks, expected {}", where, parts.size(),
          world);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::string here = fmt::format("{}, rank {}", where, rank);
    const Json json = parse_json(std::as_bytes(std::span(parts[rank])), here);
    require(integer_at(json, "rank", here) == static_cast<std::int64_t>(rank),
            "{}: its place holds the part of rank {}: parts must be in the order of ranks", here,
            integer_at(json, "rank", here));
    manifest.files.push_back(file_from(member(json, "file", here), static_cast<std::int64_t>(rank), here));
    manifest.files.back().host = text_at(json, "host", here);
    for (auto& [name, tensor] : tensors_from(member(json, "tensors", here), here)) {
      ManifestTensor& all =
          manifest.tensors.try_emplace(name, ManifestTensor{tensor.dtype, tensor.shape, {}}).first->second;
      require(all.dtype == tensor.dtype && all.shape == tensor.shape,
              "{}: tensor '{}' is {} {} here, {} {} on a rank before it", here, name, name_of(tensor.dtype),
              tensor.shape, name_of(all.dtype), all.shape);
      for (ManifestSlice& slice : tensor.slices) {
        slice.file = rank;
        all.slices.push_back(std::move(slice));
      }
    }
  }
  check_tensors(manifest, where);
  return manifest;
}

Manifest parse_manifest(std::span<const std::byte> text, const std::string& where) {
  Json json = parse_json(text, where);
  require(json.is_object() && json.contains("format") && json["format"] == "orthant checkpoint",
          "{}: it is no checkpoint manifest", where);
  const std::int64_t version = integer_at(json, "version", where);
  require(version == format_version, "{}: format version {} is not known, expected {}", where, version, format_version);
  const std::uint64_t expected = checksum_at(json, "xxh3", where);
  json.erase("xxh3");
  const std::string body = dump_json(json, where);
  const std::uint64_t found = checksum_of(std::as_bytes(std::span(body)));
  require(found == expected, "{}: its checksum is {}, expected {}: it is damaged", where, hexadecimal(found),
          hexadecimal(expected));

  Manifest manifest{.step = integer_at(json, "step", where),
                    .world = integer_at(json, "world_size", where),
                    .files = {},
                    .tensors = tensors_from(member(json, "tensors", where), where),
                    .state = {}};
  const Json& files = member(json, "files", where);
  require(files.is_array() && static_cast<std::int64_t>(files.size()) == manifest.world,
          "{}: 'files' must list one file for each of {} ranks", where, manifest.world);
  for (const Json& file : files) {
    manifest.files.push_back(file_from(file, static_cast<std::int64_t>(manifest.files.size()), where));
  }
  const Json& state = member(json, "state", where);
  require(state.is_object(), "{}: 'state' must be an object", where);
  for (const auto& [key, value] : state.items()) {
    require(value.is_string(), "{}: state '{}' must be a string", where, key);
    manifest.state[key] = value.get<std::string>();
  }
  check_tensors(manifest, where);
  return manifest;
}

}  // namespace orthant
