// Frozen parameters and adapters (train.freeze, [lora]) in every layout, against one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/arch/trained.h"
#include "tests/support/parity.h"

namespace orthant::adapters_test {
namespace {

using test::experiment;
using test::joined;
using test::Model;
using test::Overrides;

struct Layout {
  const char* name;
  const char* plugins;
  Overrides overrides = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

const Layout layouts[] = {
    {"one_rank_in_micro_batches", "", {"batch.micro_batch=2"}},
    {"data", "[plugins.data]\nsize = 2\n"},
    {"zero1", "[plugins.data]\nsize = 2\nzero = 1\n", {"batch.micro_batch=2"}},
    {"zero2", "[plugins.data]\nsize = 4\nzero = 2\n", {"batch.micro_batch=1", "model.d_ff=12"}},
    {"zero3", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n", {"batch.micro_batch=2"}},
    {"tensor", "[plugins.tensor]\nsize = 2\n"},
    {"tensor_of_shared_heads", "[plugins.tensor]\nsize = 4\n", {"model.kv_heads=2"}},
    {"tensor_cut_rows", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\nexperts = \"fold\"\n"},
    {"tensor_inside_zero", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.tensor]\nsize = 2\n"},
    {"ulysses", "[plugins.sequence]\nsize = 2\n"},
    {"ring", "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n"},
    {"expert", "[plugins.data]\nsize = 4\nzero = 2\n[plugins.expert]\nsize = 2\n"},
    {"expert_everywhere", "[plugins.data]\nsize = 4\n[plugins.expert]\nsize = 4\n"},
    {"pipeline", "[plugins.pipeline]\nsize = 2\n", {"batch.micro_batch=2"}},
    {"pipeline_tied",
     "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 2\n",
     {"model.tie_embeddings=true", "batch.micro_batch=2"}},
    {"all_axes",
     "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.tensor]\nsize = 2\n"
     "[plugins.expert]\nsize = 2\n",
     {"batch.micro_batch=2", "moe.shared_experts=1"}},
    {"recomputed", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n", {"memory.recompute=\"full\""}},
    {"updated_in_backward", "[plugins.data]\nsize = 2\n", {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"}},
    {"offload", "[plugins.data]\nsize = 2\nzero = 1\n[plugins.offload]\nweights = \"host\"\ngradients = \"host\"\n"},
    {"offload_to_disk",
     "[plugins.data]\nsize = 2\nzero = 2\n[plugins.offload]\nweights = \"nvme\"\nstates = \"nvme\"\n"
     "gradients = \"nvme\"\ndirectory = \"/tmp\"\n"},
    {"offload_lazy", "[plugins.offload]\nstates = \"host\"\nexpert_states = \"lazy\"\n", {"batch.micro_batch=2"}},
    {"interleaved",
     "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n[plugins.data]\nsize = 2\nzero = 1\n",
     {"batch.micro_batch=2", "model.layers=4"}},
    {"late_sides", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n", {"run.device=\"late_sides\""}},
    {"muon", "[plugins.data]\nsize = 2\nzero = 1\n[plugins.tensor]\nsize = 2\n", {"optimizer.name=\"muon\""}},
    {"offload_states", "[plugins.offload]\nstates = \"host\"\n", {"batch.micro_batch=2"}},
};

// What trains. Frozen parameters lie beside others in a group, or fill one.
const Model models[] = {
    {"some_frozen",
     {R"(train.freeze=["model.embed_tokens.weight", "*.self_attn.q_proj.weight", "*norm.weight", "*.experts.1.w1.weight"])"}},
    {"sinks_frozen", {"model.attention_sinks=true", R"(train.freeze=["*.sinks"])"}},
    {"sinks_alone", {"model.attention_sinks=true", R"(train.train_only=["*.sinks"])"}},
    {"experts_alone", {R"(train.train_only=["*.experts.*"])"}},
    {"all_adapted", {"lora.rank=3", R"(lora.targets=["*"])"}},
    {"adapters_frozen",
     {"lora.rank=2", R"(lora.targets=["*"])",
      R"(train.freeze=["*_proj.lora_A.weight", "*[de].lora_*"])"}},  // head and gate
    {"some_adapted",
     {"lora.rank=2", R"(lora.targets=["*_proj.weight", "*.experts.[01].*"])", R"(lora.train_also=["*norm.weight"])",
      R"(train.freeze=["model.layers.0.*norm.weight"])"}},
};

class Trained : public testing::TestWithParam<std::tuple<Layout, Model>> {};

TEST_P(Trained, EqualsOneRank) {
  const auto& [layout, model] = GetParam();
  const Config config = experiment(joined(layout.overrides, model.overrides), layout.plugins);
  const VerifyReport report = verify(config, 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

INSTANTIATE_TEST_SUITE_P(Parity, Trained, testing::Combine(testing::ValuesIn(layouts), testing::ValuesIn(models)),
                         [](const auto& made) {
                           return fmt::format("{}__{}", std::get<1>(made.param).name, std::get<0>(made.param).name);
                         });

// Without adapters or frozen parameters everything trains: the names of models above would prove little.
TEST(FrozenParameters, KeepTheirBitsAndHaveNoState) {
  for (const char* dtype : {"run.dtype=\"fp32\"", "run.dtype=\"bf16\""}) {
    for (const Model& model : models) {
      const Config config = experiment(joined(model.overrides, {dtype}));
      const Snapshot before = take_snapshot(config, 0, Halves::apart), after = take_snapshot(config, 3, Halves::apart);
      std::size_t frozen = 0, trained = 0;
      for (const LayerSpecs& layer : parameter_table(config.settings)) {
        for (const ParamSpec& spec : layer.params) {
          const std::vector<float>& then = after.weights_in_use.at(spec.name);
          const bool kept =
              test::same_bits(before.weights_in_use.at(spec.name), then) &&
              test::same_bits(before.state.at("weight/" + spec.name), after.state.at("weight/" + spec.name));
          EXPECT_EQ(kept, spec.frozen) << model.name << " " << dtype << " " << spec.name;
          EXPECT_EQ(after.state.contains("moment1/" + spec.name), !spec.frozen) << spec.name;
          EXPECT_EQ(after.gradients.back().contains(spec.name), !spec.frozen) << spec.name;
          ++(spec.frozen ? frozen : trained);
        }
      }
      EXPECT_GT(frozen, 0) << model.name;
      EXPECT_GT(trained, 0) << model.name;
    }
  }
}

TEST(TrainedPatterns, ThatNameNothingAreRefused) {
  const auto says = [](const Overrides& overrides, const char* words, const std::string& plugins = "") {
    EXPECT_THAT(test::refusal(overrides, plugins), testing::HasSubstr(words)) << testing::PrintToString(overrides);
  };
  says({R"(train.freeze=["*.self_atn.q_proj.weight"])"}, "names no parameter of this model");
  says({R"(train.freeze=["*.self_atn.q_proj.weight"])"}, "did you mean \"*.self_attn.q_proj.weight\"?");
  says({R"(train.train_only=["nothing"])"}, "the names are model.embed_tokens.weight, model.layers.*.");
  says({R"(train.freeze=["*"])"}, "train.freeze: all parameters of this model are frozen");
  says({R"(train.train_only=["lm_head.weight"])", R"(train.freeze=["lm_*"])"}, "nothing is left to train");
  says({R"(lora.targets=["*"])"}, "lora.rank: 0 makes no adapters");
  says({"lora.rank=2"}, "lora.targets: names no matrix");
  says({"lora.rank=2", R"(lora.targets=["*.q_proj.weight", "*.q_porj.weight"])"}, "did you mean \"*.q_proj.weight\"?");
  says({"lora.rank=2", R"(lora.targets=["model.embed_tokens.weight"])"},
       "names no matrix of this model that can have an adapter");
  says({"lora.rank=2", R"(lora.targets=["*norm.weight"])"}, "names no matrix of this model that can have an adapter");
  says({"lora.rank=2", R"(lora.targets=["lm_head.weight"])", "model.tie_embeddings=true"}, "names no matrix");
  says({"lora.rank=2", R"(lora.targets=["*_proj.weight"])", R"(lora.train_also=["*.q_proj.weight"])"},
       "name it in targets or in train_also, not in both");
  says({"lora.rank=2", R"(lora.targets=["*"])", "lora.alpha=0"},
       "lora.alpha: 0 is no factor that the adapter of 'model.layers.0.self_attn.q_proj.weight' can have, of rank 2");
  says({"lora.rank=2", R"(lora.targets=["*"])", "lora.alpha=1e39"}, "5e+38 is no factor that the adapter of");
  says({"lora.rank=2", R"(lora.targets=["*"])", "lora.init_std=1e-50"}, "neither ever gets a gradient");
  says({"lora.rank=2", R"(lora.targets=["*"])", "lora.init_std=0"}, "neither ever gets a gradient");
  const std::string after_gate = "[plugins.offload]\nweights = \"host\"\nexpert_weights = \"after_gate\"\n";
  says({"lora.rank=2", R"(lora.targets=["*.experts.*"])"}, "has an adapter, which is added to it before the gate",
       after_gate);
}

}  // namespace
}  // namespace orthant::adapters_test
