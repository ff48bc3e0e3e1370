// The streams and the scratch space of one rank's offload, and what has travelled.
//
// Thread safety: one per rank; used on its own thread.
#pragma once

#include <orthant/device.h>
#include <orthant/ops.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "files/scratch_file.h"

namespace orthant::offload {

// Where tensors stay between their uses.
enum class Place { device, host, nvme };

// Bytes of one rank since the start.
struct Traffic {
  std::int64_t to_host = 0, to_device = 0;  // between the device and the host's memory
  std::int64_t written = 0, read = 0;       // of scratch files, as tensors count them
  bool operator==(const Traffic&) const = default;
};

// Room in scratch files.
class ScratchSpace {
 public:
  struct Range {
    ScratchFile* file = nullptr;
    std::int64_t offset = 0, bytes = 0;
    std::shared_ptr<Event> free;  // null, or nobody uses it behind this
  };

  // makes_files: false in a plan, which only counts.
  ScratchSpace(std::string directory, int rank, bool makes_files)
      : directory_(std::move(directory)), rank_(rank), makes_files_(makes_files) {}
  // Takes room for `bytes` more, in one file. Errors: those of ScratchFile.
  void reserve(std::int64_t bytes);
  // A range of what was reserved or given back; where that is too little more is reserved, and some ahead.
  Range take(std::int64_t bytes);
  // For the next take of as many bytes.
  void give_back(Range range);
  std::int64_t bytes() const { return bytes_; }  // of all files

 private:
  struct Part {
    std::unique_ptr<ScratchFile> file;  // null in a plan
    std::int64_t bytes = 0, used = 0;
  };

  std::string directory_;
  int rank_;
  bool makes_files_;
  std::vector<Part> parts_;
  std::multimap<std::int64_t, Range> free_;  // by bytes
  std::int64_t bytes_ = 0;
};

struct Lanes {
  // device: whose tensors go away.
  Lanes(Device& of, std::string directory, int rank);

  // What is being read or written has memory of the host until that is done. Waits for the oldest where they are many:
  // a disk that is slower than the rank does not fill the memory.
  void began_to_read(std::shared_ptr<Event> there);
  void began_to_write(std::shared_ptr<Event> written);

  Device& device;
  ScratchSpace space;
  Traffic traffic;
  // What is enqueued on one lane runs in order; lanes wait for each other by events.
  std::unique_ptr<Stream> down, up;  // copies to and from the host's memory
  std::unique_ptr<Stream> host;      // arithmetic in the host's memory
  std::deque<std::shared_ptr<Event>> reading, writing;
  std::unique_ptr<Stream> writes, reads;  // of scratch files
};

}  // namespace orthant::offload
