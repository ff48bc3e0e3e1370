#include "core/data/token_cache.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "core/base/file_lock.h"
#include "core/base/output.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t longest_stem = 100;
constexpr std::chrono::seconds between_notes{10};

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

fs::path place_of(const PrepareOptions& options, const std::string& path) {
  const TextFile text(path, options.text);
  const std::string how = fmt::format("{} json {}", tokens_depend_on(options), is_json_lines(path));
  const std::span<const std::byte> bytes = text.file().bytes();
  return options.output / fmt::format("{}-{:016x}-{:016x}.tok", fs::path(path).stem().string().substr(0, longest_stem),
                                      XXH3_64bits(bytes.data(), bytes.size()), XXH3_64bits(how.data(), how.size()));
}

bool is_whole(const fs::path& place) {
  if (!fs::exists(place)) {
    return false;
  }
  try {
    read_token_file(MappedFile(place));
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// Held by one process of this machine at a time; the others wait. The system gives it back when its holder dies.
class FolderLock {
 public:
  FolderLock(const fs::path& folder, const std::string& host) {
    const fs::path path = folder / ("lock." + host);
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int error = lock_ < 0 ? errno : lock_file(lock_, false);
    if (error == EWOULDBLOCK) {
      say("orthant: note: waits for another process that makes tokens in '{}'", folder.string());
      error = lock_file(lock_, true);
    }
    if (error != 0) {
      close();
      fail("cannot lock '{}': {}; make token files with `orthant data prepare` and use data.source = \"tokens\"",
           path.string(), std::generic_category().message(error));
    }
  }
  ~FolderLock() { close(); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void close() const {
    if (lock_ >= 0) {
      ::close(lock_);
    }
  }

  int lock_ = -1;
};

void make(const PrepareOptions& options, const std::string& file, const fs::path& place) {
  const std::string host = host_name();
  fs::create_directories(options.output);
  const FolderLock lock(options.output, host);
  if (is_whole(place)) {
    return;
  }
  say("orthant: note: makes tokens of '{}' with '{}', kept in '{}'", file, options.tokenizer->name(), place.string());
  PrepareOptions one = options;
  one.files = {file};
  one.output = place;
  one.output += "." + host;
  one.progress = [&file, last = Clock::now()](const PrepareProgress& progress) mutable {
    if (Clock::now() - last >= between_notes) {
      last = Clock::now();
      say("orthant: note: tokens of '{}': {:.0f} %", file,
          100 * static_cast<double>(progress.bytes) /
              static_cast<double>(std::max<std::uint64_t>(progress.bytes_in_all, 1)));
    }
  };
  prepare_tokens(one);
  require(place_of(options, file) == place, "'{}' changed while its tokens were made: start again", file);
  rename_and_sync(one.output, place);
}

}  // namespace

std::vector<std::string> cached_tokens(const PrepareOptions& options) {
  std::vector<std::string> places;
  for (const std::string& file : options.files) {
    const fs::path place = place_of(options, file);
    if (!is_whole(place)) {
      make(options, file, place);
    }
    places.push_back(place.string());
  }
  return places;
}

std::optional<std::vector<std::string>> find_cached_tokens(const PrepareOptions& options) {
  std::vector<std::string> places;
  bool all = true;
  for (const std::string& file : options.files) {
    const fs::path place = place_of(options, file);
    all = all && is_whole(place);
    places.push_back(place.string());
  }
  return all ? std::optional(std::move(places)) : std::nullopt;
}

fs::path token_cache_folder(const Settings& settings) {
  return fs::path(settings.run.directory) / ".tokens";
}

}  // namespace orthant
