#include "bench/compare/compare_results.h"

#include <orthant/error.h>

#include <cmath>
#include <span>
#include <system_error>

#include "bench/compare/compare_parts.h"
#include "core/base/text_file.h"

namespace orthant {
namespace comparing {
namespace {

Input read(const std::string& name) {
  std::filesystem::path file = name;
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    file = std::filesystem::exists(file / "study.json", ignored) ? file / "study.json" : file / "metrics.jsonl";
  }
  std::optional<std::string> text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}: {}; {}", name, error.what(), expected));
  }
  if (!text) {
    throw ConfigError(fmt::format("{}: there is no file '{}'; {}", name, file.string(), expected));
  }
  return {file, file.extension() == ".json", std::move(*text)};
}

}  // namespace

Json parsed(const std::string& text, const std::string& where) {
  try {
    return parse_json(std::as_bytes(std::span(text)), where);
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}; {}", error.what(), expected));
  }
}

std::optional<double> number_at(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) {
    return std::nullopt;
  }
  const double value = at->get<double>();
  return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

std::string words(Verdict verdict, const char* lower, const char* higher) {
  return verdict == Verdict::lower ? lower : verdict == Verdict::higher ? higher : std::string(name_of(verdict));
}

}  // namespace comparing

ComparedResults compare_results(const std::string& a, const std::string& b, std::optional<long> warmup) {
  const comparing::Input before = comparing::read(a), after = comparing::read(b);
  if (before.study != after.study) {
    throw ConfigError(fmt::format("'{}' is of a {}, and '{}' of a {}: two of one kind can be compared", a,
                                  before.study ? "study" : "run", b, after.study ? "study" : "run"));
  }
  return before.study ? comparing::compare_studies(before, after) : comparing::compare_runs(before, after, warmup);
}

}  // namespace orthant
