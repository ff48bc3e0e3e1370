// Settings: one experiment, as typed values. Filled by core/config from TOML; see docs/reference/configuration.md.
//
// Plain data without invariants of its own: the configuration has already refused what does not make sense.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <orthant/abi/settings.h>
#include <orthant/catalogue.h>
#include <orthant/keys.h>
#include <orthant/operation_kinds.h>
#include <orthant/sizes.h>

namespace orthant {

// Of a branch of a block: what enters it is normalised, what leaves it, or both.
enum class NormPlace { before, after, both };
enum class Positions { learned, rotary };
enum class BalanceOver { group, batch };
enum class ZeroExpert { zero, copy };  // adds nothing, or the token itself (MoE++, LongCat-Flash)
enum class Documents { stream, packed, separate };
enum class TooLong { cut, refuse, leave_out };
enum class ComputeType { fp32, bf16 };
enum class MasterWeights { fp32, none };
enum class StateType { fp32, eight_bits };

struct RunSettings {
  std::string name = "run";
  std::string directory = "runs";  // the run folder is directory/name
  std::uint64_t seed = 1;
  std::int64_t steps = 100;
  double epochs = 0;  // of the data's training sequences, in place of steps, which follow from it; 0: steps count
  std::int64_t log_every = 10;
  std::int64_t checkpoint_every = 0;  // 0: only at the end
  bool checkpoint_async = false;      // those in between are written beside the training
  std::int64_t validate_every = 0;    // 0: never
  std::int64_t keep = 3;              // last K checkpoints
  std::int64_t keep_every = 0;        // those of its multiples stay too; 0: none
  double time_limit = 0;              // seconds of a process, within which it saves and ends; 0: none
  std::int64_t skip_not_finite = 0;   // steps in a row that may be passed over, as they are not finite
  std::string device = "cpu";
  ComputeType dtype = ComputeType::fp32;
  std::string communicator = "local";
  std::int64_t threads = 1;            // CPU threads of a rank
  double timeout_seconds = 60;         // a collective that waits longer fails
  double disk_timeout_seconds = 1800;  // work on files that takes longer fails
  bool graphs = false;                 // a step's work is given to the device as one, where the device can
  bool deterministic = true;           // no kernel whose sums have no fixed order is taken
  double peak_tflops = 0;              // of one rank's device, for the share of it that a run uses (mfu); 0: unknown
  std::int64_t record_routing = 0;     // steps whose routing is recorded: the first ones, and then the last
  std::int64_t record_logits = 0;      // of each token, where there are more than 64 experts; 0: top_k + 8
  bool routing_metrics = true;         // logged steps measure the routers
  std::int64_t trace = 0;              // steps that are recorded as a trace; 0: none
  std::int64_t trace_first = 0;        // the first of them, counted from 1; 0: the third step after a start
  bool tensorboard = true;             // event files for TensorBoard
  std::string prometheus;              // a text file for Prometheus; empty: none
  bool nvtx = false;                   // spans of the trace are NVTX ranges, in all steps
};

struct DataSettings {
  std::string source = "text";      // a kind of <orthant/source.h>
  std::vector<std::string> path;    // files; a relative path is relative to the file that wrote it
  std::string tokenizer = "bytes";  // "bytes", or a tokenizer's file or folder, as path
  std::int64_t sequence_length = 128;
  double validation_fraction = 0.1;  // the last part of the corpus, held out; see Source::holds_all_out for 1
  std::int64_t validation_sequences = 64;
  Documents documents = Documents::stream;
  std::string separator = "\n\n\n";  // between documents of a text source
  std::string text_key;              // where a JSON line has its text; empty: "text", or "content" where it has no text
  std::string chat_template = "chatml";
  TooLong too_long = TooLong::cut;  // rows longer than a sequence
  std::vector<double> blend;        // weights of the files of path; empty: their content is one row
  // Files that are measured and not trained on, each a validation set of its own, and their names; no names: those of
  // the files (validation_names_of).
  std::vector<std::string> validation_path;
  std::vector<std::string> validation_names;
};

struct BatchSettings {
  std::int64_t sequences = 8;      // per optimizer step, all ranks together; in the first steps where the batch grows
  FollowingSize micro_batch = {};  // sequences of a rank's micro-batch; 0: all of a rank's at once, in the first steps
  // After grow_after[i] steps of the run a step has grow_to[i] sequences. Both rise; empty: the batch does not grow.
  std::vector<std::int64_t> grow_after, grow_to;
};

struct ModelSettings {
  std::string kind = "decoder";  // of the catalogue (orthant/model.h)
  std::int64_t layers = 2;
  std::int64_t d_model = 128;
  std::int64_t heads = 4;
  FollowingSize kv_heads = {};           // 0: as heads
  FollowingSize d_ff = {};               // 0: 4 * d_model
  FollowingSize head_dim = {};           // 0: d_model / heads
  std::string attention = "multi_head";  // kinds of <orthant/part.h>
  std::string ffn = "mlp";
  std::int64_t sliding_window = 0;        // tokens that a token sees, itself included; 0: all before it
  std::int64_t full_attention_every = 0;  // block i has no window where (i + 1) % it == 0; 0: every block has it
  double attention_scale = 0;             // of queries' products with keys; 0: 1 / sqrt(channels of a key head)
  std::int64_t vocab_size = 256;
  NormKind norm = NormKind::rmsnorm;
  double norm_eps = 1e-5;
  NormPlace norm_place = NormPlace::before;  // after: OLMo 2; both: Gemma 2
  bool norm_plus_one = false;                // what a norm multiplies by is 1 + its weight (Gemma)
  Activation activation = Activation::gelu;
  Positions positions = Positions::rotary;
  FollowingSize rotary_channels = {};  // of a head, the first; 0: all
  bool tie_embeddings = false;
  double embedding_scale = 1;  // of the embedding of a token
  double residual_scale = 1;   // of what a branch of a block adds to the residual stream (Granite)
  bool head_bias = false;      // of the logits (Phi-3.5-MoE)
  double logit_divisor = 1;    // logits are divided by it (Granite's logits_scaling)
  double logit_softcap = 0;    // then x becomes cap tanh(x / cap) (Gemma 2); 0: they stay
  double dropout = 0;
  double init_std = 0.02;
  // Multi-token prediction (DeepSeek-V3, 2024, section 2.2): each position also learns to predict so many tokens beyond
  // its next one, by a block for each, behind the model. Nothing but training knows of them.
  std::int64_t mtp_depth = 0;
  KeyValues own = {};  // of keys that kinds declare (orthant/keys.h): read by kind_values, and so in the other tables
};

struct MoeSettings {
  std::int64_t experts = 0;         // 0: dense model
  std::int64_t every = 1;           // block i has experts where (i + 1) % every == 0
  std::int64_t first_dense = 0;     // the first so many blocks have none (DeepSeek)
  std::int64_t top_k = 1;           // choices of a token; expert_choice: experts
  std::string router = "topk";      // a gate of the catalogue (gate.h)
  double capacity_factor = 0;       // 0: dropless
  FollowingSize group_tokens = {};  // tokens of a GShard group; 0: one sequence
  DropPolicy drop_policy = DropPolicy::position;
  double aux_loss = 0.01;
  BalanceOver balance_over = BalanceOver::group;  // whose load the balance loss knows
  double z_loss = 0;
  double jitter = 0;
  double weight_scale = 1;  // what a gate's weights are multiplied by (DeepSeek's routed_scaling_factor)
  std::int64_t shared_experts = 0;
  FollowingSize d_shared = {};  // width of all shared experts together; 0: shared_experts * d_expert
  bool shared_gate = false;     // each token weighs what they make of it by a sigmoid (Qwen2-MoE)
  FollowingSize d_expert = {};  // 0: d_ff
  bool router_bias = false;     // of the router's logits
  bool expert_bias = false;     // of both products of each routed expert
  // Zero-computation experts: columns of the router behind those of the experts, and what a choice of one adds.
  std::int64_t zero_experts = 0;
  ZeroExpert zero_expert = ZeroExpert::zero;
  KeyValues own = {};

  std::int64_t columns() const { return experts + zero_experts; }  // of the router's logits
};

struct OptimizerSettings {
  std::string name = "adamw";  // a kind of Optimizer (orthant/optimizer.h)
  double lr = 1e-3;
  double min_lr = 0;
  double weight_decay = 0.1;
  // Patterns of names of parameters ('*' stands for anything), and what their learning rate is multiplied by. The first
  // pattern that stands for a parameter counts (ParamSpec::lr_scale).
  std::vector<std::string> lr_of;
  std::vector<double> lr_scales;                   // as many, each above 0
  std::vector<std::string> no_decay;               // patterns of names: these matrices do not decay (ParamSpec::decay)
  double clip_grad_norm = 1.0;                     // 0: no clipping
  bool in_backward = false;                        // a group is updated as soon as its gradient is whole
  ComputeType gradient_dtype = ComputeType::fp32;  // that gradients are kept and summed in (ParamGroup::grad_dtype)
  std::string schedule = "cosine";                 // a kind of LearningRate (orthant/learning_rate.h)
  std::int64_t warmup_steps = 0;
  MasterWeights master_weights = MasterWeights::fp32;  // none: bf16 weights are all there is, rounded by chance
  StateType state_dtype = StateType::fp32;             // eight_bits: see StateCode (orthant/state_code.h)
  double ema_decay = 0;  // of the moving average of the weights (orthant/weight_average.h); 0: none
  KeyValues own = {};
};

struct TrainSettings {
  std::string objective;  // a kind of Objective (orthant/objective.h); empty: what the other settings imply
  std::string from;  // a run's or a checkpoint's folder, whose weights a new run begins with; absolute; empty: none
  // Patterns of names of parameters ('*' stands for anything). A frozen parameter keeps its value.
  std::vector<std::string> freeze;
  std::vector<std::string> train_only;  // empty: all but the frozen ones
  double mtp_weight = 0.3;              // of the mean of the losses of model.mtp_depth
};

// Low-rank adapters (Hu et al., "LoRA", 2021): a matrix W [out, in] is used as W + alpha / rank * B A, with A [rank,
// in] and B [out, rank] trained in its place.
struct LoraSettings {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  bool rank_stabilised = false;         // the factor is alpha / sqrt(rank) (Kalajdzievski, "rsLoRA", 2023)
  double init_std = 0.02;               // of A; B begins with zeros
  std::vector<std::string> targets;     // patterns of names of matrices
  std::vector<std::string> train_also;  // patterns of names of further parameters that train
  // Patterns of names, and the rank or alpha of matrices that they stand for; the first that does counts.
  std::vector<std::string> rank_of, alpha_of;
  std::vector<std::int64_t> ranks;  // as many
  std::vector<double> alphas;       // as many
  // Of the adapter of a matrix. REQUIRES: there are adapters.
  std::int64_t rank_for(const std::string& matrix) const;
  double scale_for(const std::string& matrix) const;
};

struct MemorySettings {
  // What the backward pass computes again instead of keeping: "none", "selective", "full". "fit" is one of them by the
  // time that a plan is made.
  std::string recompute = "none";
  // Micro-batches of a stage that keep all their activations at once; the others do as recompute says.
  std::int64_t keep_micro_batches = 0;
  std::int64_t limit = 0;       // bytes that the tensors of a rank may take on its device; 0: no limit
  std::int64_t host_limit = 0;  // the same in the host's memory
};

struct Settings {
  RunSettings run;
  DataSettings data;
  BatchSettings batch;
  ModelSettings model;
  MoeSettings moe;
  TrainSettings train;
  LoraSettings lora;
  OptimizerSettings optimizer;
  MemorySettings memory;
  std::map<std::string, KeyValues> own = {};  // of the keys that kinds declare in other tables, by the table
  std::shared_ptr<const Catalogue> catalogue = built_in_catalogue();  // what the names above stand for; never null
};

// A batch that grows. Steps count from 0.
std::vector<std::int64_t> batch_sizes(const BatchSettings& batch);              // in sequences, smallest first
std::size_t times_grown(const BatchSettings& batch, std::int64_t step);         // before the step: which of the sizes
std::int64_t sequences_of_step(const BatchSettings& batch, std::int64_t step);  // all ranks together
std::int64_t sequences_before(const BatchSettings& batch, std::int64_t step);   // of all steps before it together
std::int64_t largest_batch(const BatchSettings& batch);
std::int64_t first_largest_step(const BatchSettings& batch);

}  // namespace orthant
