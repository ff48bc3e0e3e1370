// A copy of a published model whose parts a test can spoil.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::spoilt_test {

class Spoilt : public testing::Test {
 protected:
  void take(const std::string& name) {
    std::filesystem::create_directories(folder_ / "source");
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(paths::published_model(name) / file, folder_ / "source" / file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  void change_config(const std::function<void(nlohmann::json&)>& change) {
    const std::filesystem::path path = folder_ / "source" / "config.json";
    nlohmann::json config = nlohmann::json::parse(launch_test::read_file(path));
    change(config);
    std::ofstream(path) << config.dump();
  }
  // Writes the tensors again, those that `keep` renames to "" left out.
  void rewrite(const std::function<std::string(const FileTensor&)>& rename,
               const std::string& file = "model.safetensors", const std::function<void(FileTensor&)>& reshape = {}) {
    const SafetensorsReader source(folder_ / "source/model.safetensors");
    std::vector<FileTensor> tensors;
    std::vector<std::span<const std::byte>> bytes;
    for (const FileTensor& tensor : source.tensors()) {
      FileTensor named = tensor;
      named.name = rename(tensor);
      if (reshape) {
        reshape(named);
      }
      if (!named.name.empty()) {
        tensors.push_back(named);
        bytes.push_back(source.bytes(tensor));
      }
    }
    write_safetensors(folder_ / "new", tensors, bytes);
    std::filesystem::rename(folder_ / "new", folder_ / "source" / file);
  }
  std::string refusal(std::vector<std::string> left_out = {}) {
    const std::string said =
        test::error_of([&] { import_test::import_into(folder_ / "run", folder_ / "source", left_out); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run")) << "something was left";
    return said;
  }

  import_test::Folder folder_;
};

inline std::string same_name(const FileTensor& t) {
  return t.name;
}

}  // namespace orthant::spoilt_test
