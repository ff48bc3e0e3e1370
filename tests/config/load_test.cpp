// load_config: layers, provenance, order, what is implied, and the function that asks for a plugin's keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/validate.h"
#include "tests/config/fake_plugins.h"
#include "tests/config/temporary_folder.h"

namespace orthant::load_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string synthetic = "[data]\nsource = \"synthetic\"\n";

std::string refusal(const std::string& file, const std::vector<std::string>& overrides = {}) {
  try {
    load_config(file, overrides, fake_plugin_keys);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

class Load : public testing::Test {
 protected:
  Config load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load_config(folder_.write("main.toml", text), overrides, fake_plugin_keys);
  }
  TemporaryFolder folder_;
};

TEST_F(Load, FillsEverySettingFromItsKey) {
  const Config config = load(R"(
[run]
name = "a.b-c"
directory = "out"
seed = 9223372036854775807
steps = 7
log_every = 2
checkpoint_every = 3
validate_every = 4
routing_metrics = false
record_routing = 3
record_logits = 20
keep = 5
device = "guarded"
dtype = "bf16"
communicator = "mpi"
threads = 6
timeout_seconds = 1.5
disk_timeout_seconds = 900
graphs = true
peak_tflops = 2.5
tensorboard = false
trace = 4
trace_first = 7
nvtx = true
[data]
source = "synthetic"
tokenizer = "bytes"
sequence_length = 64
validation_fraction = 0.25
validation_sequences = 11
documents = "packed"
separator = "--\n"
chat_template = "plain"
blend = [0.5, 2]
too_long = "refuse"
[batch]
sequences = 12
micro_batch = 3
[model]
layers = 6
d_model = 48
heads = 6
kv_heads = 2
head_dim = 10
attention = "multi_head"
qk_norm = true
qk_norm_over = "all"
biases = true
output_bias = true
attention_sinks = true
q_lora_rank = 0
kv_lora_rank = 0
qk_nope_head_dim = 0
qk_rope_head_dim = 0
v_head_dim = 0
sliding_window = 20
full_attention_every = 2
ffn = "mlp"
d_ff = 96
vocab_size = 300
norm = "layernorm"
norm_eps = 1e-6
activation = "swiglu"
positions = "learned"
rope_theta = 500
rope_interleaved = false
rope_scaling = "none"
rope_factor = 1
rope_original_positions = 0
rope_low_freq_factor = 1
rope_high_freq_factor = 4
rope_beta_fast = 32
rope_beta_slow = 1
rope_truncate = true
rope_attention_factor = 0
rope_mscale = 0
rope_mscale_all_dim = 0
tie_embeddings = true
dropout = 0.1
init_std = 0.5
[moe]
experts = 16
every = 2
first_dense = 2
top_k = 2
router = "gshard"
score = "softmax"
capacity_factor = 1.25
group_tokens = 192
drop_policy = "probability"
aux_loss = 0.02
z_loss = 0.001
jitter = 0.01
normalize_weights = false
weight_scale = 2.5
balance_over = "batch"
expert_groups = 1
groups_per_token = 1
group_score = "top2_sum"
bias_update_rate = 0.01
shared_experts = 1
d_shared = 40
shared_gate = true
d_expert = 24
router_bias = true
expert_bias = true
[train]
from = "base"
freeze = ["*norm.weight"]
train_only = ["*.experts.*"]
[distil]
teacher = ""
weight = 0.25
temperature = 2
[lora]
rank = 4
alpha = 8.0
targets = ["*.q_proj.weight", "*.v_proj.weight"]
train_also = ["lm_head.weight"]
init_std = 0.1
[optimizer]
name = "sgd"
lr = 0.5
min_lr = 0.25
betas = [0.8, 0.99]
momentum = 0.7
eps = 1e-9
weight_decay = 0.2
clip_grad_norm = 0
in_backward = true
schedule = "inverse_sqrt"
warmup_steps = 5
decay_steps = 6
master_weights = "none"
state_dtype = "8bit"
[memory]
recompute = "full"
keep_micro_batches = 3
limit = "1.5 GiB"
host_limit = "2 GiB"
)");
  const Settings& s = config.settings;
  EXPECT_EQ(s.run.name, "a.b-c");
  EXPECT_EQ(s.run.directory, "out");
  EXPECT_EQ(s.run.seed, 9223372036854775807u);
  EXPECT_EQ(s.run.steps, 7);
  EXPECT_EQ(s.run.log_every, 2);
  EXPECT_EQ(s.run.checkpoint_every, 3);
  EXPECT_EQ(s.run.validate_every, 4);
  EXPECT_FALSE(s.run.routing_metrics);
  EXPECT_EQ(s.run.record_routing, 3);
  EXPECT_EQ(s.run.record_logits, 20);
  EXPECT_EQ(s.run.keep, 5);
  EXPECT_EQ(s.run.device, "guarded");
  EXPECT_EQ(s.run.dtype, ComputeType::bf16);
  EXPECT_EQ(s.run.communicator, "mpi");
  EXPECT_EQ(s.run.threads, 6);
  EXPECT_EQ(s.run.timeout_seconds, 1.5);
  EXPECT_TRUE(s.run.graphs);
  EXPECT_EQ(s.run.peak_tflops, 2.5);
  EXPECT_FALSE(s.run.tensorboard);
  EXPECT_EQ(s.run.trace, 4);
  EXPECT_EQ(s.run.trace_first, 7);
  EXPECT_TRUE(s.run.nvtx);
  EXPECT_EQ(s.data.source, "synthetic");
  EXPECT_EQ(s.data.tokenizer, "bytes");
  EXPECT_EQ(s.data.sequence_length, 64);
  EXPECT_EQ(s.data.validation_fraction, 0.25);
  EXPECT_EQ(s.data.validation_sequences, 11);
  EXPECT_EQ(s.data.documents, Documents::packed);
  EXPECT_EQ(s.data.separator, "--\n");
  EXPECT_EQ(s.data.chat_template, "plain");
  EXPECT_THAT(s.data.blend, ElementsAre(0.5, 2));
  EXPECT_EQ(s.data.too_long, TooLong::refuse);
  EXPECT_EQ(s.batch.sequences, 12);
  EXPECT_EQ(s.batch.micro_batch, 3);
  EXPECT_EQ(s.model.layers, 6);
  EXPECT_EQ(s.model.d_model, 48);
  EXPECT_EQ(s.model.heads, 6);
  EXPECT_EQ(s.model.kv_heads, 2);
  EXPECT_EQ(s.model.head_dim, 10);
  EXPECT_EQ(s.model.attention, "multi_head");
  EXPECT_TRUE(s.model.qk_norm);
  EXPECT_EQ(s.model.qk_norm_over, QkNormOver::all);
  EXPECT_TRUE(s.model.biases);
  EXPECT_TRUE(s.model.output_bias);
  EXPECT_TRUE(s.model.attention_sinks);
  EXPECT_EQ(s.model.sliding_window, 20);
  EXPECT_EQ(s.model.full_attention_every, 2);
  EXPECT_EQ(s.model.ffn, "mlp");
  EXPECT_EQ(s.model.d_ff, 96);
  EXPECT_EQ(s.model.vocab_size, 300);
  EXPECT_EQ(s.model.norm, NormKind::layernorm);
  EXPECT_EQ(s.model.norm_eps, 1e-6);
  EXPECT_EQ(s.model.activation, Activation::swiglu);
  EXPECT_EQ(s.model.positions, Positions::learned);
  EXPECT_EQ(s.model.rope_theta, 500);
  EXPECT_TRUE(s.model.tie_embeddings);
  EXPECT_EQ(s.model.dropout, 0.1);
  EXPECT_EQ(s.model.init_std, 0.5);
  EXPECT_EQ(s.moe.experts, 16);
  EXPECT_EQ(s.moe.every, 2);
  EXPECT_EQ(s.moe.first_dense, 2);
  EXPECT_EQ(s.moe.top_k, 2);
  EXPECT_EQ(s.moe.router, "gshard");
  EXPECT_EQ(s.moe.score, ScoreKind::softmax);
  EXPECT_EQ(s.moe.capacity_factor, 1.25);
  EXPECT_EQ(s.moe.group_tokens, 192);
  EXPECT_EQ(s.moe.drop_policy, DropPolicy::probability);
  EXPECT_EQ(s.moe.aux_loss, 0.02);
  EXPECT_EQ(s.moe.z_loss, 0.001);
  EXPECT_EQ(s.moe.jitter, 0.01);
  EXPECT_FALSE(s.moe.normalize_weights);
  EXPECT_EQ(s.moe.balance_over, BalanceOver::batch);
  EXPECT_EQ(s.moe.expert_groups, 1);
  EXPECT_EQ(s.moe.groups_per_token, 1);
  EXPECT_EQ(s.moe.group_score, GroupScore::top2_sum);
  EXPECT_EQ(s.moe.weight_scale, 2.5);
  EXPECT_EQ(s.moe.bias_update_rate, 0.01);
  EXPECT_EQ(s.moe.shared_experts, 1);
  EXPECT_EQ(s.moe.d_shared, 40);
  EXPECT_TRUE(s.moe.shared_gate);
  EXPECT_EQ(s.moe.d_expert, 24);
  EXPECT_TRUE(s.moe.router_bias);
  EXPECT_TRUE(s.moe.expert_bias);
  EXPECT_THAT(s.train.from, testing::EndsWith("/base"));
  EXPECT_THAT(s.train.freeze, ElementsAre("*norm.weight"));
  EXPECT_THAT(s.train.train_only, ElementsAre("*.experts.*"));
  EXPECT_EQ(s.distil.teacher, "");
  EXPECT_EQ(s.distil.weight, 0.25);
  EXPECT_EQ(s.distil.temperature, 2.0);
  EXPECT_EQ(s.lora.rank, 4);
  EXPECT_EQ(s.lora.alpha, 8.0);
  EXPECT_THAT(s.lora.targets, ElementsAre("*.q_proj.weight", "*.v_proj.weight"));
  EXPECT_THAT(s.lora.train_also, ElementsAre("lm_head.weight"));
  EXPECT_EQ(s.lora.init_std, 0.1);
  EXPECT_EQ(s.optimizer.name, "sgd");
  EXPECT_EQ(s.optimizer.lr, 0.5);
  EXPECT_EQ(s.optimizer.min_lr, 0.25);
  EXPECT_THAT(s.optimizer.betas, ElementsAre(0.8, 0.99));
  EXPECT_EQ(s.optimizer.momentum, 0.7);
  EXPECT_EQ(s.optimizer.eps, 1e-9);
  EXPECT_EQ(s.optimizer.weight_decay, 0.2);
  EXPECT_EQ(s.optimizer.clip_grad_norm, 0);
  EXPECT_TRUE(s.optimizer.in_backward);
  EXPECT_EQ(s.optimizer.schedule, "inverse_sqrt");
  EXPECT_EQ(s.optimizer.warmup_steps, 5);
  EXPECT_EQ(s.optimizer.decay_steps, 6);
  EXPECT_EQ(s.optimizer.master_weights, MasterWeights::none);
  EXPECT_EQ(s.optimizer.state_dtype, StateType::eight_bits);
  EXPECT_EQ(s.memory.recompute, "full");
  EXPECT_EQ(s.memory.keep_micro_batches, 3);
  EXPECT_EQ(s.memory.limit, std::int64_t{3} << 29);
  EXPECT_EQ(s.memory.host_limit, std::int64_t{2} << 30);
  for (const Table& table : config.tables) {
    for (const auto& [key, entry] : table.entries()) {
      if (table.path() + "." + key != "data.path") {
        EXPECT_THAT(entry.origin, HasSubstr("main.toml:")) << table.path() << "." << key;  // nothing was forgotten
      }
    }
  }
}

// What the file above cannot have beside its other values.
TEST_F(Load, FillsLatentAttentionAndScaledRotation) {
  const std::string text = R"(
[data]
source = "synthetic"
[model]
attention = "latent"
q_lora_rank = 24
kv_lora_rank = 20
qk_nope_head_dim = 12
qk_rope_head_dim = 6
v_head_dim = 10
rope_interleaved = true
rope_scaling = "yarn"
rope_factor = 40
rope_original_positions = 4096
rope_beta_fast = 30
rope_beta_slow = 2
rope_truncate = false
rope_attention_factor = 1.5
rope_mscale = 0.7
rope_mscale_all_dim = 0.8
[moe]
experts = 16
top_k = 2
expert_groups = 4
groups_per_token = 2
group_score = "max"
)";
  const Settings s = load(text).settings;
  EXPECT_EQ(s.model.q_lora_rank, 24);
  EXPECT_EQ(s.model.kv_lora_rank, 20);
  EXPECT_EQ(s.model.qk_nope_head_dim, 12);
  EXPECT_EQ(s.model.qk_rope_head_dim, 6);
  EXPECT_EQ(s.model.v_head_dim, 10);
  EXPECT_EQ(head_dim_of(s), 18);
  EXPECT_TRUE(s.model.rope_interleaved);
  EXPECT_EQ(s.model.rope_scaling, RopeScaling::yarn);
  EXPECT_EQ(s.model.rope_factor, 40);
  EXPECT_EQ(s.model.rope_original_positions, 4096);
  EXPECT_EQ(s.model.rope_beta_fast, 30);
  EXPECT_EQ(s.model.rope_beta_slow, 2);
  EXPECT_FALSE(s.model.rope_truncate);
  EXPECT_EQ(s.model.rope_attention_factor, 1.5);
  EXPECT_EQ(s.model.rope_mscale, 0.7);
  EXPECT_EQ(s.model.rope_mscale_all_dim, 0.8);
  EXPECT_EQ(s.moe.group_score, GroupScore::max);
  const Settings llama =
      load(text, {R"(model.attention="multi_head")", "model.q_lora_rank=0", "model.kv_lora_rank=0",
                  "model.qk_nope_head_dim=0", "model.qk_rope_head_dim=0", "model.v_head_dim=0",
                  R"(model.rope_scaling="llama3")", "model.rope_beta_fast=32", "model.rope_beta_slow=1",
                  "model.rope_truncate=true", "model.rope_attention_factor=0", "model.rope_mscale=0",
                  "model.rope_mscale_all_dim=0", "model.rope_low_freq_factor=2", "model.rope_high_freq_factor=3"})
          .settings;
  EXPECT_EQ(llama.model.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(llama.model.rope_low_freq_factor, 2);
  EXPECT_EQ(llama.model.rope_high_freq_factor, 3);
}

TEST(Bytes, AreNumbersWithAUnit) {
  const std::pair<const char*, std::int64_t> good[] = {
      {"20 GiB", std::int64_t{20} << 30}, {"512MiB", 512 << 20}, {"1.5 kib", 1536}, {"2 GB", 2'000'000'000},
      {"1 TiB", std::int64_t{1} << 40},   {"4096", 4096},        {"7 B", 7},        {"0.5 KB", 500}};
  for (const auto& [text, bytes] : good) {
    EXPECT_EQ(parse_bytes(text), bytes) << text;
  }
  for (const char* text : {"", " ", "GiB", "20 G", "20 apples", "-1 GiB", "0", "0.1 B", "1e3", "1 GiB 2", "nan", "inf",
                           "2000000 TiB", "1,5 GiB", "0x10", "20\tGiB"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
}

TEST_F(Load, BytesMayBeAPlainInteger) {
  EXPECT_EQ(load(synthetic + "[memory]\nlimit = 4096\n").settings.memory.limit, 4096);
  EXPECT_EQ(load(synthetic + "[memory]\nlimit = \"\"\n").settings.memory.limit, 0);
}

TEST_F(Load, EveryChoiceNamesItsOwnEnumerator) {
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"switch\"\n").settings.moe.router, "switch");
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"topk\"\n").settings.moe.router, "topk");
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nscore = \"sigmoid\"\n").settings.moe.score, ScoreKind::sigmoid);
  EXPECT_EQ(load(synthetic + "[model]\nactivation = \"relu\"\n").settings.model.activation, Activation::relu);
  EXPECT_EQ(load(synthetic + "[model]\nactivation = \"gelu\"\n").settings.model.activation, Activation::gelu);
  EXPECT_EQ(load(synthetic + "[model]\nactivation = \"clamped_swiglu\"\n").settings.model.activation,
            Activation::clamped_swiglu);
  EXPECT_EQ(load(synthetic + "[optimizer]\nschedule = \"constant\"\n").settings.optimizer.schedule, "constant");
  EXPECT_EQ(load(synthetic + "[optimizer]\nschedule = \"cosine\"\n").settings.optimizer.schedule, "cosine");
  EXPECT_EQ(load(synthetic + "documents = \"separate\"\n").settings.data.documents, Documents::separate);
}

TEST_F(Load, ValuesKnowWhereTheyWereWritten) {
  const Config config =
      load(synthetic + "[run]\n  steps =   12 # twelve\n[plugins.data]\nsize = 2\n", {"run.seed=5", "model.heads = 2"});
  const std::string file = folder_.path("main.toml");
  EXPECT_EQ(config.file, file);
  EXPECT_EQ(config.origin("run.steps"), file + ":4:13");
  EXPECT_EQ(config.origin("run.seed"), "--set:1:10");
  EXPECT_EQ(config.origin("model.heads"), "--set:2:15");
  EXPECT_EQ(config.origin("run.name"), "default");
  EXPECT_EQ(config.origin("plugins.data.size"), file + ":6:8");
  EXPECT_EQ(config.origin("plugins.data.zero"), "default");
  EXPECT_THROW(config.origin("run.nothing"), Error);
  EXPECT_THROW(config.origin("plugins.expert.size"), Error);
  EXPECT_THROW(config.origin("run"), Error);
}

TEST_F(Load, LaterFilesWinDepthFirst) {
  folder_.write("deep/deepest.toml", "[run]\nsteps = 1\nlog_every = 1\nkeep = 1\nthreads = 1\nseed = 11\n");
  folder_.write("deep/first.toml",
                "extends = \"deepest.toml\"\n[run]\nsteps = 2\nlog_every = 2\nkeep = 2\nthreads = 2\n");
  folder_.write("second.toml", "[run]\nsteps = 3\nlog_every = 3\nkeep = 3\n");
  const Config config =
      load("extends = [\"deep/first.toml\", \"second.toml\"]\n" + synthetic + "[run]\nsteps = 4\nlog_every = 4\n",
           {"run.steps=5", "run.steps=6"});
  EXPECT_EQ(config.settings.run.seed, 11u);     // the deepest alone
  EXPECT_EQ(config.settings.run.threads, 2);    // first over what it extends
  EXPECT_EQ(config.settings.run.keep, 3);       // second over first
  EXPECT_EQ(config.settings.run.log_every, 4);  // the file over what it extends
  EXPECT_EQ(config.settings.run.steps, 6);      // the last override over all
  EXPECT_EQ(config.origin("run.seed"), folder_.path("deep/deepest.toml") + ":6:8");
  EXPECT_EQ(config.origin("run.keep"), folder_.path("second.toml") + ":4:8");
}

TEST_F(Load, OneFileMayBeExtendedTwiceButNotInACircle) {
  folder_.write("base.toml", synthetic);
  folder_.write("left.toml", "extends = \"base.toml\"\n[run]\nsteps = 2\n");
  folder_.write("right.toml", "extends = \"base.toml\"\n[run]\nkeep = 2\n");
  EXPECT_EQ(load("extends = [\"left.toml\", \"right.toml\"]\n").settings.run.steps, 2);
  folder_.write("base.toml", "extends = \"link.toml\"\n");
  std::filesystem::create_symlink(folder_.path("main.toml"), folder_.path("link.toml"));  // another name for itself
  EXPECT_THAT(refusal(folder_.path("main.toml")), HasSubstr("extends goes in a circle: "));
}

TEST_F(Load, PluginsKeepTheOrderInWhichTheyAreFirstWritten) {
  folder_.write("base.toml", synthetic + "[plugins.needy]\nmodel = \"m\"\n[plugins.data]\nsize = 2\n");
  const Config config = load("extends = \"base.toml\"\n[plugins.expert]\nsize = 4\n[plugins.data]\nsize = 8\n",
                             {"plugins.needy.scale=3"});
  std::vector<std::string> names;
  for (const PluginRequest& plugin : config.plugins) {
    names.push_back(plugin.name);
  }
  EXPECT_THAT(names, ElementsAre("needy", "data", "expert"));
  EXPECT_EQ(config.plugins[0].table.number("scale"), 3.0);
  EXPECT_EQ(config.plugins[0].table.text("model"), "m");
  EXPECT_FALSE(config.plugins[0].table.boolean("on"));
  EXPECT_EQ(config.plugins[1].table.integer("size"), 8);
  EXPECT_EQ(config.plugins[1].table.integer("zero"), 0);
  EXPECT_EQ(config.plugins[1].origin, folder_.path("base.toml") + ":5:10");
  EXPECT_EQ(config.plugins[2].table.path(), "plugins.expert");
}

TEST_F(Load, AnOverrideMayAddAPlugin) {
  const Config config = load(synthetic + "[plugins.expert]\n", {"plugins.data.size=2"});
  ASSERT_EQ(config.plugins.size(), 2u);
  EXPECT_EQ(config.plugins[1].name, "data");
}

TEST_F(Load, PathsAreRelativeToTheFileThatWroteThem) {
  folder_.write("sub/text.txt", std::string(500, 'x'));
  folder_.write("sub/base.toml", "[data]\npath = [\"text.txt\"]\n[plugins.data]\npath = \"./lib.so\"\n");
  const Config config = load("extends = \"sub/base.toml\"\n");
  EXPECT_THAT(config.settings.data.path, ElementsAre(folder_.path("sub/text.txt")));
  EXPECT_EQ(config.plugins.at(0).path, folder_.path("sub/lib.so"));

  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path("sub"));
  const Config set = load_config("../main.toml", {"data.path=text.txt"}, fake_plugin_keys);
  std::filesystem::current_path(before);
  EXPECT_THAT(set.settings.data.path, ElementsAre(folder_.path("sub/text.txt")));
  EXPECT_EQ(set.origin("data.path"), "--set:1:11");
}

TEST_F(Load, TheRouterImpliesTopK) {
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"switch\"\n").settings.moe.top_k, 1);
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"gshard\"\n").settings.moe.top_k, 2);
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\n").settings.moe.top_k, 2);
  const Config choosing = load(synthetic + "[moe]\nexperts = 70\nrouter = \"expert_choice\"\ncapacity_factor = 2\n");
  EXPECT_EQ(choosing.settings.moe.router, "expert_choice");
  EXPECT_EQ(choosing.settings.moe.top_k, 70);
  ASSERT_EQ(warnings(choosing.settings).size(), 1u);
  EXPECT_NE(warnings(choosing.settings)[0].find("looks ahead"), std::string::npos);
  EXPECT_TRUE(warnings(load(synthetic + "[moe]\nexperts = 4\n").settings).empty());
  EXPECT_TRUE(warnings(load(synthetic + "[moe]\nexperts = 0\nrouter = \"expert_choice\"\n").settings).empty());
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\ntop_k = 3\n").settings.moe.top_k, 3);
}

// The dense twin of any mixture: --set moe.experts=0.
TEST_F(Load, WithoutExpertsTheRestOfTheTableIsTurnedOff) {
  const std::string mixture = synthetic + "[moe]\nexperts = 4\ntop_k = 3\nscore = \"sigmoid\"\nd_expert = 8\n";
  EXPECT_EQ(load(mixture, {"moe.experts=0"}).settings.moe.experts, 0);
  EXPECT_NO_THROW(load(synthetic + "[moe]\nexperts = 0\nz_loss = 0.1\n"));
  EXPECT_NO_THROW(load(synthetic + "[moe]\n"));
}

TEST_F(Load, AWarmUpLongerThanTheRunIsWarnedOf) {
  EXPECT_TRUE(warnings(load(synthetic + "[run]\nsteps = 20\n[optimizer]\nwarmup_steps = 20\n").settings).empty());
  const auto found = warnings(load(synthetic + "[run]\nsteps = 2\n[optimizer]\nwarmup_steps = 20\n").settings);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("optimizer.warmup_steps = 20 is above run.steps = 2"), std::string::npos) << found[0];
}

TEST_F(Load, OverridesAreTomlAndBareWordsAreStrings) {
  const auto name = [&](const std::string& override) { return load(synthetic, {override}).settings.run.name; };
  EXPECT_EQ(name("run.name=first-try"), "first-try");
  EXPECT_EQ(name("run.name = \"quoted\""), "quoted");
  EXPECT_EQ(name("run.name='literal'"), "literal");
  EXPECT_EQ(name("run.name=3rd"), "3rd");
  EXPECT_EQ(name("run = {name = \"inline\", steps = 4}"), "inline");
  EXPECT_EQ(load(synthetic, {"optimizer.betas=[0.5, 0.75]"}).settings.optimizer.betas[1], 0.75);
  EXPECT_EQ(load(synthetic, {"run.seed=0x10"}).settings.run.seed, 16u);
  const std::string file = folder_.path("main.toml");
  EXPECT_THAT(refusal(file, {"run.name=5"}), HasSubstr("expected a string, found the integer 5"));
  EXPECT_THAT(refusal(file, {"run.name=a\nrun.steps=3"}), HasSubstr("control character"));
  EXPECT_THAT(refusal(file, {"run.name=[a"}), HasSubstr("--set:1:"));
  EXPECT_THAT(refusal(file, {"[run]"}), HasSubstr("without 'key=value'"));
  EXPECT_THAT(refusal(file, {"=5"}), HasSubstr("without 'key=value'"));
}

TEST_F(Load, AnIntegerIsANumberAndASingleValueIsAList) {
  folder_.write("text.txt", std::string(500, 'x'));
  const Config config =
      load("[data]\npath = \"text.txt\"\n[optimizer]\nlr = 1\n[plugins.needy]\nmodel = \"m\"\nsizes = 4\n");
  EXPECT_EQ(config.settings.optimizer.lr, 1.0);
  EXPECT_EQ(config.settings.data.path.size(), 1u);
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(config.plugins.at(0).table.entries().at("sizes").value),
            std::vector<std::int64_t>{4});
}

TEST_F(Load, ThePluginIsAskedForItsKeysWithItsFinalPath) {
  folder_.write("base.toml", synthetic + "[plugins.data]\npath = \"old.so\"\n");
  const std::string file =
      folder_.write("main.toml", "extends = \"base.toml\"\n[plugins.data]\npath = \"/new.so\"\n[plugins.expert]\n");
  std::vector<std::string> asked;
  load_config(file, {}, [&](const PluginRequest& plugin) {
    asked.push_back(plugin.name + " " + plugin.path);
    return fake_plugin_keys(plugin);
  });
  EXPECT_THAT(asked, ElementsAre("data /new.so", "expert "));
}

TEST_F(Load, LaterChecksReportAtTheValuesTheyAreAbout) {
  const Config config = load(synthetic + "[plugins.data]\nsize = 3\n", {"plugins.expert.size=2"});
  Diagnostics diagnostics = config.diagnostics();
  EXPECT_NO_THROW(diagnostics.throw_if_any());
  diagnostics.add(config.origin("plugins.expert.size"), "does not divide 3", "write 1 or 3");
  diagnostics.add(config.origin("plugins.data.size"), "does not divide 8", "write 4");
  const std::string file = folder_.path("main.toml");
  EXPECT_EQ(diagnostics.render(), file +
                                      ":4:8: does not divide 8\n    | size = 3\n    |        ^\n    = write 4\n\n"
                                      "--set:1:21: does not divide 3\n    | plugins.expert.size=2\n"
                                      "    |                     ^\n    = write 1 or 3\n");
  EXPECT_THROW(diagnostics.throw_if_any(), ConfigError);
}

}  // namespace
}  // namespace orthant::load_test
