#include "core/data/chat_sources.h"

#include <orthant/source.h>

#include <memory>
#include <utility>

#include "core/data/data_tokenizer.h"
#include "core/tokenizer/tokenizer_module.h"

namespace orthant {
namespace {

constexpr const char* chat_name = "chat";
constexpr const char* pairs_name = "pairs";

class ModuleSource final : public Source {
 public:
  explicit ModuleSource(std::string name) : name_(std::move(name)) {}
  std::unique_ptr<Sequences> open(const Settings& settings) const override { return source()->open(settings); }
  std::unique_ptr<Sequences> peek(const Settings& settings) const override { return source()->peek(settings); }
  std::optional<std::int64_t> vocabulary(const Settings& settings) const override {
    return tokenizer_of(settings.data)->vocabulary();
  }
  bool reads_files() const override { return true; }
  bool holds_all_out() const override { return true; }

 private:
  std::shared_ptr<const Source> source() const { return tokenizer_module().source(name_); }

  std::string name_;
};

}  // namespace

void add_chat_sources(Catalogue& catalogue) {
  catalogue.add<Source>(chat_name, "Conversations and instructions in JSON lines; answers are learnt.",
                        std::make_shared<ModuleSource>(chat_name));
  catalogue.add<Source>(pairs_name, "Pairs of answers in JSON lines, for the loss of [preference].",
                        std::make_shared<ModuleSource>(pairs_name));
}

bool reads_by_template(const Settings& settings) {
  return settings.data.source == chat_name || settings.data.source == pairs_name;
}

std::vector<std::string> notes_of_rows(const Settings& settings) {
  return reads_by_template(settings) ? tokenizer_module().notes_of_rows(settings) : std::vector<std::string>();
}

}  // namespace orthant
