// What a memory limit refuses, and the changes that the refusal names.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "core/dry_run/promise.h"
#include "tests/support/experiment.h"

namespace orthant::plan_test {

inline std::string refusal_of(Config config) {
  try {
    promise_memory(config);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_configuration);
    return error.what();
  }
  return "";
}

// "memory.recompute = "full"  12 MiB; ..." -> memory.recompute = "full", of each change that is named.
inline std::vector<std::string> changes_in(const std::string& text) {
  std::vector<std::string> changes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("        ")) {
      const std::size_t begin = line.find_first_not_of(' ');
      changes.push_back(line.substr(begin, line.find("  ", begin) - begin));
    }
  }
  return changes;
}

inline std::string limit(std::int64_t bytes) {
  return fmt::format("memory.limit={}", bytes);
}

struct Refused {
  std::string text;
  std::vector<std::string> changes;
};

// Every change that a refusal names is tried: it is accepted.
inline Refused refused(const test::Overrides& overrides, const std::string& plugins, std::int64_t bytes) {
  Refused found;
  found.text = refusal_of(test::experiment(test::joined(overrides, {limit(bytes)}), plugins));
  found.changes = changes_in(found.text);
  for (const std::string& change : found.changes) {
    test::Overrides with = test::joined(overrides, {limit(bytes)});
    for (std::size_t at = 0; at != std::string::npos;) {
      const std::size_t end = change.find(" and ", at);
      with.push_back(change.substr(at, end == std::string::npos ? end : end - at));
      at = end == std::string::npos ? end : end + 5;
    }
    EXPECT_EQ(refusal_of(test::experiment(with, plugins)), "") << change;
  }
  return found;
}

}  // namespace orthant::plan_test
