#include "parallel/launch/start_secret.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/keyed_hash.h"
#include "parallel/launch/rank_process.h"

namespace orthant {
namespace {

std::string new_secret() {
  return to_hex(random_bytes(16));
}

// Whole or not at all, in place of what an earlier start has left there.
void write_private(const std::filesystem::path& file, const std::string& text) {
  std::error_code ignored;
  if (file.has_parent_path()) {
    std::filesystem::create_directories(file.parent_path(), ignored);  // opening says what is wrong
  }
  const std::string fresh = fmt::format("{}.{}", file.string(), to_hex(random_bytes(4)));
  const char* action = "write";
  const auto require_done = [&](bool done) {
    const int reason = errno;
    if (!done) {
      unlink(fresh.c_str());
      fail("cannot {} the secret of this start, {}: {}", action, file.string(), std::strerror(reason));
    }
  };
  const Descriptor opened(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  require_done(opened.is_open());
  require_done(write(opened.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  require_done(fsync(opened.get()) == 0);  // to a server, from where other machines read it
  action = "rename";
  require_done(rename(fresh.c_str(), file.c_str()) == 0);
}

}  // namespace

bool StartSecret::take_given(const EnvironmentLookup& environment) {
  place_.value = environment("ORTHANT_SECRET").value_or("");
  try {
    return !place_.value.empty() && read_secret(place_).has_value();
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

StartSecret::StartSecret(const EnvironmentLookup& environment) {
  if (!take_given(environment)) {
    place_.value = new_secret();
  }
}

StartSecret::StartSecret(const EnvironmentLookup& environment, const ExternalRank& external,
                         const std::filesystem::path& run_directory, bool dry) {
  if (take_given(environment)) {
    return;
  }
  const std::string key = to_hex(keyed_hash(external.run_key, "start").substr(0, 8));
  place_.file = run_directory.parent_path() / fmt::format(".{}.{}.secret", run_directory.filename().string(), key);
  if (external.rank == 0 && !dry) {
    place_.value = new_secret();
    write_private(place_.file, place_.value);
    wrote_ = true;
  }
}

StartSecret::~StartSecret() {
  if (wrote_) {
    std::error_code ignored;
    std::filesystem::remove(place_.file, ignored);
  }
}

std::vector<std::pair<std::string, std::string>> StartSecret::variables() const {
  std::vector<std::pair<std::string, std::string>> found;
  if (!place_.value.empty()) {
    found.emplace_back("ORTHANT_SECRET", place_.value);
  }
  if (!place_.file.empty()) {
    found.emplace_back("ORTHANT_SECRET_FILE", place_.file.string());
  }
  return found;
}

}  // namespace orthant
