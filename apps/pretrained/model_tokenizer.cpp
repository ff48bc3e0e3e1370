#include "apps/pretrained/model_tokenizer.h"

namespace orthant {
namespace {

// The vocabulary of a run on bytes.
constexpr std::int64_t byte_ids = 256;

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_of(const OpenedModel& model, const std::string& given) {
  const std::int64_t words = model.config().settings.model.vocab_size;
  if (given.empty() && model.tokenizer().empty() && words != byte_ids) {
    throw ConfigError(
        fmt::format("no tokenizer lies with the model, and its {} ids are not those of bytes ({}): give the one that "
                    "it was trained with, --tokenizer FILE; a run on bytes with more ids is read by --tokenizer bytes",
                    words, byte_ids));
  }
  const std::string name = !given.empty() ? given : model.tokenizer().empty() ? "bytes" : model.tokenizer().string();
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(name);
  if (tokenizer->vocabulary() > words) {
    throw ConfigError(
        fmt::format("the tokenizer {} has {} tokens, the model {}: give the one that it was trained with "
                    "(--tokenizer FILE)",
                    tokenizer->name(), tokenizer->vocabulary(), words));
  }
  return tokenizer;
}

}  // namespace orthant
