// The chain of a model as data: what the decoder's says, and what is refused of a kind that makes none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/catalogue.h>

#include <functional>
#include <optional>

#include "core/arch/decoder.h"
#include "core/arch/links.h"

namespace orthant::links_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Settings small() {
  Settings s;
  s.model = {.layers = 3, .d_model = 8, .heads = 2, .d_ff = 16, .vocab_size = 10};
  s.moe.experts = 4;
  s.moe.first_dense = 1;
  return s;
}

template <class Field>
auto all_of(const std::vector<Link>& links, Field field) {
  std::vector<std::decay_t<decltype(links.front().*field)>> values;
  for (const Link& link : links) {
    values.push_back(link.*field);
  }
  return values;
}

TEST(Links, OfADecoderWithDepthsBehindItsHead) {
  Settings s = small();
  s.model.mtp_depth = 2;
  s.model.tie_embeddings = true;
  const std::vector<Link> links = links_of(s);
  EXPECT_THAT(all_of(links, &Link::name),
              ElementsAre("embedding", "layer 0", "layer 1", "layer 2", "head", "mtp 0", "mtp 1"));
  EXPECT_THAT(all_of(links, &Link::number), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(all_of(links, &Link::block), ElementsAre(-1, 0, 1, 2, -1, 3, 4));
  EXPECT_THAT(all_of(links, &Link::routed), ElementsAre(-1, -1, 0, 1, -1, 2, 3));
  EXPECT_THAT(all_of(links, &Link::objective), ElementsAre(false, false, false, false, true, true, true));
  for (const Link& link : links) {
    const bool last = link.name == "mtp 1";
    ASSERT_EQ(link.passes.size(), last ? 0u : 1u) << link.name;
    EXPECT_TRUE(last || (link.passes[0].columns == 8 && link.passes[0].dtype == DType::f32)) << link.name;
  }
  EXPECT_EQ(head_of(links).number, 4);
  EXPECT_EQ(find(links, "mtp 0").router, "mtp.0.block.block_sparse_moe");
  EXPECT_EQ(blocks_in(links), 5);
  EXPECT_EQ(routed_in(links), 4);
  EXPECT_EQ(routed_before(links, 3), 1);
  EXPECT_EQ(routed_before(links, 4), 2);
  EXPECT_EQ(told(links[0]), "the embedding");
  EXPECT_EQ(told(links[5]), "mtp 0");
  EXPECT_THAT([&] { find(links, "pooler"); }, testing::ThrowsMessage<Error>(HasSubstr("no link 'pooler'")));
  // The table of tokens serves the head and all depths.
  EXPECT_THAT(links[0].parameters.front().params.front().layers, ElementsAre(0, 4, 5, 6));
  EXPECT_THAT(links[2].parameters.front().params.front().layers, ElementsAre(2));
}

TEST(Links, WithoutDepthsTheHeadIsTheLast) {
  const std::vector<Link> links = links_of(small());
  EXPECT_EQ(&head_of(links), &links.back());
  EXPECT_TRUE(links.back().passes.empty());
}

TEST(Links, ABlockIsComputedAgainAndAHeadIsNot) {
  Settings s = small();
  s.model.mtp_depth = 1;
  const std::vector<Link> links = links_of(s);
  for (const Link& link : links) {
    EXPECT_EQ(link.again_full > 0, link.block >= 0) << link.name;
  }
  EXPECT_EQ(find(links, "mtp 0").again_full, find(links, "layer 2").again_full) << "the block alone";
  EXPECT_GT(find(links, "mtp 0").flops, find(links, "layer 2").flops);
  EXPECT_EQ(find(links, "layer 0").again_selective, 10 * 16) << "a dense FFN of 16 channels";
}

class Changed final : public ModelKind {
 public:
  explicit Changed(std::function<void(std::vector<Link>&)> change) : change_(std::move(change)) {}
  std::vector<Link> links(const Settings& s) const override {
    std::vector<Link> links = decoder_links(s);
    change_(links);
    return links;
  }
  std::unique_ptr<Layer> make(const Link&, const Parameters&, Plan&) const override { return nullptr; }

 private:
  std::function<void(std::vector<Link>&)> change_;
};

// As a plugin's kind is refused.
std::string refused(std::function<void(std::vector<Link>&)> change) {
  const auto catalogue = built_in_catalogue();
  catalogue->set_current_plugin("mine");
  catalogue->add<ModelKind>("changed", "A decoder with a mistake.", std::make_shared<Changed>(std::move(change)));
  Settings s = small();
  s.catalogue = catalogue;
  s.model.kind = "changed";
  try {
    links_of(s);
  } catch (const SettingError& error) {
    EXPECT_EQ(error.setting(), "model.kind");
    return error.what();
  }
  return "";
}

TEST(Links, ThatAreNoChainAreRefusedByTheKeyOfTheirKind) {
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_THAT(refused([](auto& links) { links[2].name = "layer 0"; }),
              HasSubstr("[model] kind: \"changed\": link 2 has no name of its own ('layer 0')"));
  EXPECT_THAT(refused([](auto& links) { links[2].block = 2; }), HasSubstr("'layer 1' is block 2, behind 1 blocks"));
  EXPECT_THAT(refused([](auto& links) { links[0].router = "model.gate"; }),
              HasSubstr("'embedding' has a router, and is no block"));
  EXPECT_THAT(refused([](auto& links) { links[1].passes.clear(); }), HasSubstr("'layer 0' passes nothing on"));
  EXPECT_THAT(refused([](auto& links) { links[1].passes.push_back(links[1].passes[0]); }),
              HasSubstr("'layer 0' passes on 'x' with 8 columns"));
  EXPECT_THAT(refused([](auto& links) { links[1].passes[0].dtype = DType::i32; }), HasSubstr("columns of i32"));
  EXPECT_THAT(refused([](auto& links) { links.back().objective = false; }), HasSubstr("no link has an objective"));
  EXPECT_THAT(refused([](auto& links) {
                links[0].parameters[0].params[0].layers = {0, 9};
              }),
              HasSubstr("is used by links [0, 9], and there are 5"));
  EXPECT_THAT(refused([](auto&) { throw ConfigError("it has no second stack"); }),
              HasSubstr("[model] kind: \"changed\": it has no second stack"));
}

TEST(Links, ARefusalOfTheirOwnKeyStaysThere) {
  const auto catalogue = built_in_catalogue();
  catalogue->set_current_plugin("mine");
  catalogue->add<ModelKind>("changed", "A decoder with a mistake.", std::make_shared<Changed>([](auto&) {
                              throw SettingError("model.heads", "[model] heads: too many");
                            }));
  Settings s = small();
  s.catalogue = catalogue;
  s.model.kind = "changed";
  EXPECT_THAT([&] { links_of(s); }, testing::ThrowsMessage<SettingError>("[model] heads: too many"));
}

}  // namespace
}  // namespace orthant::links_test
