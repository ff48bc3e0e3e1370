// transformers' ViT, trained by PyTorch from the same weights on the same batches (make_vit_reference.py).
#include <gtest/gtest.h>

#include "core/checkpoint/safetensors.h"
#include "core/data/batch_builder.h"
#include "tests/images/experiments.h"
#include "tests/support/paths.h"

namespace orthant::test::images_reference_test {
namespace {

using namespace images_test;

constexpr std::int64_t images = 8, side = 16, patch = 4, channels = 3, positions = 17,
                       columns = channels * patch * patch;

class Reference {
 public:
  Reference() : file_(paths::source("tests/images/vit.safetensors")) {}
  const SafetensorsReader& file() const { return file_; }
  template <class T = float>
  std::vector<T> values(const std::string& name) const {
    const auto bytes = file_.bytes(file_.at(name));
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  SafetensorsReader file_;
};

// The file's batches in turn, as patches.
class GivenImages final : public ChangedSource {
 public:
  GivenImages(const Settings& s, const Reference& of)
      : ChangedSource(s), image_(of.values("images")), label_(of.values<std::int32_t>("labels")) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    const std::vector<Space> spaces = {
        {.name = "patches", .positions = positions, .both_ways = true, .columns = columns}};
    HostBatch batch = padding_batch(first, count, spaces);
    const std::int64_t batches = static_cast<std::int64_t>(label_.size()) / images;
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t image = step % batches * images + first + row;
      SequenceDocument document{.token = std::vector<std::int32_t>(positions, 0),
                                .label = std::vector<std::int32_t>(positions, -1),
                                .value = std::vector<float>(columns, 0)};
      document.token.front() = 1;
      document.label.front() = label_[static_cast<std::size_t>(image)];
      for (std::int64_t p = 0; p < side / patch * (side / patch); ++p) {
        for (std::int64_t e = 0; e < columns; ++e) {
          const std::int64_t c = e / (patch * patch), y = p / 4 * patch + e / patch % patch,
                             x = p % 4 * patch + e % patch;
          document.value.push_back(image_[static_cast<std::size_t>(((image * channels + c) * side + y) * side + x)]);
        }
      }
      put_document(batch, row, 0, document);
    }
    return batch;
  }

 private:
  std::vector<float> image_;
  std::vector<std::int32_t> label_;
};

TEST(Vit, TrainsAsTransformersDoes) {
  const Reference reference;
  const Config config = experiment(
      joined(pictures, {"data.image_size=16", "data.sequence_length=17", "data.image_channels=3", "model.vocab_size=8",
                        "moe.experts=0", "model.d_model=24", "model.heads=4", "model.d_ff=40", "model.layers=2",
                        R"(model.ffn="vit_mlp")", "model.biases=true", "model.output_bias=true", "model.vocab_size=8",
                        R"(optimizer.name="sgd")", "optimizer.lr=0.05", "optimizer.momentum=0",
                        "optimizer.weight_decay=0", "optimizer.clip_grad_norm=0", "run.steps=20"}),
      plugin);
  const GivenImages source(config.settings, reference);
  OneRank rank(config, &source);
  const auto names = rank->names();
  for (const std::string& name : names) {
    std::vector<float> weight = reference.values("weight/" + name);
    rank->set_weight(name, weight);
  }
  rank->trainer().gradients(0);
  for (const std::string& name : names) {
    // What is added to all keys of a query changes no weight of them: a gradient of rounding alone.
    if (!name.ends_with("k_proj.bias")) {
      EXPECT_LE(relative_difference(rank->gradient(name), reference.values("grad/" + name)), 1e-5) << name;
    }
  }
  const std::vector<float> losses = reference.values("losses");
  ASSERT_EQ(losses.size(), 20u);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const double expected = static_cast<double>(losses[step]);
    EXPECT_NEAR(rank->trainer().step(static_cast<std::int64_t>(step)).loss, expected, 1e-5 * expected) << step;
  }
  for (const std::string& name : names) {
    EXPECT_LE(relative_difference(rank->weight(name), reference.values("after/" + name)), 1e-4) << name;
  }
}

}  // namespace
}  // namespace orthant::test::images_reference_test
