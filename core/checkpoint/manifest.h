// Manifest: what a checkpoint folder holds. Internal to core/checkpoint.
#pragma once

#include <orthant/tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/slices.h"

namespace orthant {

struct ManifestSlice {
  std::size_t file = 0;  // index into Manifest::files
  std::string key;       // the tensor's name in that file
  Box box;
};

struct ManifestTensor {
  DType dtype = DType::f32;
  Shape shape;  // global
  std::vector<ManifestSlice> slices;
};

struct ManifestFile {
  std::string name;  // "rank_00000.safetensors"
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3-64
  std::string host = {};       // that wrote it; not in the manifest
};

struct Manifest {
  std::int64_t step = 0;
  std::int64_t world = 0;
  std::vector<ManifestFile> files;                // by rank
  std::map<std::string, ManifestTensor> tensors;  // by global name
  std::map<std::string, std::string> state;
};

// One rank's share, as CheckpointWriter::finish returns it.
struct ManifestPart {
  std::int64_t rank = 0;
  ManifestFile file;
  std::map<std::string, ManifestTensor> tensors;  // slices' `file` is not set
};

std::string rank_file_name(std::int64_t rank);
std::string to_json(const ManifestPart& part);
std::string to_json(const Manifest& manifest);  // ends with a checksum of itself

// Both validate everything, also that each tensor's slices hold each of its elements exactly once. `where` begins
// every message. Errors: Error.
Manifest join(std::int64_t step, std::int64_t world, std::span<const std::string> parts,
              const std::map<std::string, std::string>& state);
Manifest parse_manifest(std::span<const std::byte> json, const std::string& where);

}  // namespace orthant
