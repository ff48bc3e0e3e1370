#include "plugins/tokenizer/chat/template_lines.h"

#include <orthant/error.h>

#include <utility>

#include "core/data/chat_sources.h"
#include "core/tokenizer/model_template.h"

namespace orthant {
namespace {

constexpr int version_of_rows = 2;  // another one where a row would have other tokens than before

}  // namespace

TextOptions template_lines() {
  return {.whole_lines = true};
}

PrepareOptions tokens_by_template(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                                  std::filesystem::path output, const char* coding, int codes,
                                  const MakeLineEncoder& encoder) {
  std::shared_ptr<const ChatTemplate> chat;
  try {
    chat = chat_template(settings.data.chat_template);
    const ChatEncoder fits(*tokenizer, chat);
  } catch (const ConfigError& error) {
    throw SettingError("data.chat_template", error.what());
  }
  PrepareOptions options;
  options.files = settings.data.path;
  options.text = template_lines();
  options.coding = {.name = fmt::format("{} {} {:016x}", coding, version_of_rows, hash_of(*chat)),
                    .vocabulary = codes * tokenizer->vocabulary(),
                    .encoder = [tokenizer, chat, encoder] { return encoder(*tokenizer, chat); }};
  options.tokenizer = std::move(tokenizer);
  options.output = std::move(output);
  return options;
}

PrepareOptions tokens_by_model_template(const Settings& settings, std::shared_ptr<const Tokenizer> tokenizer,
                                        std::filesystem::path output, const char* coding, int codes,
                                        const MakeModelEncoder& encoder) {
  std::shared_ptr<const ModelTemplate> chat;
  try {
    chat = ModelTemplate::of({}, *tokenizer);
  } catch (const ConfigError& error) {
    throw SettingError("data.chat_template", fmt::format("data.chat_template: {}", error.what()));
  }
  if (chat == nullptr) {
    throw SettingError(
        "data.chat_template",
        fmt::format("data.chat_template: \"model\" is the template that lies with the tokenizer, and with "
                    "'{}' there is none: put a chat_template.jinja beside it, or name another template",
                    tokenizer->name()));
  }
  PrepareOptions options;
  options.files = settings.data.path;
  options.text = template_lines();
  options.coding = {.name = fmt::format("model {} {} {:016x}", coding, version_of_rows, chat->hash()),
                    .vocabulary = codes * tokenizer->vocabulary(),
                    .encoder = [tokenizer, chat, encoder] { return encoder(*tokenizer, chat); }};
  options.tokenizer = std::move(tokenizer);
  options.output = std::move(output);
  return options;
}

std::string name_of_files(const DataSettings& data, std::size_t files) {
  return fmt::format("'{}'{}", data.path.front(), files > 1 ? fmt::format(" and {} more files", files - 1) : "");
}

}  // namespace orthant
