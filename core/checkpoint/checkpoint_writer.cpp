#include <orthant/error.h>

#include <algorithm>
#include <set>

#include "core/base/host_name.h"
#include "core/checkpoint/appears.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/manifest.h"

namespace orthant {

namespace {

// Every file of the manifest, as this host sees it: one that another host has written to a folder of its own is
// missing.
void require_all_there(const std::filesystem::path& folder, const Manifest& manifest) {
  constexpr std::chrono::seconds patience{2};
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    const ManifestFile& file = manifest.files[rank];
    if (appears(folder / file.name, patience, file.bytes)) {
      continue;
    }
    std::error_code missing;
    const std::uintmax_t found = std::filesystem::file_size(folder / file.name, missing);
    fail(
        "checkpoint of step {}: rank {} on {} has written {} bytes to {}, and rank 0 on {} finds {} there. The "
        "checkpoint is not complete and does not appear. Do the hosts share this folder?",
        manifest.step, rank, file.host, file.bytes, std::filesystem::absolute(folder / file.name).string(), host_name(),
        missing ? "no such file" : fmt::format("{} bytes", found));
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::filesystem::path& root, std::int64_t step, std::int64_t rank,
                                   std::int64_t world, Disk disk)
    : disk_(std::move(disk)),
      root_(root),
      folder_(checkpoint_folder(root, step)),
      step_(step),
      rank_(rank),
      world_(world) {
  require(step >= 0 && rank >= 0 && rank < world, "checkpoint: rank {} of {} at step {}", rank, world, step);
  folder_ += ".tmp";
}

std::size_t CheckpointWriter::Entry::size() const {
  return static_cast<std::size_t>(Box{meta.offset, meta.size}.elements()) * size_of(meta.dtype);
}

void CheckpointWriter::add(const SliceMeta& slice, const void* bytes) {
  append(slice, bytes, {});
}

void CheckpointWriter::add(const SliceMeta& slice, Fill fill) {
  append(slice, nullptr, std::move(fill));
}

void CheckpointWriter::append(const SliceMeta& slice, const void* bytes, Fill fill) {
  const Box box{slice.offset, slice.size};
  check_inside(box, slice.global, "checkpoint: tensor '" + slice.name + "'");
  if (box.elements() == 0 && slice.global.elements() != 0) {
    return;
  }
  const auto [it, is_first] = first_of_.try_emplace(slice.name, entries_.size());
  std::string key = slice.name;
  if (!is_first) {
    const SliceMeta& before = entries_[it->second].meta;
    require(before.dtype == slice.dtype && before.global == slice.global,
            "checkpoint: tensor '{}' is {} {}, was added before as {} {}", slice.name, name_of(slice.dtype),
            slice.global, name_of(before.dtype), before.global);
    key += fmt::format("#{}", entries_.size());
  }
  entries_.push_back({slice, std::move(key), bytes, std::move(fill)});
}

std::size_t CheckpointWriter::bytes_to_copy() const {
  std::size_t sum = 0;
  for (const Entry& entry : entries_) {
    sum += entry.fill ? entry.size() : 0;
  }
  return sum;
}

void CheckpointWriter::copy_into(std::span<std::byte> room) {
  require(room.size() >= bytes_to_copy(), "checkpoint: room for {} bytes, {} are to be copied", room.size(),
          bytes_to_copy());
  for (Entry& entry : entries_) {
    if (entry.fill) {
      entry.fill(room.data());
      entry.bytes = room.data();
      entry.fill = {};
      room = room.subspan(entry.size());
    }
  }
}

std::string CheckpointWriter::finish() {
  disk_.create_folder(folder_);
  std::vector<FileTensor> tensors;
  for (const Entry& entry : entries_) {
    tensors.push_back({.name = entry.key, .dtype = entry.meta.dtype, .sizes = entry.meta.size});
  }
  ManifestPart part{.rank = rank_, .file = {.name = rank_file_name(rank_), .host = host_name()}, .tensors = {}};
  unfinished_ = std::make_unique<DiskFile>(disk_, folder_ / part.file.name);
  DiskFile& file = *unfinished_;
  SafetensorsWriter writer(file, std::move(tensors),
                           {{"format", "pt"}, {"rank", std::to_string(rank_)}, {"step", std::to_string(step_)}});
  std::vector<std::byte> buffer;
  for (const Entry& entry : entries_) {
    const Box box{entry.meta.offset, entry.meta.size};
    const std::size_t bytes = entry.size();
    if (entry.fill) {
      buffer.resize(std::max(buffer.size(), bytes));
      entry.fill(buffer.data());
    }
    writer.write({entry.fill ? buffer.data() : static_cast<const std::byte*>(entry.bytes), bytes});
    ManifestTensor& tensor =
        part.tensors.try_emplace(entry.meta.name, ManifestTensor{entry.meta.dtype, entry.meta.global, {}})
            .first->second;
    tensor.slices.push_back({.file = static_cast<std::size_t>(rank_), .key = entry.key, .box = box});
  }
  writer.finish();
  file.sync_and_close();
  part.file.bytes = file.bytes();
  part.file.checksum = file.checksum();
  unfinished_.reset();
  return to_json(part);
}

std::filesystem::path CheckpointWriter::commit(std::span<const std::string> parts,
                                               const std::map<std::string, std::string>& state,
                                               const std::function<void()>& before_commit) {
  require(rank_ == 0, "checkpoint: rank {} commits, expected rank 0", rank_);
  const Manifest manifest = join(step_, world_, parts, state);
  std::set<std::string> wanted;
  for (const ManifestFile& file : manifest.files) {
    wanted.insert(file.name);
  }
  // What a killed save of another world size may have left in the folder.
  std::vector<std::filesystem::path> stale;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (!wanted.contains(entry.path().filename().string())) {
      stale.push_back(entry.path());
    }
  }
  for (const auto& path : stale) {
    disk_.remove_all(path);
  }
  require_all_there(folder_, manifest);
  const std::filesystem::path final_folder = checkpoint_folder(root_, step_);
  if (const auto why = state.find(kept_mark); why != state.end()) {
    mark_kept(folder_, why->second, disk_);
  } else if (is_marked_kept(final_folder)) {
    mark_kept(folder_, "for good, as the one before it", disk_);
  }
  const std::string json = to_json(manifest);
  DiskFile file(disk_, folder_ / "manifest.json");
  file.write(std::as_bytes(std::span(json)));
  file.sync_and_close();
  disk_.sync_folder(folder_);
  if (before_commit) {
    before_commit();
  }

  // A folder cannot be renamed over another one: a checkpoint of the same step steps aside, under a name by which
  // latest_checkpoint still finds it should we be killed between the two renames.
  std::filesystem::path aside = final_folder;
  aside += ".old";
  if (std::filesystem::exists(final_folder)) {
    disk_.remove_all(aside);
    disk_.rename(final_folder, aside);
  }
  disk_.rename(folder_, final_folder);
  disk_.sync_folder(root_);
  if (std::filesystem::exists(aside)) {
    disk_.remove_all(aside);
  }
  return final_folder;
}

void CheckpointWriter::abandon(bool own) noexcept {
  if (unfinished_ != nullptr) {
    unfinished_->give_up();
  }
  if (rank_ != 0 || !own) {
    return;
  }
  try {
    disk_.remove_all(folder_);
  } catch (const std::exception&) {
    // Whoever saves or prunes next removes it.
  }
}

}  // namespace orthant
