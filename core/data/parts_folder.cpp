#include "core/data/parts_folder.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/base/file_lock.h"
#include "core/base/list_folder.h"
#include "core/data/write_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

struct PartHeader {
  std::array<char, 8> magic = {'O', 'R', 'T', 'H', 'P', 'A', 'R', 'T'};
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;     // of tokens
  std::uint64_t checksum = 0;  // XXH3 of all that follows
};
static_assert(sizeof(PartHeader) == 32);

// Of every job; what stands behind it says which.
constexpr std::string_view job_mark = "orthant shards 1\n";

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// "000012.part", complete or not.
bool is_shard(std::string name) {
  if (name.ends_with(".partial")) {
    name.resize(name.size() - std::string_view(".partial").size());
  }
  constexpr std::string_view end = ".part";
  return name.size() >= 6 + end.size() && name.ends_with(end) &&
         std::all_of(name.begin(), name.end() - static_cast<std::ptrdiff_t>(end.size()),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<fs::path> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> names = list_folder(folder, error);
  require(!error, "cannot read '{}': {}", folder.string(), error.message());
  return names;
}

// A folder that somebody else has filled is not taken over: what lies there might be all that there is of it.
void refuse_others(const fs::path& folder) {
  const std::vector<fs::path> names = names_in(folder);
  const bool ours = text_of(folder / "job").starts_with(job_mark) ||
                    std::all_of(names.begin(), names.end(), [](const fs::path& path) {
                      return path.filename() == "lock" || path.filename() == "job.partial";  // of a call just begun
                    });
  require(ours, "'{}' is there and holds files that are not shards of a token file: move it, or give another output",
          folder.string());
}

}  // namespace

PartsFolder::Lock::Lock(const fs::path& file) : file_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (file_ < 0) {
    const int error = errno;
    fail("cannot make '{}': {}", file.string(), std::generic_category().message(error));
  }
  if (lock_file(file_, false) != 0) {
    ::close(file_);
    fail("'{}' belongs to another process that makes the same file: wait for it, or give another output",
         file.parent_path().string());
  }
}

PartsFolder::Lock::~Lock() {
  ::close(file_);
}

PartsFolder::PartsFolder(fs::path folder, const std::string& job) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directory(folder_, error);
  std::error_code ignored;
  require(fs::is_directory(folder_, ignored), "'{}' is needed as a folder, and cannot be made: {}", folder_.string(),
          error ? error.message() : "a file of that name is there");
  refuse_others(folder_);
  lock_.emplace(folder_ / "lock");
  const fs::path known = folder_ / "job";
  const std::string whole = std::string(job_mark) + job;
  if (text_of(known) != whole) {
    remove_shards();
    write_file(known, whole);
  }
}

void PartsFolder::remove_shards() const {
  for (const fs::path& path : names_in(folder_)) {
    if (is_shard(path.filename().string())) {
      std::error_code error;
      fs::remove(path, error);
      require(!error, "cannot remove '{}': {}", path.string(), error.message());
    }
  }
}

fs::path PartsFolder::path_of(std::size_t shard) const {
  return folder_ / fmt::format("{:06}.part", shard);
}

void PartsFolder::put(std::size_t shard, std::span<const std::uint64_t> sizes,
                      std::span<const std::byte> tokens) const {
  PartHeader header;
  header.documents = sizes.size();
  header.bytes = tokens.size();
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, sizes.data(), sizes.size_bytes());
  XXH3_64bits_update(&state, tokens.data(), tokens.size());
  header.checksum = XXH3_64bits_digest(&state);
  write_file(path_of(shard), {std::as_bytes(std::span(&header, 1)), std::as_bytes(sizes), tokens});
}

std::optional<PartsFolder::Part> PartsFolder::finished(std::size_t shard, bool check) const {
  if (!fs::exists(path_of(shard))) {
    return std::nullopt;
  }
  Part part{.file = MappedFile(path_of(shard)), .sizes = {}, .tokens = {}};
  const std::span<const std::byte> bytes = part.file.bytes();
  PartHeader header;
  if (bytes.size() < sizeof header) {
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::span<const std::byte> body = bytes.subspan(sizeof header);
  if (header.magic != PartHeader{}.magic || header.documents > body.size() / sizeof(std::uint64_t) ||
      body.size() - header.documents * sizeof(std::uint64_t) != header.bytes ||
      (check && XXH3_64bits(body.data(), body.size()) != header.checksum)) {
    return std::nullopt;
  }
  part.sizes.resize(header.documents);
  if (header.documents > 0) {
    std::memcpy(part.sizes.data(), body.data(), header.documents * sizeof(std::uint64_t));
  }
  part.tokens = body.subspan(header.documents * sizeof(std::uint64_t));
  return part;
}

void PartsFolder::remove() const {
  remove_shards();
  std::error_code ignored;  // what somebody has put there stays, and the folder with it
  for (const char* name : {"job", "job.partial", "lock"}) {
    fs::remove(folder_ / name, ignored);
  }
  fs::remove(folder_, ignored);
}

}  // namespace orthant
