#include "apps/lm/memory_arguments.h"

#include <orthant/table.h>

#include <CLI/CLI.hpp>
#include <string>

namespace orthant {
namespace {

void add_size(CLI::App& command, const char* name, std::int64_t& bytes, const char* what) {
  command
      .add_option_function<std::string>(
          name, [&bytes](const std::string& text) { bytes = text == "0" ? 0 : *parse_bytes(text); }, what)
      ->check([](const std::string& text) {
        return text == "0" || parse_bytes(text).has_value() ? "" : "'" + text + "': expected a size, as \"4 GiB\"";
      })
      ->type_name("SIZE");
}

}  // namespace

void add_latent_memory(CLI::App& command, std::int64_t& bytes) {
  add_size(command, "--latent-memory", bytes,
           "For keys and values of latent attention; where they find no room they are made again for each token");
}

void add_prefix_memory(CLI::App& command, std::int64_t& bytes) {
  add_size(command, "--prefix-memory", bytes,
           "For keys and values of prompts that have been answered, which others may begin with; 0: none are kept");
}

}  // namespace orthant
