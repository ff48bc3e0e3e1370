// Checkpoints: a folder step_000100 with one safetensors file a rank, holding slices of global tensors, and a
// manifest.json. Any layout reads what any other layout wrote. README.md tells the whole protocol.
//
// Everything here is host memory; device tensors are downloaded and uploaded by the caller.
#pragma once

#include <orthant/error.h>
#include <orthant/tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/disk.h"

namespace orthant {

// A file or folder of a checkpoint that cannot be read now: not there, not permitted, a disk that fails. That tells
// nothing about what is in it, so nobody may act as if there were no checkpoint.
class CheckpointUnreadable : public Error {
 public:
  explicit CheckpointUnreadable(std::string message) : Error(std::move(message)) {}
};

// A rank's slice of a tensor: `size[i]` indices from `offset[i]` on of dimension i of the `global` shape. Of each
// element of a tensor exactly one rank writes a slice: replicas leave it to one of them.
struct SliceMeta {
  std::string name;
  DType dtype = DType::f32;
  Shape global;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> size;
};

// A checkpoint that stays for good has a file of this name in its folder, which says why. Pruning leaves it alone;
// whoever wants it gone removes the folder. In the state of a commit, the reason: then the checkpoint appears with it.
inline constexpr const char* kept_mark = "kept";

// One rank's part of a save. All ranks: construct, add..., finish(), send the result to rank 0. Rank 0 then commits.
class CheckpointWriter {
 public:
  // Writes the slice's bytes (contiguous, row-major) to `out`; called once, from finish() or copy_into().
  using Fill = std::function<void(void* out)>;

  // Writes into root/step_NNNNNN.tmp, over what a killed run may have left there. Before finish() no disk is touched.
  CheckpointWriter(const std::filesystem::path& root, std::int64_t step, std::int64_t rank, std::int64_t world,
                   Disk disk = Disk());

  // The bytes are read by finish(), until which they must stay. Slices without elements are left out.
  // Errors: Error for a slice outside its tensor, or a name used before with another dtype or shape.
  void add(const SliceMeta& slice, const void* bytes);
  // For what is not in host memory: one buffer, as large as the largest such slice, serves them all.
  void add(const SliceMeta& slice, Fill fill);

  // For a file that is written while what it holds changes. bytes_to_copy: of all slices that have a Fill. copy_into
  // fills them into `room`, one behind the other, from where finish() takes them: `room` must stay until it returns,
  // and finish() may then be called from another thread. REQUIRES: room.size() is at least bytes_to_copy().
  std::size_t bytes_to_copy() const;
  void copy_into(std::span<std::byte> room);

  // Writes and fsyncs this rank's file. Returns its part of the manifest.
  std::string finish();

  // On rank 0, after every rank's finish(). `parts` in the order of ranks; `state` is free-form (data position,
  // optimizer step). Checks that the slices of each tensor hold each element exactly once, and that each rank's file is
  // there with the bytes that it wrote, whichever host that was; writes and fsyncs the manifest, renames the folder,
  // fsyncs its parent. Returns the folder. Errors: Error; no checkpoint appears then. before_commit: called right
  // before the rename; what it throws is thrown on, and no checkpoint appears.
  std::filesystem::path commit(std::span<const std::string> parts, const std::map<std::string, std::string>& state,
                               const std::function<void()>& before_commit = {});

  // After a save that failed on any rank: a disk that is full does not stay full of it. This rank's file is emptied
  // unless it was finished. Rank 0 removes the folder, which nobody else could commit, where it is `own`: it may be
  // another job's by now. What cannot be removed stays.
  void abandon(bool own) noexcept;

 private:
  struct Entry {
    SliceMeta meta;
    std::string key;
    const void* bytes = nullptr;
    Fill fill;
    std::size_t size() const;  // in bytes
  };
  void append(const SliceMeta& slice, const void* bytes, Fill fill);

  Disk disk_;
  std::filesystem::path root_;
  std::filesystem::path folder_;
  std::int64_t step_;
  std::int64_t rank_;
  std::int64_t world_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> first_of_;  // name -> its first entry
  std::unique_ptr<DiskFile> unfinished_;         // this rank's file while finish() writes it, and when that failed
};

struct Manifest;

// Tensors that something else than a checkpoint's files holds. Thread safety: const calls from any thread.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // As CheckpointReader's. REQUIRES: the slice lies inside.
  virtual void read(const std::string& name, const std::vector<std::int64_t>& offset,
                    const std::vector<std::int64_t>& size, void* out) const = 0;
  virtual void release_memory() const = 0;
};

// A complete checkpoint. Thread safety: const calls from any thread.
class CheckpointReader {
 public:
  struct TensorInfo {
    DType dtype;
    Shape shape;  // global
  };

  // Validates the manifest and the files' sizes; a file's checksum and header when it is first read from.
  // Errors: Error naming the file, what was expected and what was found; CheckpointUnreadable.
  explicit CheckpointReader(const std::filesystem::path& folder);
  // The same, but `info` and `read` of NAME are those of prefix + NAME where there is such a tensor.
  CheckpointReader(const std::filesystem::path& folder, std::string prefix);
  // What `source` holds, as a checkpoint of step 0. folder: for messages; it has no files of a checkpoint.
  CheckpointReader(std::filesystem::path folder, const std::map<std::string, TensorInfo>& tensors,
                   std::map<std::string, std::string> state, std::shared_ptr<const TensorSource> source);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  std::int64_t step() const;
  std::int64_t world() const;
  const std::map<std::string, std::string>& state() const;
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  TensorInfo info(const std::string& name) const;  // Errors: Error when there is none of this name

  // Any slice, put together from whatever slices the files hold. `out` has room for it, contiguous and row-major.
  // Errors: Error for an unknown name, a slice outside the tensor, or a damaged file; CheckpointUnreadable.
  void read(const std::string& name, const std::vector<std::int64_t>& offset, const std::vector<std::int64_t>& size,
            void* out) const;
  // Reads files whole and compares checksums and headers with the manifest: all of them, or the share `part` of
  // `parts` (every parts-th), by which ranks verify a checkpoint together.
  // Errors: Error naming a damaged file; CheckpointUnreadable. REQUIRES: 0 <= part < parts.
  void verify(std::int64_t part = 0, std::int64_t parts = 1) const;
  std::uint64_t bytes() const;  // of all its files
  // The memory in which files were read goes back to the system; what is read again comes from the files again.
  void release_memory() const;

 private:
  const SafetensorsReader& file(std::size_t index) const;
  std::string stored_name(const std::string& name) const;

  std::filesystem::path folder_;
  std::string prefix_;
  std::unique_ptr<Manifest> manifest_;
  std::unique_ptr<std::mutex> mutex_;
  mutable std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::shared_ptr<const TensorSource> source_;  // null: the files
};

// root/step_000100
std::filesystem::path checkpoint_folder(const std::filesystem::path& root, std::int64_t step);

// A folder that has the name of a checkpoint.
struct NamedCheckpoint {
  std::int64_t step = 0;       // by its name
  std::string suffix;          // "", ".old" (stepped aside for a save that was killed), ".tmp" (a save that was killed)
  std::filesystem::path path;  // as given
  bool finished() const { return suffix != ".tmp"; }
};

// Nothing for a path of any other name.
std::optional<NamedCheckpoint> named_checkpoint(const std::filesystem::path& path);

// Those under `root`, newest first, of one step the one without suffix first. None where there is no `root`.
// Errors: CheckpointUnreadable where it cannot be listed.
std::vector<NamedCheckpoint> checkpoints_in(const std::filesystem::path& root);

// Folders under `root` that hold a manifest under a name that is no step's, each with the reason why nothing is taken
// from it. A link to a checkpoint beside it is none. Errors: CheckpointUnreadable where `root` cannot be listed.
std::vector<std::string> misnamed_in(const std::filesystem::path& root);

// Why the checkpoint cannot be used: it is damaged, or its folder has another step's name. Empty: it can be. Verifies
// the share `part` of `parts`. Errors: CheckpointUnreadable.
std::string why_not_usable(const NamedCheckpoint& checkpoint, std::int64_t part = 0, std::int64_t parts = 1);

// The newest checkpoint under `root` that is complete and undamaged (it reads all of it); nothing when there is none.
// `skipped`: a line for each misnamed one, and each newer one that is not, with the reason. Errors:
// CheckpointUnreadable where a newer one cannot be read, or `root` be listed.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root,
                                                       std::vector<std::string>* skipped = nullptr);

// Which checkpoints of a run stay: the newest ones, whatever their steps, and all whose step is a multiple of `every`.
struct KeptCheckpoints {
  std::int64_t newest = 1;  // run.keep
  std::int64_t every = 0;   // run.keep_every; 0: no others
};

void mark_kept(const std::filesystem::path& checkpoint, const std::string& why, const Disk& disk = Disk());
bool is_marked_kept(const std::filesystem::path& checkpoint);

// Removes all complete checkpoints but those of `kept` and those that are marked, and the leavings of killed saves up
// to the newest complete step. Marks those that `kept.every` keeps. Folders that are neither are left alone, and so are
// checkpoints of later steps than `saved`, the one that was just written: they are not of this run's way, and do not
// count. One that cannot be removed does not keep the others. REQUIRES: kept.newest >= 1; called by rank 0 alone.
// Errors: Error naming the first that cannot be removed, at the end.
void prune_checkpoints(const std::filesystem::path& root, KeptCheckpoints kept, const Disk& disk = Disk(),
                       std::int64_t saved = std::numeric_limits<std::int64_t>::max());

}  // namespace orthant
