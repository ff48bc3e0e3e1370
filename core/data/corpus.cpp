#include "core/data/corpus.h"

#include <orthant/error.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

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
    part.size = static_cast<std::int64_t>(part.file.size());
    corpus.append(std::move(part));
  }
  return corpus;
}

Corpus Corpus::tokens(const std::vector<std::string>& paths) {
  Corpus corpus;
  corpus.is_text_ = false;
  std::uint64_t tokenizer = 0;
  for (const std::string& path : paths) {
    MappedFile file{path};
    TokenFile header = read_token_file(file);
    if (!corpus.parts_.empty() && header.vocabulary != corpus.vocabulary_) {
      throw ConfigError(
          fmt::format("data.path: '{}' has a vocabulary of {} tokens, the files before it {}: token files "
                      "of one run must be made by one tokenizer",
                      path, header.vocabulary, corpus.vocabulary_));
    }
    if (!corpus.parts_.empty() && header.tokenizer != tokenizer) {
      throw ConfigError(fmt::format(
          "data.path: '{}' was made by the tokenizer {:016x}, the files before it by {:016x}: token files of "
          "one run must be made by one tokenizer",
          path, header.tokenizer, tokenizer));
    }
    tokenizer = header.tokenizer;
    corpus.vocabulary_ = header.vocabulary;
    corpus.append({.file = std::move(file),
                   .size = header.tokens,
                   .byte_offset = header.byte_offset,
                   .width = header.width,
                   .documents = std::move(header.documents)});
  }
  return corpus;
}

void Corpus::append(Part part) {
  part.first = size_;
  size_ += part.size;
  parts_.push_back(std::move(part));
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
    const std::byte* source =
        part->file.bytes().data() + part->byte_offset + static_cast<std::size_t>(from) * part->width;
    for (std::int64_t i = 0; i < here; ++i) {
      std::uint32_t id = 0;  // the files are little-endian, as are the machines this runs on
      std::memcpy(&id, source + static_cast<std::size_t>(i) * part->width, part->width);
      require(id < vocabulary_, "'{}' is damaged: token {} is {}, its header promises ids below {}; make it again",
              part->file.path().string(), from + i, id, vocabulary_);
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
