// Diagnostics: everything that is wrong with a configuration, reported at once.
//
// Each problem is printed as `file:line:column: message`, the offending line with a caret under the offending text,
// and what to write instead. Checks that run after loading (the plan's, a plugin's) add to a Diagnostics made from
// Config::sources, with the origins that the values carry. Not thread-safe.
#pragma once

#include <orthant/error.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/sources.h"

namespace orthant {

class Diagnostics {
 public:
  explicit Diagnostics(std::shared_ptr<const Sources> sources) : sources_(std::move(sources)) {}

  // `origin`: of the offending value (Table::origin, Config::origin). An origin without a place ("default") is shown
  // as the main file's name alone. `advice` says what to write instead; it may be empty. The same problem is kept once.
  void add(const std::string& origin, const std::string& message, const std::string& advice = "");
  void add(const Diagnostics& others);  // of the same configuration

  bool empty() const { return items_.empty(); }
  std::size_t size() const { return items_.size(); }

  // All of them, by file in the order read (the main file first, --set last) and by line.
  std::string render() const;

  // Errors: RefusedConfig with render() when there is any.
  void throw_if_any() const;

 private:
  struct Item {
    std::string origin;
    std::string message;
    std::string advice;
  };
  std::string render(const Item& item) const;

  std::shared_ptr<const Sources> sources_;
  std::vector<Item> items_;
  std::set<std::pair<std::string, std::string>> known_;  // origin and message of each
};

// The problems that were found so far: who catches it may look for others, and report all at once.
class RefusedConfig : public ConfigError {
 public:
  RefusedConfig(std::string text, Diagnostics problems)
      : ConfigError(std::move(text)), problems_(std::move(problems)) {}
  const Diagnostics& problems() const { return problems_; }

 private:
  Diagnostics problems_;
};

// Text of a file for a message: cut when long, without control characters.
std::string printable(std::string_view text);
// The same, in quotes.
std::string in_quotes(std::string_view text, char quote = '\'');

}  // namespace orthant
