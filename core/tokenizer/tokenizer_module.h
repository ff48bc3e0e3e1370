// The module "tokenizer" (plugins/tokenizer): published tokenizers, chat templates, and the files of conversations,
// with the libraries that they need. It is opened when the first of its methods is asked for: a run on bytes or on
// token files never opens it.
#pragma once

#include <orthant/source.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/tokenizer/model_template.h"
#include "core/tokenizer/text_rules.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

struct TrainTokenizerOptions {
  std::int64_t vocabulary = 32000;  // tokens, the 256 bytes and bos, eos, unk among them
  std::string type = "bpe";         // or "unigram"
  std::int64_t most_sentences = 0;  // 0: all; else a sample of them, drawn by a fixed seed
  int threads = 1;
};

struct HuggingFaceFiles {
  std::vector<TokenizerFile> files;  // none where no tokenizer.json has the same ids
  std::vector<std::string> notes;    // why there are none, or where ids can differ
};

// What each method does, and its errors: the function of the same purpose in plugins/tokenizer. Thread safety:
// constant.
class TokenizerModule {
 public:
  virtual ~TokenizerModule() = default;

  // files: as Tokenizer::files() has them; the first is named tokenizer.json or tokenizer.model.
  virtual std::shared_ptr<const Tokenizer> make(const std::string& name, std::vector<TokenizerFile> files) const = 0;
  // Bytes of a .model. `next` gives a sentence each time, and false at the end.
  virtual std::string train(const TrainTokenizerOptions& options,
                            const std::function<bool(std::string&)>& next) const = 0;
  // A .model as the files that transformers reads. has_template: a chat template goes with them.
  virtual HuggingFaceFiles hugging_face_files(const Tokenizer& sentencepiece, bool has_template) const = 0;
  // The tokenizer_config.json of a tokenizer.json that came without.
  virtual nlohmann::ordered_json minimal_config(const Tokenizer& tokenizer) const = 0;

  virtual std::shared_ptr<const ModelTemplate> model_template(const TextRules& rules,
                                                              const Tokenizer& tokenizer) const = 0;
  // Of a chat template by its name, or a file of one.
  virtual TextRules rules_of_chat(const std::string& chat_template, const Tokenizer& tokenizer) const = 0;

  // "chat" or "pairs".
  virtual std::shared_ptr<const Source> source(const std::string& name) const = 0;
  // What the rows of the files of these sources have beside what is read of them, a sentence for each file.
  virtual std::vector<std::string> notes_of_rows(const Settings& settings) const = 0;
};

// Thread safety: from any thread. Errors: ConfigError where the module is missing, damaged or built with another tree,
// with its file and what to do; a build folder builds it first, where it can (core/modules/module.h).
const TokenizerModule& tokenizer_module();

}  // namespace orthant
