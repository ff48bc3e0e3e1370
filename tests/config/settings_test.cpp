// Every setting has its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/config/loaded.h"

namespace orthant::load_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What a kind reads.
const Value& own(const Settings& s, const std::string& table, const std::string& key) {
  return kind_values(s, table).at(key);
}

TEST_F(Load, FillsEverySettingFromItsKey) {
  const Config config = load(R"(
[run]
name = "a.b-c"
directory = "out"
seed = 9223372036854775807
steps = 7
log_every = 2
checkpoint_every = 3
checkpoint_async = true
validate_every = 4
routing_metrics = false
record_routing = 3
record_logits = 20
keep = 5
keep_every = 6
time_limit = 3600.5
skip_not_finite = 0   # not with in_backward
device = "guarded"
dtype = "bf16"
communicator = "mpi"
threads = 6
timeout_seconds = 1.5
disk_timeout_seconds = 900
graphs = true
deterministic = false
peak_tflops = 2.5
tensorboard = false
prometheus = "a.prom"
trace = 4
trace_first = 7
nvtx = true
[data]
source = "synthetic"
tokenizer = "bytes"
sequence_length = 64
validation_fraction = 0.25
validation_sequences = 11
validation_path = ["sets/a.txt", "/b.c.txt"]
validation_names = ["one", "two"]
documents = "packed"
separator = "--\n"
chat_template = "plain"
blend = [0.5, 2]
too_long = "refuse"
text_key = "body"
[batch]
sequences = 12
micro_batch = 3
grow_after = [3, 5]
grow_to = [18, 24]
[model]
kind = "decoder"
layers = 6
d_model = 48
heads = 6
kv_heads = 2
head_dim = 10
attention = "multi_head"
qk_norm = true
qk_norm_over = "all"
qk_norm_rotated = true
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
attention_scale = 0.25
attention_softcap = 50
ffn = "mlp"
d_ff = 96
vocab_size = 300
norm = "layernorm"
norm_eps = 1e-6
latent_norm_eps = 0
norm_place = "both"
norm_plus_one = true
activation = "swiglu"
positions = "learned"
rope_theta = 500
rope_local_theta = 0
rotary_channels = 0
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
rope_alpha = 0
rope_short_factors = []
rope_long_factors = []
tie_embeddings = true
embedding_scale = 2
residual_scale = 0.5
head_bias = false
logit_divisor = 4
logit_softcap = 30
dropout = 0.1
init_std = 0.5
mtp_depth = 2
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
sparsemixer_width = 0.02
shared_experts = 1
d_shared = 40
shared_gate = true
d_expert = 24
router_bias = true
expert_bias = true
zero_experts = 0  # routing to others cannot be recorded
zero_expert = "zero"
[train]
objective = "cross_entropy"
from = "base"
anew = ["lm_head.*"]
freeze = ["*norm.weight"]
train_only = ["*.experts.*"]
mtp_weight = 0.125
[distil]
teacher = ""
weight = 0.25
temperature = 2
[preference]
loss = "ipo"
reference = "other"
beta = 0.25
label_smoothing = 0.125
nll_weight = 0.5
[lora]
rank = 4
alpha = 8.0
rank_stabilised = true
rank_of = ["*.v_proj.weight"]
ranks = [2]
alpha_of = ["*.v_proj.weight"]
alphas = [4.0]
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
lr_of = ["*.w1.*", "lm_head.weight"]
lr_scales = [0.5, 2]
no_decay = ["lm_head.weight"]
clip_grad_norm = 0
in_backward = true
schedule = "inverse_sqrt"
warmup_steps = 5
decay_steps = 6
master_weights = "none"
state_dtype = "8bit"
gradient_dtype = "bf16"
ema_decay = 0.75
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
  EXPECT_TRUE(s.run.checkpoint_async);
  EXPECT_EQ(s.run.validate_every, 4);
  EXPECT_FALSE(s.run.routing_metrics);
  EXPECT_EQ(s.run.record_routing, 3);
  EXPECT_EQ(s.run.record_logits, 20);
  EXPECT_EQ(s.run.keep, 5);
  EXPECT_EQ(s.run.keep_every, 6);
  EXPECT_EQ(s.run.time_limit, 3600.5);
  EXPECT_EQ(s.run.skip_not_finite, 0);
  EXPECT_EQ(s.run.device, "guarded");
  EXPECT_EQ(s.run.dtype, ComputeType::bf16);
  EXPECT_EQ(s.run.communicator, "mpi");
  EXPECT_EQ(s.run.threads, 6);
  EXPECT_EQ(s.run.timeout_seconds, 1.5);
  EXPECT_TRUE(s.run.graphs);
  EXPECT_FALSE(s.run.deterministic);
  EXPECT_EQ(s.run.peak_tflops, 2.5);
  EXPECT_FALSE(s.run.tensorboard);
  EXPECT_EQ(s.run.prometheus, "a.prom");
  EXPECT_EQ(s.run.trace, 4);
  EXPECT_EQ(s.run.trace_first, 7);
  EXPECT_TRUE(s.run.nvtx);
  EXPECT_EQ(s.data.source, "synthetic");
  EXPECT_EQ(s.data.tokenizer, "bytes");
  EXPECT_EQ(s.data.sequence_length, 64);
  EXPECT_EQ(s.data.validation_fraction, 0.25);
  EXPECT_EQ(s.data.validation_sequences, 11);
  EXPECT_THAT(s.data.validation_path, ElementsAre(folder_.path("sets/a.txt"), "/b.c.txt"));
  EXPECT_THAT(s.data.validation_names, ElementsAre("one", "two"));
  EXPECT_EQ(s.data.documents, Documents::packed);
  EXPECT_EQ(s.data.separator, "--\n");
  EXPECT_EQ(s.data.chat_template, "plain");
  EXPECT_THAT(s.data.blend, ElementsAre(0.5, 2));
  EXPECT_EQ(s.data.too_long, TooLong::refuse);
  EXPECT_EQ(s.batch.sequences, 12);
  EXPECT_EQ(s.batch.micro_batch, 3);
  EXPECT_THAT(s.batch.grow_after, ElementsAre(3, 5));
  EXPECT_THAT(s.batch.grow_to, ElementsAre(18, 24));
  EXPECT_EQ(s.model.kind, "decoder");
  EXPECT_EQ(s.model.layers, 6);
  EXPECT_EQ(s.model.d_model, 48);
  EXPECT_EQ(s.model.heads, 6);
  EXPECT_EQ(s.model.kv_heads, 2);
  EXPECT_EQ(s.model.head_dim, 10);
  EXPECT_EQ(s.model.attention, "multi_head");
  EXPECT_EQ(own(s, "model", "qk_norm"), Value(true));
  EXPECT_EQ(own(s, "model", "qk_norm_over"), Value(std::string("all")));
  EXPECT_EQ(own(s, "model", "biases"), Value(true));
  EXPECT_EQ(own(s, "model", "output_bias"), Value(true));
  EXPECT_EQ(own(s, "model", "attention_sinks"), Value(true));
  EXPECT_EQ(s.model.sliding_window, 20);
  EXPECT_EQ(s.model.full_attention_every, 2);
  EXPECT_EQ(s.model.ffn, "mlp");
  EXPECT_EQ(s.model.d_ff, 96);
  EXPECT_EQ(s.model.vocab_size, 300);
  EXPECT_EQ(s.model.norm, NormKind::layernorm);
  EXPECT_EQ(s.model.norm_eps, 1e-6);
  EXPECT_EQ(s.model.activation, Activation::swiglu);
  EXPECT_EQ(s.model.positions, Positions::learned);
  EXPECT_EQ(own(s, "model", "rope_theta"), Value(500.0));
  EXPECT_TRUE(s.model.tie_embeddings);
  EXPECT_EQ(s.model.dropout, 0.1);
  EXPECT_EQ(s.model.init_std, 0.5);
  EXPECT_EQ(s.model.mtp_depth, 2);
  EXPECT_EQ(s.moe.experts, 16);
  EXPECT_EQ(s.moe.every, 2);
  EXPECT_EQ(s.moe.first_dense, 2);
  EXPECT_EQ(s.moe.top_k, 2);
  EXPECT_EQ(s.moe.router, "gshard");
  EXPECT_EQ(own(s, "moe", "score"), Value(std::string("softmax")));
  EXPECT_EQ(s.moe.capacity_factor, 1.25);
  EXPECT_EQ(s.moe.group_tokens, 192);
  EXPECT_EQ(s.moe.drop_policy, DropPolicy::probability);
  EXPECT_EQ(s.moe.aux_loss, 0.02);
  EXPECT_EQ(s.moe.z_loss, 0.001);
  EXPECT_EQ(s.moe.jitter, 0.01);
  EXPECT_EQ(own(s, "moe", "normalize_weights"), Value(false));
  EXPECT_EQ(s.moe.balance_over, BalanceOver::batch);
  EXPECT_EQ(own(s, "moe", "expert_groups"), Value(std::int64_t{1}));
  EXPECT_EQ(own(s, "moe", "groups_per_token"), Value(std::int64_t{1}));
  EXPECT_EQ(own(s, "moe", "group_score"), Value(std::string("top2_sum")));
  EXPECT_EQ(s.moe.weight_scale, 2.5);
  EXPECT_EQ(own(s, "moe", "bias_update_rate"), Value(0.01));
  EXPECT_EQ(s.moe.shared_experts, 1);
  EXPECT_EQ(s.moe.d_shared, 40);
  EXPECT_TRUE(s.moe.shared_gate);
  EXPECT_EQ(s.moe.d_expert, 24);
  EXPECT_TRUE(s.moe.router_bias);
  EXPECT_TRUE(s.moe.expert_bias);
  EXPECT_EQ(s.data.text_key, "body");
  EXPECT_EQ(s.moe.zero_experts, 0);
  EXPECT_EQ(s.moe.zero_expert, ZeroExpert::zero);
  EXPECT_EQ(s.train.objective, "cross_entropy");
  EXPECT_THAT(s.train.from, testing::EndsWith("/base"));
  EXPECT_THAT(s.train.freeze, ElementsAre("*norm.weight"));
  EXPECT_THAT(s.train.train_only, ElementsAre("*.experts.*"));
  EXPECT_EQ(s.train.mtp_weight, 0.125);
  EXPECT_EQ(own(s, "distil", "teacher"), Value(std::string("")));
  EXPECT_EQ(own(s, "distil", "weight"), Value(0.25));
  EXPECT_EQ(own(s, "distil", "temperature"), Value(2.0));
  EXPECT_EQ(own(s, "preference", "loss"), Value(std::string("ipo")));
  EXPECT_THAT(std::get<std::string>(own(s, "preference", "reference")), testing::EndsWith("/other"));
  EXPECT_EQ(own(s, "preference", "beta"), Value(0.25));
  EXPECT_EQ(own(s, "preference", "label_smoothing"), Value(0.125));
  EXPECT_EQ(own(s, "preference", "nll_weight"), Value(0.5));
  EXPECT_EQ(s.lora.rank, 4);
  EXPECT_EQ(s.lora.alpha, 8.0);
  EXPECT_THAT(s.lora.targets, ElementsAre("*.q_proj.weight", "*.v_proj.weight"));
  EXPECT_THAT(s.lora.train_also, ElementsAre("lm_head.weight"));
  EXPECT_EQ(s.lora.init_std, 0.1);
  EXPECT_EQ(s.optimizer.name, "sgd");
  EXPECT_EQ(s.optimizer.lr, 0.5);
  EXPECT_EQ(s.optimizer.min_lr, 0.25);
  EXPECT_EQ(own(s, "optimizer", "betas"), Value(std::vector<double>{0.8, 0.99}));
  EXPECT_EQ(own(s, "optimizer", "momentum"), Value(0.7));
  EXPECT_EQ(own(s, "optimizer", "eps"), Value(1e-9));
  EXPECT_EQ(s.optimizer.weight_decay, 0.2);
  EXPECT_THAT(s.optimizer.lr_of, ElementsAre("*.w1.*", "lm_head.weight"));
  EXPECT_THAT(s.optimizer.lr_scales, ElementsAre(0.5, 2));
  EXPECT_THAT(s.optimizer.no_decay, ElementsAre("lm_head.weight"));
  EXPECT_EQ(s.optimizer.clip_grad_norm, 0);
  EXPECT_TRUE(s.optimizer.in_backward);
  EXPECT_EQ(s.optimizer.schedule, "inverse_sqrt");
  EXPECT_EQ(s.optimizer.warmup_steps, 5);
  EXPECT_EQ(own(s, "optimizer", "decay_steps"), Value(std::int64_t{6}));
  EXPECT_EQ(s.optimizer.master_weights, MasterWeights::none);
  EXPECT_EQ(s.optimizer.state_dtype, StateType::eight_bits);
  EXPECT_EQ(s.optimizer.gradient_dtype, ComputeType::bf16);
  EXPECT_EQ(s.optimizer.ema_decay, 0.75);
  EXPECT_EQ(s.memory.recompute, "full");
  EXPECT_EQ(s.memory.keep_micro_batches, 3);
  EXPECT_EQ(s.memory.limit, std::int64_t{3} << 29);
  EXPECT_EQ(s.memory.host_limit, std::int64_t{2} << 30);
  for (const Table& table : config.tables) {
    for (const auto& [key, entry] : table.entries()) {
      // epochs stand in the place of steps.
      if (const std::string name = table.path() + "." + key; name != "data.path" && name != "run.epochs") {
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
  EXPECT_EQ(own(s, "model", "q_lora_rank"), Value(std::int64_t{24}));
  EXPECT_EQ(own(s, "model", "kv_lora_rank"), Value(std::int64_t{20}));
  EXPECT_EQ(own(s, "model", "qk_nope_head_dim"), Value(std::int64_t{12}));
  EXPECT_EQ(own(s, "model", "qk_rope_head_dim"), Value(std::int64_t{6}));
  EXPECT_EQ(own(s, "model", "v_head_dim"), Value(std::int64_t{10}));
  EXPECT_EQ(head_dim_of(s), 18);
  EXPECT_EQ(own(s, "model", "rope_interleaved"), Value(true));
  EXPECT_EQ(own(s, "model", "rope_scaling"), Value(std::string("yarn")));
  EXPECT_EQ(own(s, "model", "rope_factor"), Value(40.0));
  EXPECT_EQ(own(s, "model", "rope_original_positions"), Value(std::int64_t{4096}));
  EXPECT_EQ(own(s, "model", "rope_beta_fast"), Value(30.0));
  EXPECT_EQ(own(s, "model", "rope_beta_slow"), Value(2.0));
  EXPECT_EQ(own(s, "model", "rope_truncate"), Value(false));
  EXPECT_EQ(own(s, "model", "rope_attention_factor"), Value(1.5));
  EXPECT_EQ(own(s, "model", "rope_mscale"), Value(0.7));
  EXPECT_EQ(own(s, "model", "rope_mscale_all_dim"), Value(0.8));
  EXPECT_EQ(own(s, "moe", "group_score"), Value(std::string("max")));
  const Settings llama =
      load(text, {R"(model.attention="multi_head")", "model.q_lora_rank=0", "model.kv_lora_rank=0",
                  "model.qk_nope_head_dim=0", "model.qk_rope_head_dim=0", "model.v_head_dim=0",
                  R"(model.rope_scaling="llama3")", "model.rope_beta_fast=32", "model.rope_beta_slow=1",
                  "model.rope_truncate=true", "model.rope_attention_factor=0", "model.rope_mscale=0",
                  "model.rope_mscale_all_dim=0", "model.rope_low_freq_factor=2", "model.rope_high_freq_factor=3",
                  "model.rotary_channels=4"})
          .settings;
  EXPECT_EQ(rotary_channels_of(llama), 4);
  EXPECT_EQ(own(llama, "model", "rope_scaling"), Value(std::string("llama3")));
  EXPECT_EQ(own(llama, "model", "rope_low_freq_factor"), Value(2.0));
  EXPECT_EQ(own(llama, "model", "rope_high_freq_factor"), Value(3.0));
}

}  // namespace
}  // namespace orthant::load_test
