// JSON lines that a chat template makes tokens of: conversations, and pairs of answers.
#pragma once

#include <orthant/settings.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "core/data/prepare.h"
#include "core/tokenizer/model_template.h"
#include "plugins/tokenizer/chat/chat_template.h"

namespace orthant {

// A document of such a file is a line of it.
TextOptions template_lines();

using MakeLineEncoder =
    std::function<std::unique_ptr<Encoder>(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat)>;

// How the lines of settings.data.path become coded tokens by data.chat_template. coding: a name for its codes, of which
// there are `codes` for each token. output: as given. Errors: SettingError for a template that is not known, or that
// does not fit the tokenizer.
PrepareOptions tokens_by_template(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                                  std::filesystem::path output, const char* coding, int codes,
                                  const MakeLineEncoder& encoder);

using MakeModelEncoder =
    std::function<std::unique_ptr<Encoder>(const Tokenizer& tokenizer, std::shared_ptr<const ModelTemplate> chat)>;

// As tokens_by_template, by the template that the model brings (model_template_name).
PrepareOptions tokens_by_model_template(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                                        std::filesystem::path output, const char* coding, int codes,
                                        const MakeModelEncoder& encoder);

// "'a.jsonl' and 2 more files".
std::string name_of_files(const DataSettings& data, std::size_t files);

}  // namespace orthant
