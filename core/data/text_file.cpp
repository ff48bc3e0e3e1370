#include "core/data/text_file.h"

#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/data/json_rows.h"
#include "core/data/not_text.h"

namespace orthant {
namespace {

// Takes the string under one key of the outermost object, and builds nothing of the rest.
class TextOfKey final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TextOfKey(const std::string& key, std::string& text) : key_(key), text_(text) {}

  bool found() const { return found_; }
  std::string problem() const {
    return !problem_.empty() ? problem_ : fmt::format("it has no string under \"{}\"", key_);
  }

  bool string(string_t& value) override {
    if (wanted_) {
      text_.swap(value);
      found_ = true;
    }
    return scalar();
  }
  bool key(string_t& value) override {
    wanted_ = depth_ == 1 && value == key_;
    return true;
  }
  bool start_object(std::size_t) override {
    wanted_ = false;
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) {
      problem_ = "it is no object";
      return false;
    }
    return start_object(0);
  }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    problem_ = error.what();
    return false;
  }

 private:
  bool scalar() {
    wanted_ = false;
    return true;
  }

  const std::string& key_;
  std::string& text_;
  int depth_ = 0;
  bool wanted_ = false;
  bool found_ = false;
  std::string problem_;
};

}  // namespace

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

TextFile::TextFile(const std::string& path, const TextOptions& options)
    : file_(path), options_(options), json_lines_(!options.whole_lines && is_json_lines(path)) {
  if (file_.size() == 0) {
    throw ConfigError(fmt::format("the text file '{}' is empty", path));
  }
  require_text(file_);
  documents_ = json_lines_ || options.whole_lines ? json_rows(file_.bytes(), path)
                                                  : split_documents(file_.bytes(), options_.separator);
}

std::string_view TextFile::text(const Document& document, std::string& decoded) const {
  const std::string_view all(reinterpret_cast<const char*>(file_.bytes().data()), file_.size());
  const std::size_t begin = static_cast<std::size_t>(document.begin);
  const std::string_view own = all.substr(begin, static_cast<std::size_t>(document.end) - begin);
  if (!json_lines_) {
    return own;
  }
  const std::vector<std::string> keys =
      options_.text_key.empty() ? std::vector<std::string>{"text", "content"} : std::vector{options_.text_key};
  std::string problem;
  for (const std::string& key : keys) {
    decoded.clear();
    TextOfKey reader(key, decoded);
    if (nlohmann::json::sax_parse(own.begin(), own.end(), &reader) && reader.found()) {
      return decoded;
    }
    problem = problem.empty() ? reader.problem() : problem;
  }
  throw ConfigError(
      fmt::format("{}: expected a JSON object with a string under \"{}\": {} (data.text_key, or "
                  "--text-key of `orthant data`, names another key)",
                  place(document), keys.front(), problem));
}

std::string TextFile::place(const Document& document) const {
  const auto begin = file_.bytes().begin();
  return fmt::format("'{}', line {}", file_.path().string(),
                     1 + std::count(begin, begin + document.begin, std::byte{'\n'}));
}

}  // namespace orthant
