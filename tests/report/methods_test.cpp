// Sentences about the method, from settings as a run has resolved them.
#include "apps/report/methods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orthant::report::methods_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Methods, SayWhatADeepseekIs) {
  const FlatSettings settings = {{"model.attention", "latent"},  {"model.kv_lora_rank", "512"},
                                 {"model.rope_scaling", "yarn"}, {"model.rope_factor", "40.0"},
                                 {"moe.experts", "256"},         {"moe.every", "1"},
                                 {"moe.first_dense", "3"},       {"moe.top_k", "8"},
                                 {"moe.weight_scale", "2.5"},    {"moe.shared_experts", "1"},
                                 {"moe.d_shared", "2048"},       {"moe.shared_gate", "true"}};
  EXPECT_THAT(methods_of(settings, {}, {}, {}),
              AllOf(HasSubstr("Attention is latent, with 512 channels"), HasSubstr("scaled by \"yarn\" with factor 40"),
                    HasSubstr("Every layer but the first 3 has 256 experts"), HasSubstr("multiplied by 2.5"),
                    HasSubstr("together of width 2048"), HasSubstr("each token with a weight of its own")));
}

TEST(Methods, SayNothingOfWhatIsNotThere) {
  const FlatSettings settings = {{"model.attention", "multi_head"},
                                 {"model.rope_scaling", "none"},
                                 {"moe.experts", "8"},
                                 {"moe.every", "2"},
                                 {"moe.first_dense", "0"},
                                 {"moe.weight_scale", "1.0"},
                                 {"moe.shared_experts", "1"},
                                 {"moe.d_shared", "0"},
                                 {"moe.shared_gate", "false"}};
  EXPECT_THAT(methods_of(settings, {}, {}, {}),
              AllOf(HasSubstr("One layer in 2 has 8 experts"), Not(HasSubstr("latent")), Not(HasSubstr("scaled by")),
                    Not(HasSubstr("multiplied")), Not(HasSubstr("of width")), Not(HasSubstr("weight of its own"))));
}

TEST(Methods, SayThatABatchGrows) {
  const auto said = [](const char* after, const char* to) {
    return methods_of(
        {{"batch.sequences", "8"}, {"batch.grow_after", after}, {"batch.grow_to", to}, {"run.steps", "900"}}, {}, {},
        {});
  };
  EXPECT_THAT(said("[200, 500]", "[16, 32]"),
              HasSubstr("8 sequences a step at first, [16, 32] after [200, 500] steps, for 900 steps."));
  EXPECT_THAT(said("[]", "[]"), HasSubstr("8 sequences a step, for 900 steps."));
}

TEST(Methods, SayWhatIsLearntBesideTheNextToken) {
  const auto said = [](FlatSettings more) { return methods_of(more, {}, {}, {}); };
  EXPECT_THAT(said({{"model.mtp_depth", "2"}, {"train.mtp_weight", "0.3"}}),
              HasSubstr("predict 2 further token(s) by multi-token prediction, whose loss has weight 0.3."));
  EXPECT_THAT(said({{"model.mtp_depth", "0"}, {"train.mtp_weight", "0.3"}, {"data.source", "text"}}),
              AllOf(Not(HasSubstr("multi-token")), Not(HasSubstr("pair"))));
  FlatSettings pairs = {{"data.source", "pairs"},
                        {"preference.loss", "ipo"},
                        {"preference.beta", "0.1"},
                        {"train.from", "runs/tuned"},
                        {"preference.reference", ""}};
  EXPECT_THAT(said(pairs), HasSubstr("loss \"ipo\", beta 0.1, compared with runs/tuned."));
  for (auto& [key, value] : pairs) {
    value = key == "preference.reference" ? "runs/other" : value;
  }
  EXPECT_THAT(said(pairs), HasSubstr("compared with runs/other."));
}

// A configuration may be anybody's, of any version.
TEST(Methods, PrintWhatIsNoNumberAsItIs) {
  const auto said = [](const char* scale) {
    return methods_of({{"moe.experts", "8"}, {"moe.every", "3"}, {"moe.first_dense", "2"}, {"moe.weight_scale", scale}},
                      {}, {}, {});
  };
  EXPECT_THAT(said("x"),
              AllOf(HasSubstr("One layer in 3 after the first 2 has 8 experts"), HasSubstr("multiplied by x.")));
  EXPECT_THAT(said("1e999"), HasSubstr("multiplied by 1e999."));
  EXPECT_THAT(said("1"), Not(HasSubstr("multiplied")));
}

}  // namespace
}  // namespace orthant::report::methods_test
