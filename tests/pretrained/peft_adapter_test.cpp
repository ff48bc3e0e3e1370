// Adapters of peft, added to the model at its import: against W + s B A in fp64.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/checkpoint/checkpoint.h"
#include "core/run/starting_weights.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::peft_adapter_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values = {};
  double at(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
};

class PeftAdapters : public testing::Test {
 protected:
  // A pair of random matrices, the second [rows, rank].
  void adapt(const std::string& module, std::int64_t rank, std::int64_t rows, std::int64_t columns) {
    put("base_model.model." + module + ".lora_A.weight", rank, columns);
    put("base_model.model." + module + ".lora_B.weight", rows, rank);
  }
  void put(const std::string& name, std::int64_t rows, std::int64_t columns) {
    Matrix& made = matrices_[name] = {rows, columns, {}};
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      made.values.push_back(normal(random_));
    }
  }
  void save(const json& changes = json::object()) {
    json config = {{"peft_type", "LORA"},
                   {"r", 3},
                   {"lora_alpha", 6},
                   {"bias", "none"},
                   {"use_rslora", false},
                   {"use_dora", false},
                   {"alpha_pattern", json::object()}};
    config.update(changes);
    std::filesystem::create_directories(folder_ / "adapter");
    std::ofstream(folder_ / "adapter/adapter_config.json") << config.dump();
    std::vector<FileTensor> tensors;
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& [name, matrix] : matrices_) {
      tensors.push_back({.name = name, .dtype = DType::f32, .sizes = {matrix.rows, matrix.columns}});
      bytes.push_back(std::as_bytes(std::span(matrix.values)));
    }
    std::filesystem::remove(folder_ / "adapter/adapter_model.safetensors");
    write_safetensors(folder_ / "adapter/adapter_model.safetensors", tensors, bytes);
  }
  ImportResult import(const std::string& model) {
    return import_model({.source = paths::published_model(model),
                         .output = folder_ / "run",
                         .left_out = {},
                         .adapter = folder_ / "adapter"},
                        keys_of_plugin);
  }
  std::string refusal(const std::string& model) {
    const std::string said = test::error_of([&] { import(model); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
    return said;
  }
  Matrix read(const std::string& run, const std::string& name) const {
    const CheckpointReader reader(starting_checkpoint((folder_ / run).string(), "train.from"));
    const Shape shape = reader.info(name).shape;
    Matrix matrix{shape[0], shape[1], std::vector<float>(static_cast<std::size_t>(shape.elements()))};
    reader.read(name, {0, 0}, {shape[0], shape[1]}, matrix.values.data());
    return matrix;
  }
  // Rows of `name` are those of the adapter's second matrix from `first` on.
  void expect_added(const std::string& name, const std::string& module, double scale, std::int64_t first = 0) const {
    const Matrix before = read("base", name), after = read("run", name);
    const Matrix& a = matrices_.at("base_model.model." + module + ".lora_A.weight");
    const Matrix& b = matrices_.at("base_model.model." + module + ".lora_B.weight");
    double moved = 0;
    for (std::int64_t i = 0; i < before.rows; ++i) {
      for (std::int64_t j = 0; j < before.columns; ++j) {
        double product = 0;
        for (std::int64_t k = 0; k < a.rows; ++k) {
          product += b.at(first + i, k) * a.at(k, j);
        }
        ASSERT_NEAR(after.at(i, j), before.at(i, j) + scale * product, 1e-5) << name << " " << i << " " << j;
        moved = std::max(moved, std::abs(scale * product));
      }
    }
    EXPECT_GT(moved, 0.1);
  }

  std::mt19937 random_{1};
  std::map<std::string, Matrix> matrices_;
  import_test::Folder folder_;
};

TEST_F(PeftAdapters, BecomePartOfTheWeights) {
  import_test::import_into(folder_ / "base", paths::published_model("mixtral"));
  const std::string layer = "model.layers.1.";
  const Matrix q = read("base", layer + "self_attn.q_proj.weight"),
               w2 = read("base", layer + "block_sparse_moe.experts.2.w2.weight"), head = read("base", "lm_head.weight");
  adapt(layer + "self_attn.q_proj", 3, q.rows, q.columns);
  adapt(layer + "block_sparse_moe.experts.2.w2", 2, w2.rows, w2.columns);
  adapt("lm_head", 3, head.rows, head.columns);
  save({{"alpha_pattern", {{"w2", 5}}}, {"rank_pattern", {{"w2", 2}}}});
  EXPECT_EQ(import("mixtral").adapted, 3u);
  expect_added(layer + "self_attn.q_proj.weight", layer + "self_attn.q_proj", 2);
  expect_added(layer + "block_sparse_moe.experts.2.w2.weight", layer + "block_sparse_moe.experts.2.w2", 2.5);
  expect_added("lm_head.weight", "lm_head", 2);
  const std::string other = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(read("base", other).values, read("run", other).values);
  const json receipt = json::parse(launch_test::read_file(folder_ / "run/pretrained/receipt.json"));
  EXPECT_EQ(receipt["adapter"][0]["name"], "adapter_model.safetensors");
  std::filesystem::remove_all(folder_ / "run");
  save({{"use_rslora", true}});
  import("mixtral");
  expect_added(layer + "self_attn.q_proj.weight", layer + "self_attn.q_proj", 6 / std::sqrt(3.0));
}

TEST_F(PeftAdapters, OfJoinedMatricesAreCutAsTheseAre) {
  import_test::import_into(folder_ / "base", paths::published_model("phi3"));
  const std::string attention = "model.layers.0.self_attn.";
  const Matrix q = read("base", attention + "q_proj.weight"), k = read("base", attention + "k_proj.weight");
  adapt(attention + "qkv_proj", 3, q.rows + 2 * k.rows, q.columns);
  save();
  import("phi3");
  expect_added(attention + "q_proj.weight", attention + "qkv_proj", 2);
  expect_added(attention + "k_proj.weight", attention + "qkv_proj", 2, q.rows);
  expect_added(attention + "v_proj.weight", attention + "qkv_proj", 2, q.rows + k.rows);
}

TEST_F(PeftAdapters, ThatSayMoreThanAProductAreRefused) {
  adapt("model.layers.0.self_attn.q_proj", 3, 24, 24);
  save({{"use_dora", true}, {"bias", "all"}, {"peft_type", "ADALORA"}, {"init_lora_weights", "pissa"}});
  EXPECT_THAT(refusal("mixtral"),
              AllOf(HasSubstr("use_dora = true"), HasSubstr("bias = \"all\""), HasSubstr("peft_type = \"ADALORA\""),
                    HasSubstr("init_lora_weights = \"pissa\"")));
  save({{"alpha_pattern", {{"^q.*", 5}}}, {"lora_alpha", "six"}});
  EXPECT_THAT(refusal("mixtral"), AllOf(HasSubstr("alpha_pattern has ^q.*"), HasSubstr("is \"six\": a number")));
  adapt("model.layers.0.self_attn.r_proj", 3, 24, 24);
  adapt("model.layers.0.self_attn.k_proj", 3, 7, 24);
  save();
  EXPECT_THAT(refusal("mixtral"),
              AllOf(HasSubstr("self_attn.r_proj.weight: the model has no such matrix"), HasSubstr("of [7, 24]")));
  put("base_model.model.lm_head.weight", 2, 2);
  put("base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", 3, 24);
  save();
  EXPECT_THAT(refusal("mixtral"), AllOf(HasSubstr("base_model.model.lm_head.weight: a matrix"),
                                        HasSubstr("v_proj.lora_B.weight is not there")));
}

}  // namespace
}  // namespace orthant::peft_adapter_test
