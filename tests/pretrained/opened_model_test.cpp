// A published model is read where it lies: what it gives has the bits of what an import writes, and nothing of its
// weights' size is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "apps/pretrained/opened_model.h"
#include "core/run/starting_weights.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::opened_model_test {
namespace {

namespace fs = std::filesystem;
using import_test::Folder;
using import_test::import_into;
using testing::HasSubstr;

std::uintmax_t bytes_under(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    bytes += entry.is_regular_file() ? entry.file_size() : 0;
  }
  return bytes;
}

// Temporary files are made in it.
class TemporaryFilesIn {
 public:
  explicit TemporaryFilesIn(const fs::path& folder) {
    const char* before = std::getenv("TMPDIR");
    before_ = before == nullptr ? "" : before;
    fs::create_directories(folder);
    setenv("TMPDIR", folder.c_str(), 1);
  }
  ~TemporaryFilesIn() { before_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before_.c_str(), 1); }

 private:
  std::string before_;
};

std::vector<float> read(const CheckpointReader& reader, const std::string& name, std::vector<std::int64_t> offset,
                        std::vector<std::int64_t> size) {
  std::vector<float> values(
      static_cast<std::size_t>(std::accumulate(size.begin(), size.end(), std::int64_t{1}, std::multiplies<>())));
  reader.read(name, offset, size, values.data());
  return values;
}

::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0
             ? ::testing::AssertionSuccess()
             : ::testing::AssertionFailure() << a.size() << " and " << b.size() << " values";
}

class Opened : public testing::TestWithParam<std::string> {};

TEST_P(Opened, HasTheBitsOfAnImport) {
  const Folder folder;
  const fs::path source = paths::published_model(GetParam());
  import_into(folder / "run", source);
  const CheckpointReader imported(starting_checkpoint(folder / "run"));
  const TemporaryFilesIn files(folder / "temporary");
  {
    const OpenedModel model(source, "test", {}, keys_of_plugin, {});
    const CheckpointReader& reader = model.reader();
    EXPECT_EQ(model.checkpoint(), source);
    EXPECT_EQ(reader.step(), 0);
    ASSERT_EQ(reader.names(), imported.names());
    std::uintmax_t weights = 0;
    for (const std::string& name : reader.names()) {
      const CheckpointReader::TensorInfo info = reader.info(name);
      ASSERT_EQ(info.shape, imported.info(name).shape) << name;
      ASSERT_EQ(info.dtype, imported.info(name).dtype) << name;
      std::vector<std::int64_t> from, all, begin, size;
      for (int i = 0; i < info.shape.rank(); ++i) {
        const std::int64_t n = info.shape[i];
        from.push_back(0);
        all.push_back(n);
        begin.push_back(n / 3);
        size.push_back(std::max<std::int64_t>(1, n / 2));
      }
      EXPECT_TRUE(same_bits(read(reader, name, from, all), read(imported, name, from, all))) << name;
      EXPECT_TRUE(same_bits(read(reader, name, begin, size), read(imported, name, begin, size))) << name;
      weights += static_cast<std::uintmax_t>(info.shape.elements()) * sizeof(float);
    }
    EXPECT_LT(bytes_under(folder / "temporary"), bytes_under(folder / "run") - weights + 1000);
    reader.release_memory();
    const std::string first = "model.embed_tokens.weight";
    EXPECT_TRUE(same_bits(read(reader, first, {0, 0}, {1, 1}), read(imported, first, {0, 0}, {1, 1})));
    const auto refused = [&](const std::string& name, std::vector<std::int64_t> from, std::vector<std::int64_t> size) {
      return test::error_of<Error>([&] { read(reader, name, std::move(from), std::move(size)); });
    };
    EXPECT_THAT(refused("none", {0}, {1}), HasSubstr("has no tensor 'none'"));
    EXPECT_THAT(refused(first, {0, 0}, {1, 1000000}), HasSubstr(first));
  }
  EXPECT_TRUE(fs::is_empty(folder / "temporary"));
}

INSTANTIATE_TEST_SUITE_P(Models, Opened,
                         testing::Values("mixtral", "mixtral_packed", "deepseek_v3", "deepseek_v3_fp8", "gpt_oss",
                                         "gpt_oss_mxfp4", "llama_f16", "qwen3_moe_packed", "qwen3_moe_fp8", "phi3",
                                         "granitemoe", "glm4_moe", "gemma2"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace orthant::opened_model_test
