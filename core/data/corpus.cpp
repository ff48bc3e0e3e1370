#include "core/data/corpus.h"

#include <orthant/error.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/data/megatron_file.h"
#include "core/data/not_text.h"
#include "core/data/token_file.h"

namespace orthant {

std::vector<Document> split_documents(std::span<const std::byte> bytes, const std::string& separator) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<Document> documents;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = separator.empty() ? std::string_view::npos : text.find(separator, begin);
    end = std::min(end, text.size());
    if (end > begin) {
      documents.push_back({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
    }
    begin = end + std::max<std::size_t>(separator.size(), 1);
  }
  return documents;
}

Corpus Corpus::text(const std::vector<std::string>& paths) {
  Corpus corpus;
  for (const std::string& path : paths) {
    Part part{.file = MappedFile(path), .documents = {}};
    if (part.file.size() == 0) {
      throw ConfigError(fmt::format("data.path: the text file '{}' is empty", path));
    }
    require_text(part.file);
    part.size = static_cast<std::int64_t>(part.file.size());
    corpus.append(std::move(part));
  }
  return corpus;
}

Corpus Corpus::tokens(const std::vector<std::string>& paths, std::int64_t vocabulary) {
  Corpus corpus;
  corpus.is_text_ = false;
  const auto of_megatron = std::count_if(paths.begin(), paths.end(), &is_megatron);
  if (of_megatron != 0 && of_megatron != std::ssize(paths)) {
    throw ConfigError(
        "data.path: some files are Megatron's, which do not say their tokenizer, and some are token files: they cannot "
        "be "
        "one row; give weights to the files by data.blend, or leave one kind out");
  }
  for (const std::string& path : paths) {
    if (of_megatron != 0) {
      corpus.append_megatron(path, vocabulary);
      continue;
    }
    MappedFile file{path};
    TokenFile header = read_token_file(file);
    if (!corpus.parts_.empty() && header.vocabulary != corpus.vocabulary_) {
      throw ConfigError(
          fmt::format("data.path: '{}' has a vocabulary of {} tokens, the files before it {}: token files "
                      "of one run must be made by one tokenizer",
                      path, header.vocabulary, corpus.vocabulary_));
    }
    if (!corpus.parts_.empty() && header.tokenizer != corpus.tokenizer_) {
      throw ConfigError(fmt::format(
          "data.path: '{}' was made by the tokenizer {:016x}, the files before it by {:016x}: token files of "
          "one run must be made by one tokenizer",
          path, header.tokenizer, corpus.tokenizer_.value_or(0)));
    }
    corpus.tokenizer_ = header.tokenizer;
    corpus.vocabulary_ = header.vocabulary;
    corpus.append({.file = std::move(file),
                   .size = header.tokens,
                   .byte_offset = header.byte_offset,
                   .width = header.width,
                   .documents = std::move(header.documents)});
  }
  return corpus;
}

void Corpus::append_megatron(const std::string& path, std::int64_t vocabulary) {
  MegatronIndex index = read_megatron_index(path);
  vocabulary_ = vocabulary;
  tokenizer_ = std::nullopt;
  append({.file = MappedFile(index.tokens_file),
          .size = index.tokens,
          .width = index.width,
          .is_signed = index.is_signed,
          .documents = std::move(index.documents)});
  const Part& part = parts_.back();
  for (std::int64_t at = 0; part.file.size() <= checked_on_open_bytes && at < part.size; ++at) {
    const std::uint64_t id = id_at(part, at);
    if (id >= static_cast<std::uint64_t>(vocabulary)) {
      throw ConfigError(
          fmt::format("'{}': token {} is {}, model.vocab_size is {}; write the tokenizer's number of tokens",
                      part.file.path().string(), at, static_cast<std::int64_t>(id), vocabulary));
    }
  }
}

void Corpus::append(Part part) {
  part.first = size_;
  size_ += part.size;
  parts_.push_back(std::move(part));
}

// A negative id is a very large one.
std::uint64_t Corpus::id_at(const Part& part, std::int64_t at) const {
  std::uint64_t id = 0;  // the files are little-endian, as are the machines this runs on
  std::memcpy(&id, part.file.bytes().data() + part.byte_offset + static_cast<std::size_t>(at) * part.width, part.width);
  const std::uint64_t sign = std::uint64_t{1} << (8 * part.width - 1);
  return part.is_signed ? (id ^ sign) - sign : id;
}

void Corpus::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const std::int64_t count = static_cast<std::int64_t>(out.size());
  require(begin >= 0 && begin <= size_ - count, "tokens [{}, {}) are outside {} ({} tokens)", begin, begin + count,
          name(), size_);
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](std::int64_t at, const Part& p) { return at < p.first; });
  std::int64_t done = 0;
  for (part = std::prev(part); done < count; ++part) {
    const std::int64_t from = begin + done - part->first;
    const std::int64_t here = std::min(count - done, part->size - from);
    for (std::int64_t i = 0; i < here; ++i) {
      const std::uint64_t id = id_at(*part, from + i);
      require(id < static_cast<std::uint64_t>(vocabulary_),
              "'{}' is damaged: token {} is {}, expected ids below {}; make it again", part->file.path().string(),
              from + i, static_cast<std::int64_t>(id), vocabulary_);
      out[done + i] = static_cast<std::int32_t>(id);
    }
    done += here;
  }
}

std::vector<Document> Corpus::documents(const std::string& separator) const {
  std::vector<Document> all;
  for (const Part& part : parts_) {
    const std::vector<Document> own = is_text_ ? split_documents(part.file.bytes(), separator) : part.documents;
    for (const Document& d : own) {
      if (d.end > d.begin) {
        all.push_back({part.first + d.begin, part.first + d.end});
      }
    }
  }
  return all;
}

std::string Corpus::name() const {
  const std::string first = parts_.empty() ? "an empty corpus" : "'" + parts_.front().file.path().string() + "'";
  return parts_.size() < 2 ? first : fmt::format("{} and {} more files", first, parts_.size() - 1);
}

}  // namespace orthant
