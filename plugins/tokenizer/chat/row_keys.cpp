#include "plugins/tokenizer/chat/row_keys.h"

#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "core/data/text_file.h"
#include "plugins/tokenizer/chat/template_lines.h"

namespace orthant {
namespace {

using Names = std::vector<std::string_view>;

enum class Why { unwritten, kind, mask };

struct Refused {
  std::string_view key;
  Why why;
};

constexpr std::array refused_in_messages = {Refused{"tool_calls", Why::unwritten},
                                            Refused{"function_call", Why::unwritten},
                                            Refused{"tool_call_id", Why::unwritten},
                                            Refused{"tools", Why::unwritten},
                                            Refused{"functions", Why::unwritten},
                                            Refused{"reasoning_content", Why::unwritten},
                                            Refused{"reasoning", Why::unwritten},
                                            Refused{"reasoning_details", Why::unwritten},
                                            Refused{"thinking", Why::unwritten},
                                            Refused{"thoughts", Why::unwritten},
                                            Refused{"refusal", Why::unwritten},
                                            Refused{"documents", Why::unwritten},
                                            Refused{"audio", Why::kind},
                                            Refused{"audios", Why::kind},
                                            Refused{"image", Why::kind},
                                            Refused{"images", Why::kind},
                                            Refused{"video", Why::kind},
                                            Refused{"videos", Why::kind},
                                            Refused{"train_detail", Why::mask},
                                            Refused{"training_detail", Why::mask},
                                            Refused{"loss", Why::mask},
                                            Refused{"loss_scale", Why::mask},
                                            Refused{"loss_mask", Why::mask},
                                            Refused{"mask", Why::mask},
                                            Refused{"masked", Why::mask},
                                            Refused{"loss_weight", Why::mask}};

constexpr std::array refused_in_rows = {Refused{"tools", Why::unwritten},
                                        Refused{"functions", Why::unwritten},
                                        Refused{"documents", Why::unwritten},
                                        Refused{"chat_template_kwargs", Why::unwritten},
                                        Refused{"chat_template", Why::unwritten},
                                        Refused{"reasoning_content", Why::unwritten},
                                        Refused{"reasoning", Why::unwritten},
                                        Refused{"thinking", Why::unwritten},
                                        Refused{"tool_calls", Why::unwritten},
                                        Refused{"function_call", Why::unwritten},
                                        Refused{"audio", Why::kind},
                                        Refused{"audios", Why::kind},
                                        Refused{"image", Why::kind},
                                        Refused{"images", Why::kind},
                                        Refused{"video", Why::kind},
                                        Refused{"videos", Why::kind},
                                        Refused{"loss_mask", Why::mask},
                                        Refused{"loss_weight", Why::mask},
                                        Refused{"loss_scale", Why::mask},
                                        Refused{"sample_weight", Why::mask},
                                        Refused{"labels", Why::mask},
                                        Refused{"mask", Why::mask}};

const Names read_in_messages = {"role", "from", "content", "value", "weight", "train", "training"};
const Names lists_of_messages = {"messages",   "conversations", "conversation", "prompt",
                                 "completion", "chosen",        "rejected"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == false ||
         ((value.is_string() || value.is_array() || value.is_object()) && value.empty());
}

bool is_one_of(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class List>
bool is_refused(const List& list, std::string_view key) {
  return std::any_of(list.begin(), list.end(), [&](const Refused& one) { return one.key == key; });
}

template <class List>
void check_keys(const Json& object, const List& refused, const std::string& where) {
  for (const Refused& one : refused) {
    const auto found = object.find(std::string(one.key));
    if (found == object.end() || says_nothing(*found)) {
      continue;
    }
    switch (one.why) {
      case Why::unwritten:
        throw ConfigError(
            fmt::format("{}\"{}\" is no part of what a chat template writes here, and the answers would be learnt "
                        "without it; write it into a message's text, or leave the row out",
                        where, one.key));
      case Why::kind:
        throw ConfigError(fmt::format(
            "{}\"{}\" stands there, and models of text alone are trained here; leave the row out", where, one.key));
      case Why::mask:
        throw ConfigError(
            fmt::format("{}\"{}\" says what is learnt in a way that is not read here; write \"train\": "
                        "false into the messages that are not learnt",
                        where, one.key));
    }
  }
}

// Keys of each way in which a row may say what it is: the first that it has is read, and those of the others are not.
std::vector<Names> forms_of(RowKind kind) {
  const Names messages = {"messages"}, share_gpt = {"conversations"}, one = {"conversation"};
  return kind == RowKind::pair
             ? std::vector<Names>{{"prompt"}, {"instruction", "input"}, messages, share_gpt, one}
             : std::vector<Names>{
                   messages, share_gpt, one, {"prompt", "completion"}, {"instruction", "input", "output"}};
}

Names read_beside(RowKind kind) {
  Names names = {"system", "system_prompt", "history", "weight", "train", "training"};
  if (kind == RowKind::pair) {
    names.insert(names.end(), {"chosen", "rejected"});
  }
  return names;
}

// Counts the keys of a row, and those of the messages in its lists, that are passed over. It builds nothing.
class KeyCounter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit KeyCounter(RowKind kind) : forms_(forms_of(kind)), read_(read_beside(kind)) {}

  // Of row and of messages, by name.
  std::map<std::string, std::int64_t> row, message;

  void begin_row() {
    depth_ = 0;
    of_forms_.assign(forms_.size(), {});
  }
  void end_row() {
    bool read = false;
    for (const std::vector<std::string>& keys : of_forms_) {
      for (const std::string& key : keys) {
        row[key] += read ? 1 : 0;
      }
      read = read || !keys.empty();
    }
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_messages_ = is_one_of(lists_of_messages, name);
      const auto form =
          std::find_if(forms_.begin(), forms_.end(), [&](const Names& names) { return is_one_of(names, name); });
      if (form != forms_.end()) {
        of_forms_[static_cast<std::size_t>(form - forms_.begin())].push_back(name);
      }
      const bool passed = form == forms_.end() && !is_one_of(read_, name) && !is_refused(refused_in_rows, name);
      passed_ = passed ? &row[name] : nullptr;
    } else if (depth_ == 3 && in_messages_) {
      passed_ = is_one_of(read_in_messages, name) || is_refused(refused_in_messages, name) ? nullptr : &message[name];
    } else {
      passed_ = nullptr;
    }
    return true;
  }
  bool start_object(std::size_t) override { return count(), ++depth_, true; }
  bool start_array(std::size_t) override { return count(), ++depth_, true; }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool null() override { return passed_ = nullptr, true; }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool count() {
    if (std::int64_t* passed = std::exchange(passed_, nullptr); passed != nullptr) {
      ++*passed;
    }
    return true;
  }

  std::vector<Names> forms_;
  Names read_;
  std::vector<std::vector<std::string>> of_forms_;  // keys of this row, by form
  int depth_ = 0;
  bool in_messages_ = false;
  std::int64_t* passed_ = nullptr;  // of the key whose value comes next
};

// "\"id\" (3), \"source\" (2)", the most frequent first.
std::string counted(const std::map<std::string, std::int64_t>& keys) {
  constexpr std::size_t most = 8;
  std::vector<std::pair<std::string, std::int64_t>> all;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(all), [](const auto& key) { return key.second > 0; });
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i) {
    texts.push_back(fmt::format("\"{}\" ({})", all[i].first, all[i].second));
  }
  return fmt::format("{}{}", fmt::join(texts, ", "),
                     all.size() > most ? fmt::format(" and {} more", all.size() - most) : "");
}

std::string note_of(const TextFile& file, RowKind kind) {
  KeyCounter counter(kind);
  const char* bytes = reinterpret_cast<const char*>(file.file().bytes().data());
  for (const Document& d : file.documents()) {
    counter.begin_row();
    nlohmann::json::sax_parse(bytes + d.begin, bytes + d.end, &counter);
    counter.end_row();
  }
  const std::string rows = counted(counter.row), messages = counted(counter.message);
  if (rows.empty() && messages.empty()) {
    return "";
  }
  return fmt::format("'{}': keys that say nothing of what is learnt are passed over: {}{}{}{}",
                     file.file().path().string(), rows, rows.empty() || messages.empty() ? "" : "; ",
                     messages.empty() ? "" : "in messages ", messages);
}

}  // namespace

void check_message_keys(const Json& message, const std::string& where) {
  check_keys(message, refused_in_messages, where);
}

void check_row_keys(const Json& row) {
  check_keys(row, refused_in_rows, "");
}

std::vector<std::string> notes_of_row_keys(const std::vector<std::string>& paths, RowKind kind) {
  std::vector<std::string> notes;
  for (const std::string& path : paths) {
    try {
      std::string note = note_of(TextFile(path, template_lines()), kind);
      if (!note.empty()) {
        notes.push_back(std::move(note));
      }
    } catch (const ConfigError&) {
      continue;
    }
  }
  return notes;
}

}  // namespace orthant
