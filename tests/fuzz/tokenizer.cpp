// A tokenizer.json: what is not refused encodes a text and gives it a length.
#include "core/tokenizer/tokenizer.h"
#include "plugins/tokenizer/published_tokenizer.h"

#include <orthant/error.h>

#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

int read_tokenizer(const std::uint8_t* data, std::size_t size) {
  try {
    const auto tokenizer = parse_tokenizer_json("fuzz", std::string(reinterpret_cast<const char*>(data), size));
    tokenizer->decode(tokenizer->encode("a b  ab\xc3\xa9 12\xff<s> b"));
  } catch (const Error&) {
  }
  return 0;
}

std::vector<std::string> tokenizer_seeds() {
  return {
      R"({"added_tokens":[{"id":4,"content":"<s>","special":true,"lstrip":true}],"normalizer":{"type":"NFC"},)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|[^\\s]+"},)"
      R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]},)"
      R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","unk_token":"?","ignore_merges":true,)"
      R"("vocab":{"?":0,"a":1,"b":2,"ab":3},"merges":["a b"]}})",
      R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},{"type":"Replace",)"
      R"("pattern":{"String":" "},"content":"_"},{"type":"Lowercase"}]},"pre_tokenizer":{"type":"Metaspace"},)"
      R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},)"
      R"({"type":"Strip","content":" ","start":1,"stop":0}]},"model":{"byte_fallback":true,"fuse_unk":true,)"
      R"("unk_token":"u","vocab":{"u":0,"<0xC3>":1,"a":2,"_":3,"_a":4},"merges":[["_","a"]]}})"};
}

}  // namespace

const Target tokenizer = {"tokenizer", read_tokenizer, tokenizer_seeds};

}  // namespace orthant::fuzz
