#include "core/data/prepare.h"

#include <orthant/error.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/data/parts_folder.h"
#include "core/data/write_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr int version_of_tokens = 1;  // another one where a text would have other tokens than before

// Documents [first, end) of a text file.
struct Shard {
  const TextFile* file;
  std::size_t first, end;
  std::uint64_t bytes;
};

std::vector<Shard> cut_shards(const std::vector<TextFile>& files, std::uint64_t least_bytes) {
  std::vector<Shard> shards;
  for (const TextFile& file : files) {
    const std::vector<Document>& documents = file.documents();
    Shard shard{&file, 0, 0, 0};
    for (std::size_t i = 0; i < documents.size(); ++i) {
      shard.end = i + 1;
      shard.bytes += static_cast<std::uint64_t>(documents[i].end - documents[i].begin);
      if (shard.bytes >= least_bytes || shard.end == documents.size()) {
        shards.push_back(shard);
        shard = {&file, shard.end, shard.end, 0};
      }
    }
  }
  return shards;
}

// All that the shards depend on. Another text of the same size and time is not noticed.
std::string describe_job(const PrepareOptions& options, const std::vector<TextFile>& files) {
  std::string job = fmt::format("{}\nshard bytes {}\n", tokens_depend_on(options), options.shard_bytes);
  for (const TextFile& file : files) {
    const fs::path path = fs::absolute(file.file().path());
    job += fmt::format("{} {} '{}'\n", file.file().size(), fs::last_write_time(path).time_since_epoch().count(),
                       path.string());
  }
  return job;
}

// What one thread needs to encode a shard.
class ShardEncoder {
 public:
  explicit ShardEncoder(const PrepareOptions& options)
      : options_(options),
        encoder_(options.coding ? options.coding->encoder() : options.tokenizer->encoder()),
        width_(token_width(options.vocabulary())) {}

  // Returns the tokens that were written.
  std::int64_t encode(const Shard& shard, std::size_t number, const PartsFolder& parts) {
    sizes_.clear();
    ids_.clear();
    for (std::size_t i = shard.first; i < shard.end; ++i) {
      const std::string_view text = shard.file->text(shard.file->documents()[i], decoded_);
      if (text.empty()) {
        continue;
      }
      const std::size_t before = ids_.size();
      if (options_.bos) {
        ids_.push_back(*options_.bos);
      }
      encode(text, *shard.file, shard.file->documents()[i]);
      if (options_.eos) {
        ids_.push_back(*options_.eos);
      }
      if (ids_.size() > before) {
        sizes_.push_back(ids_.size() - before);
      }
    }
    if (width_ == sizeof(std::uint16_t)) {
      narrow_.assign(ids_.begin(), ids_.end());
      parts.put(number, sizes_, std::as_bytes(std::span(narrow_)));
    } else {
      parts.put(number, sizes_, std::as_bytes(std::span(ids_)));
    }
    return static_cast<std::int64_t>(ids_.size());
  }

 private:
  void encode(std::string_view text, const TextFile& file, const Document& document) {
    try {
      encoder_->encode(text, ids_);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", file.place(document), error.what()));
    } catch (const Error& error) {
      fail("{}: {}", file.place(document), error.what());
    }
  }

  const PrepareOptions& options_;
  std::unique_ptr<Encoder> encoder_;
  std::size_t width_;
  std::string decoded_;
  std::vector<std::uint64_t> sizes_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint16_t> narrow_;
};

// Encodes what is not finished, in options.threads threads.
class Work {
 public:
  Work(const PrepareOptions& options, const std::vector<Shard>& shards, const PartsFolder& parts)
      : options_(options), shards_(shards), parts_(parts) {
    for (const Shard& shard : shards) {
      progress_.bytes_in_all += shard.bytes;
    }
  }

  void run() {
    const int threads =
        std::clamp<int>(options_.threads, 1, static_cast<int>(std::max<std::size_t>(1, shards_.size())));
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) {
      others.emplace_back([this] { encode_shards(); });
    }
    encode_shards();
    others.clear();
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  void encode_shards() noexcept {
    try {
      ShardEncoder encoder(options_);
      for (std::size_t i = next_++; i < shards_.size() && !failed_; i = next_++) {
        const auto part = parts_.finished(i);
        const std::int64_t tokens =
            part ? static_cast<std::int64_t>(part->tokens.size() / width()) : encoder.encode(shards_[i], i, parts_);
        report(shards_[i].bytes, tokens);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = error_ ? error_ : std::current_exception();
      failed_ = true;
    }
  }

  std::size_t width() const { return token_width(options_.vocabulary()); }

  void report(std::uint64_t bytes, std::int64_t tokens) {
    const std::lock_guard lock(mutex_);
    progress_.bytes += bytes;
    progress_.tokens += tokens;
    if (options_.progress) {
      options_.progress(progress_);
    }
  }

  const PrepareOptions& options_;
  const std::vector<Shard>& shards_;
  const PartsFolder& parts_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  PrepareProgress progress_;
  std::exception_ptr error_;
};

}  // namespace

std::string tokens_depend_on(const PrepareOptions& options) {
  return fmt::format("tokens {} of {:016x} {}, bos {} eos {}, separator '{}' key '{}' lines {} coding '{}'",
                     version_of_tokens, options.tokenizer->hash(), options.vocabulary(), options.bos.value_or(-1),
                     options.eos.value_or(-1), options.text.separator, options.text.text_key, options.text.whole_lines,
                     options.coding ? options.coding->name : "");
}

TokenFile prepare_tokens(const PrepareOptions& options) {
  check_token_output(options.output);
  std::vector<TextFile> files;
  for (const std::string& path : options.files) {
    files.emplace_back(path, options.text);
  }
  const std::vector<Shard> shards = cut_shards(files, options.shard_bytes);
  fs::path folder = options.output;
  folder += ".parts";
  PartsFolder parts(folder, describe_job(options, files));
  try {
    Work(options, shards, parts).run();
  } catch (const ConfigError&) {
    parts.remove();  // a text is refused: whoever mends it begins another job
    throw;
  }

  TokenFile content{.vocabulary = options.vocabulary(), .tokenizer = options.tokenizer->hash()};
  const auto finished = [&](std::size_t shard, bool check) {
    std::optional<PartsFolder::Part> part = parts.finished(shard, check);
    require(part.has_value(), "'{}': a finished shard is damaged now: is the disk broken? Give the same command again",
            folder.string());
    return std::move(*part);
  };
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const std::uint64_t size : finished(i, false).sizes) {  // checked below, before they count
      content.documents.push_back({tokens, tokens + static_cast<std::int64_t>(size)});
      tokens += static_cast<std::int64_t>(size);
    }
  }
  if (tokens == 0) {
    parts.remove();  // no other call can go on from them
    throw ConfigError(fmt::format("'{}' and {} more files have no text", options.files.front(), files.size() - 1));
  }
  TokenFile written = write_token_file(options.output, std::move(content), [&](const TokenBytes& put) {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      put(finished(i, true).tokens);
    }
  });
  parts.remove();
  return written;
}

}  // namespace orthant
