// What an export writes beside the weights, so that texts begin and end elsewhere as they do here: the tokenizer's
// files, generation_config.json, and the chat template that the run was trained by.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/pretrained/workshop.h"
#include "core/tokenizer/text_rules.h"

namespace orthant {

class TextExport {
 public:
  // Of a run's folder: the tokenizer that it was trained with, else that of the model it began with. Errors: those of
  // text_rules_in.
  explicit TextExport(const std::filesystem::path& run);

  // Of the tokenizer; none where it is none that is read here, or there is none.
  const SpecialTokens& special() const { return special_; }
  // Writes the files. Returns what their reader should know. vocabulary: of the model. Errors: what the disk refuses.
  std::vector<std::string> write(const Workshop& workshop, std::int64_t vocabulary) const;

 private:
  void add(const std::string& name, std::string text);
  const std::string* find(const std::string& name) const;
  void read_files(const std::filesystem::path& run);
  void read_tokenizer(const std::filesystem::path& folder, bool of_run);
  void put_template();
  std::string generation_config(std::int64_t vocabulary) const;

  TextRules rules_;
  SpecialTokens special_;
  std::string published_generation_;  // generation_config.json, as it came; empty: none did
  std::vector<TokenizerFile> files_;  // those to be written
  std::vector<std::string> notes_;
};

}  // namespace orthant
