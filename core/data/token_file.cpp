#include "core/data/token_file.h"

#include <orthant/error.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "core/data/write_file.h"

namespace orthant {
namespace {

struct Header {
  std::array<char, 8> magic = {'O', 'R', 'T', 'H', 'T', 'O', 'K', 'N'};
  std::uint32_t version = 1;
  std::uint32_t width = 2;
  std::uint64_t vocabulary = 0;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t token_checksum = 0;
  std::uint64_t tokenizer = 0;
  std::uint64_t header_checksum = 0;
};
static_assert(sizeof(Header) == 64);
static_assert(sizeof(Document) == 16);

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// XXH3 over several pieces.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(const void* data, std::size_t size) { XXH3_64bits_update(state_.get(), data, size); }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

std::uint64_t header_checksum(const Header& header, const void* documents, std::size_t bytes) {
  Checksum sum;
  sum.add(&header, sizeof(Header) - sizeof(header.header_checksum));
  sum.add(documents, bytes);
  return sum.value();
}

template <class... Args>
void expect(bool ok, const MappedFile& file, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) {
    throw ConfigError(fmt::format("token file '{}': {}; make it again with `orthant data prepare`",
                                  file.path().string(), fmt::format(format, std::forward<Args>(args)...)));
  }
}

}  // namespace

TokenFile read_token_file(const MappedFile& file, bool check_tokens) {
  Header header;
  const std::size_t size = file.size();
  expect(size >= sizeof(Header), file, "{} bytes are too few for its {}-byte header", size, sizeof(Header));
  std::memcpy(&header, file.bytes().data(), sizeof(Header));
  expect(header.magic == Header{}.magic, file, "it does not begin with ORTHTOKN, so it is no token file");
  expect(header.version == 1 || header.version == 2, file, "version {} is not known, expected 1 or 2", header.version);
  expect(header.width == 2 || header.width == 4, file, "{} bytes a token, expected 2 or 4", header.width);
  const std::uint64_t most = header.width == 2 ? std::uint64_t{1} << 16 : std::uint64_t{1} << 31;
  expect(header.vocabulary >= 1 && header.vocabulary <= most, file, "a vocabulary of {} does not fit {} bytes a token",
         header.vocabulary, header.width);
  // Counts are compared with what the file has room for before anything is multiplied or allocated.
  const std::uint64_t body = size - sizeof(Header);
  expect(header.documents <= body / sizeof(Document), file, "{} documents do not fit its {} bytes", header.documents,
         size);
  const std::uint64_t index = header.documents * sizeof(Document);
  expect((body - index) % header.width == 0 && header.tokens == (body - index) / header.width, file,
         "it has room for {} tokens, its header says {} (cut short?)", (body - index) / header.width, header.tokens);
  expect(header.tokens > 0, file, "it has no tokens");

  TokenFile result{.width = header.width,
                   .vocabulary = static_cast<std::int64_t>(header.vocabulary),
                   .tokens = static_cast<std::int64_t>(header.tokens),
                   .byte_offset = static_cast<std::size_t>(sizeof(Header) + index),
                   .tokenizer = header.version == 1 ? 0 : header.tokenizer,
                   .documents = std::vector<Document>(header.documents)};
  const std::byte* documents = file.bytes().data() + sizeof(Header);
  expect(header_checksum(header, documents, index) == header.header_checksum, file,
         "the checksum of its header does not match, it is damaged");
  if (index > 0) {
    std::memcpy(result.documents.data(), documents, index);
  }
  std::int64_t end = 0;
  for (const Document& d : result.documents) {
    expect(d.begin >= end && d.end >= d.begin && d.end <= result.tokens, file,
           "document [{}, {}) overlaps the one before it or lies outside {} tokens", d.begin, d.end, result.tokens);
    end = d.end;
  }
  if (check_tokens || size <= checked_on_open_bytes) {
    const auto tokens = file.bytes().subspan(result.byte_offset);
    expect(XXH3_64bits(tokens.data(), tokens.size()) == header.token_checksum, file,
           "the checksum of its tokens does not match, it is damaged");
  }
  return result;
}

std::size_t token_width(std::int64_t vocabulary) {
  return vocabulary <= std::int64_t{1} << 16 ? 2 : 4;
}

void check_token_output(const std::filesystem::path& output) {
  check_output_file(output);
  constexpr Header ours;
  check_replaced(output, {ours.magic.data(), ours.magic.size()}, "token file");
}

TokenFile write_token_file(const std::filesystem::path& output, TokenFile content,
                           const std::function<void(const TokenBytes&)>& feed) {
  const std::size_t index = content.documents.size() * sizeof(Document);
  content.width = token_width(content.vocabulary);
  content.byte_offset = sizeof(Header) + index;
  Header header;
  header.version = content.tokenizer == 0 ? 1 : 2;
  header.width = static_cast<std::uint32_t>(content.width);
  header.vocabulary = static_cast<std::uint64_t>(content.vocabulary);
  header.documents = content.documents.size();
  header.tokenizer = content.tokenizer;

  check_token_output(output);
  PartialFile out(output);
  out.write(std::as_bytes(std::span(&header, 1)));
  out.write(std::as_bytes(std::span(content.documents)));
  Checksum sum;
  std::uint64_t bytes = 0;
  feed([&](std::span<const std::byte> tokens) {
    sum.add(tokens.data(), tokens.size());
    out.write(tokens);
    bytes += tokens.size();
  });
  header.tokens = bytes / content.width;
  content.tokens = static_cast<std::int64_t>(header.tokens);
  header.token_checksum = sum.value();
  header.header_checksum = header_checksum(header, content.documents.data(), index);
  out.rewind();
  out.write(std::as_bytes(std::span(&header, 1)));
  out.finish();
  return content;
}

TokenFile prepare_byte_tokens(const std::vector<std::string>& texts, const std::string& separator,
                              const std::filesystem::path& output) {
  const Corpus corpus = Corpus::text(texts);
  TokenFile content{.vocabulary = corpus.vocabulary(), .documents = corpus.documents(separator)};
  return write_token_file(output, std::move(content), [&](const TokenBytes& put) {
    std::vector<std::int32_t> ids;
    std::vector<std::uint16_t> narrow;
    constexpr std::int64_t block = 1 << 16;
    for (std::int64_t begin = 0; begin < corpus.size(); begin += block) {
      ids.resize(std::min(block, corpus.size() - begin));
      corpus.read(begin, ids);
      narrow.assign(ids.begin(), ids.end());
      put(std::as_bytes(std::span(narrow)));
    }
  });
}

}  // namespace orthant
