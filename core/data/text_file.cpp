#include "core/data/text_file.h"

#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/data/lines.h"

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

std::vector<Document> lines_of(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<Document> lines;
  for_each_line(text, [&](std::string_view line, std::int64_t) {
    const std::int64_t begin = line.data() - text.data();
    lines.push_back({begin, begin + static_cast<std::int64_t>(line.size())});
  });
  return lines;
}

}  // namespace

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

TextFile::TextFile(const std::string& path, const TextOptions& options)
    : file_(path), options_(options), json_lines_(!options.whole_lines && is_json_lines(path)) {
  if (file_.size() == 0) {
    throw ConfigError(fmt::format("the text file '{}' is empty", path));
  }
  documents_ =
      json_lines_ || options.whole_lines ? lines_of(file_.bytes()) : split_documents(file_.bytes(), options_.separator);
}

std::string_view TextFile::text(const Document& document, std::string& decoded) const {
  const std::string_view all(reinterpret_cast<const char*>(file_.bytes().data()), file_.size());
  const std::size_t begin = static_cast<std::size_t>(document.begin);
  const std::string_view own = all.substr(begin, static_cast<std::size_t>(document.end) - begin);
  if (!json_lines_) {
    return own;
  }
  decoded.clear();
  TextOfKey reader(options_.text_key, decoded);
  if (!nlohmann::json::sax_parse(own.begin(), own.end(), &reader) || !reader.found()) {
    throw ConfigError(
        fmt::format("{}: expected a JSON object with a string under \"{}\": {} (--text-key names another key)",
                    place(document), options_.text_key, reader.problem()));
  }
  return decoded;
}

std::string TextFile::place(const Document& document) const {
  const auto begin = file_.bytes().begin();
  return fmt::format("'{}', line {}", file_.path().string(),
                     1 + std::count(begin, begin + document.begin, std::byte{'\n'}));
}

}  // namespace orthant
