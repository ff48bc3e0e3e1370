#include <orthant/error.h>
#include <sys/mman.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/manifest.h"

namespace orthant {
namespace {

const ManifestTensor& find(const Manifest& manifest, const std::string& name, const std::filesystem::path& folder) {
  const auto it = manifest.tensors.find(name);
  require(it != manifest.tensors.end(), "checkpoint '{}' has no tensor '{}'", folder.string(), name);
  return it->second;
}

// MappedFile refuses data files as settings are refused; here a file that cannot be opened tells nothing of its
// content.
MappedFile open_file(const std::filesystem::path& path) {
  try {
    return MappedFile(path);
  } catch (const Error& error) {
    throw CheckpointUnreadable(fmt::format("checkpoint file '{}': {}", path.string(), error.what()));
  }
}

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& folder) : CheckpointReader(folder, "") {}

CheckpointReader::CheckpointReader(const std::filesystem::path& folder, std::string prefix)
    : folder_(folder), prefix_(std::move(prefix)), mutex_(std::make_unique<std::mutex>()) {
  const MappedFile json = open_file(folder / "manifest.json");
  manifest_ =
      std::make_unique<Manifest>(parse_manifest(json.bytes(), "checkpoint manifest '" + json.path().string() + "'"));
  for (const ManifestFile& file : manifest_->files) {
    const std::filesystem::path path = folder / file.name;
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error) {
      throw CheckpointUnreadable(fmt::format("checkpoint file '{}': {}", path.string(), error.message()));
    }
    require(size == file.bytes, "checkpoint file '{}' has {} bytes, its manifest says {} (cut short?)", path.string(),
            size, file.bytes);
  }
  files_.resize(manifest_->files.size());
}

CheckpointReader::CheckpointReader(std::filesystem::path folder, const std::map<std::string, TensorInfo>& tensors,
                                   std::map<std::string, std::string> state, std::shared_ptr<const TensorSource> source)
    : folder_(std::move(folder)),
      manifest_(std::make_unique<Manifest>()),
      mutex_(std::make_unique<std::mutex>()),
      source_(std::move(source)) {
  manifest_->world = 1;
  manifest_->state = std::move(state);
  for (const auto& [name, info] : tensors) {
    manifest_->tensors[name] = {.dtype = info.dtype, .shape = info.shape, .slices = {}};
  }
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

std::int64_t CheckpointReader::step() const {
  return manifest_->step;
}
std::int64_t CheckpointReader::world() const {
  return manifest_->world;
}
const std::map<std::string, std::string>& CheckpointReader::state() const {
  return manifest_->state;
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : manifest_->tensors) {
    names.push_back(name);
  }
  return names;
}

bool CheckpointReader::has(const std::string& name) const {
  return manifest_->tensors.contains(name);
}

std::string CheckpointReader::stored_name(const std::string& name) const {
  return !prefix_.empty() && has(prefix_ + name) ? prefix_ + name : name;
}

CheckpointReader::TensorInfo CheckpointReader::info(const std::string& name) const {
  const std::string stored = stored_name(name);
  const ManifestTensor& tensor = find(*manifest_, stored, folder_);
  return {tensor.dtype, tensor.shape};
}

const SafetensorsReader& CheckpointReader::file(std::size_t index) const {
  const std::scoped_lock lock(*mutex_);
  if (files_[index] == nullptr) {
    const ManifestFile& expected = manifest_->files[index];
    const std::filesystem::path path = folder_ / expected.name;
    const FileChecksum found = checksum_of_file(path);
    require(found.bytes == expected.bytes && found.checksum == expected.checksum,
            "checkpoint file '{}': its checksum does not match its manifest, it is damaged", path.string());
    auto reader = std::make_unique<SafetensorsReader>(open_file(path));
    files_[index] = std::move(reader);
  }
  return *files_[index];
}

void CheckpointReader::read(const std::string& name, const std::vector<std::int64_t>& offset,
                            const std::vector<std::int64_t>& size, void* out) const {
  const std::string stored = stored_name(name);
  const ManifestTensor& tensor = find(*manifest_, stored, folder_);
  const Box wanted{offset, size};
  check_inside(wanted, tensor.shape, "checkpoint '" + folder_.string() + "', tensor '" + name + "'");
  if (source_ != nullptr) {
    source_->read(stored, offset, size, out);
    return;
  }
  for (const ManifestSlice& slice : tensor.slices) {
    if (intersect(slice.box, wanted).elements() == 0) {
      continue;
    }
    const SafetensorsReader& source = file(slice.file);
    const FileTensor& held = source.at(slice.key);
    require(held.dtype == tensor.dtype && held.sizes == slice.box.size,
            "checkpoint file '{}': tensor '{}' is not of the type and size its manifest says",
            source.file().path().string(), slice.key);
    copy_overlap(source.bytes(held), slice.box, out, wanted, size_of(tensor.dtype));
  }
}

void CheckpointReader::release_memory() const {
  if (source_ != nullptr) {
    source_->release_memory();
  }
  const std::scoped_lock lock(*mutex_);
  for (const auto& reader : files_) {
    if (reader != nullptr && reader->file().size() > 0) {
      madvise(const_cast<std::byte*>(reader->file().bytes().data()), reader->file().size(), MADV_DONTNEED);
    }
  }
}

void CheckpointReader::verify(std::int64_t part, std::int64_t parts) const {
  const auto mine = [&](std::size_t index) { return static_cast<std::int64_t>(index) % parts == part; };
  for (const auto& [name, tensor] : manifest_->tensors) {
    for (const ManifestSlice& slice : tensor.slices) {
      if (!mine(slice.file)) {
        continue;
      }
      const SafetensorsReader& source = file(slice.file);
      const FileTensor& held = source.at(slice.key);
      require(held.dtype == tensor.dtype && held.sizes == slice.box.size,
              "checkpoint file '{}': tensor '{}' is not of the type and size its manifest says",
              source.file().path().string(), slice.key);
    }
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (mine(i)) {
      file(i);
    }
  }
}

std::uint64_t CheckpointReader::bytes() const {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest_->files) {
    sum += file.bytes;
  }
  return sum;
}

}  // namespace orthant
