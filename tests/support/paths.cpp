#include "tests/support/paths.h"

#include <cstdlib>
#include <filesystem>

namespace orthant::paths {

namespace {

std::string below(const char* folder, const std::string& name) {
  return name.empty() ? folder : folder + ("/" + name);
}

}  // namespace

std::string source(const std::string& name) {
  return below(ORTHANT_SOURCE_DIR, name);
}

std::string build(const std::string& name) {
  return below(ORTHANT_BINARY_DIR, name);
}

std::string plugin(const std::string& file) {
  return below(ORTHANT_PLUGIN_DIR, file);
}

std::filesystem::path published_model(const std::string& name) {
  return source("tests/pretrained/models/" + name);
}

std::string out_of_tree(const std::string& name) {
  return below(ORTHANT_OUT_OF_TREE_DIR, "liborthant_plugin_" + name + ".so");
}

std::string program() {
  return ORTHANT_PROGRAM;
}

std::string python() {
  if (const char* given = std::getenv("ORTHANT_PYTHON")) {
    return given;
  }
  const std::string usual = source(".venv/bin/python");
  return std::filesystem::exists(usual) ? usual : "";
}

}  // namespace orthant::paths
