#include "core/config/registry.h"

#include <orthant/learning_rate.h>
#include <orthant/objective.h>
#include <orthant/optimizer.h>
#include <orthant/source.h>

#include "core/config/declarer.h"
#include "core/config/model_keys.h"
#include "core/config/tuning_keys.h"

namespace orthant {
namespace {

void declare_run(std::vector<CoreKey>& keys) {
  Declarer run(keys, "run");
  run.key(
      "name", [](auto& s) -> auto& { return s.run.name; }, "Name of the run and of its folder.");
  run.key(
      "directory", [](auto& s) -> auto& { return s.run.directory; },
      "Folder that holds the run's folder, relative to the current directory.");
  run.key(
         "seed", [](auto& s) -> auto& { return s.run.seed; },
         "Seed of every random number; results depend on it and not on the layout.")
      .spec.minimum = 0;  // any number: nothing is counted by it
  between(run.key(
              "steps", [](auto& s) -> auto& { return s.run.steps; }, "Optimizer steps to train."),
          1, 1e12);
  between(run.key(
              "epochs", [](auto& s) -> auto& { return s.run.epochs; },
              "In place of steps: how many times the training sequences are read; steps follow, rounded up. 0: steps "
              "count."),
          0, 1e12);
  at_least(run.key(
               "log_every", [](auto& s) -> auto& { return s.run.log_every; }, "Steps between two lines of metrics."),
           1);
  at_least(run.key(
               "checkpoint_every", [](auto& s) -> auto& { return s.run.checkpoint_every; },
               "Steps between two checkpoints; 0: only at the end."),
           0);
  run.key(
      "checkpoint_async", [](auto& s) -> auto& { return s.run.checkpoint_async; },
      "Training waits until a checkpoint is copied to the host's memory, and goes on while it is written. Each rank "
      "keeps room for its copy. The last checkpoint of a start is waited for.");
  at_least(run.key(
               "validate_every", [](auto& s) -> auto& { return s.run.validate_every; },
               "Steps between two measurements of the validation loss; 0: never."),
           0);
  run.key(
      "routing_metrics", [](auto& s) -> auto& { return s.run.routing_metrics; },
      "Logged steps measure the routers: entropy, margin, gradients by cause, churn; and warn of what goes wrong.");
  at_least(run.key(
               "record_routing", [](auto& s) -> auto& { return s.run.record_routing; },
               "Steps whose routing is recorded for `orthant route`: the first so many, and the last one; 0: none."),
           0);
  at_least(run.key(
               "record_logits", [](auto& s) -> auto& { return s.run.record_logits; },
               "Logits of a token that are recorded where there are more than 64 experts; 0: top_k + 8."),
           0);
  at_least(run.key(
               "keep", [](auto& s) -> auto& { return s.run.keep; }, "Checkpoints kept, the newest ones."),
           1);
  at_least(run.key(
               "keep_every", [](auto& s) -> auto& { return s.run.keep_every; },
               "Checkpoints of steps that are multiples of it are kept beside the newest ones, for good; 0: none."),
           0);
  at_least(run.key(
               "time_limit", [](auto& s) -> auto& { return s.run.time_limit; },
               "Seconds since its start within which a process saves and ends with 75, resumable, as when it is asked "
               "to stop; 0: none."),
           0);
  at_least(run.key(
               "skip_not_finite", [](auto& s) -> auto& { return s.run.skip_not_finite; },
               "Steps in a row that are passed over where loss or gradient is not finite: nothing is updated, and the "
               "run goes on with the next batch. One more ends it."),
           0);
  run.key(
      "device", [](auto& s) -> auto& { return s.run.device; },
      "Where tensors live: cpu, cuda (GPUs), or a device library by name. For tests: guarded; late and "
      "late_sides, whose streams run behind; simt, which runs the kernels of cuda on the CPU.");
  run.choice(
      "dtype", [](auto& s) -> auto& { return s.run.dtype; }, {"fp32", "bf16"},
      "Type of the computation; the weights that the optimizer updates are fp32 (but see optimizer.master_weights).");
  run.key(
      "communicator", [](auto& s) -> auto& { return s.run.communicator; },
      "How ranks talk: local (one machine, shared memory), mpi, nccl (for cuda), or a communicator library by name.");
  between(run.key(
              "threads", [](auto& s) -> auto& { return s.run.threads; }, "CPU threads of one rank."),
          1, 4096);
  run.key(
      "timeout_seconds", [](auto& s) -> auto& { return s.run.timeout_seconds; },
      "Seconds that a collective may wait for a rank before it fails.");
  run.key(
      "disk_timeout_seconds", [](auto& s) -> auto& { return s.run.disk_timeout_seconds; },
      "Seconds that a rank may be busy with the files of one checkpoint before it is taken for stuck.");
  run.key(
      "graphs", [](auto& s) -> auto& { return s.run.graphs; },
      "Records a step's work and launches it as one (CUDA graphs). For one rank without plugins, refused with them; "
      "devices other than cuda take no notice.");
  run.key(
      "deterministic", [](auto& s) -> auto& { return s.run.deterministic; },
      "Every step has the same bits each time. False: cuda takes cuDNN's attention that adds gradients in any order, "
      "which is faster; other devices take no notice.");
  at_least(
      run.key(
          "peak_tflops", [](auto& s) -> auto& { return s.run.peak_tflops; },
          "Peak rate of one rank's device in TFLOP/s (989 for bf16 on an H100 or H200): metrics then tell the share "
          "of it that the model uses, mfu. 0: no mfu."),
      0);
  run.key(
      "tensorboard", [](auto& s) -> auto& { return s.run.tensorboard; },
      "Writes the numbers of metrics.jsonl for TensorBoard too, into the run's folder tensorboard/.");
  run.key(
      "prometheus", [](auto& s) -> auto& { return s.run.prometheus; },
      "A file that has the newest numbers of metrics.jsonl for Prometheus, NAME.prom in the folder of its node "
      "exporter's textfile collector, relative to the current directory. Empty: none.");
  at_least(run.key(
               "trace", [](auto& s) -> auto& { return s.run.trace; },
               "Steps that are recorded as a timeline, in the run's folder trace/: compute, communication, who waits "
               "for whom. 0: none."),
           0);
  at_least(run.key(
               "trace_first", [](auto& s) -> auto& { return s.run.trace_first; },
               "The first step that is recorded, counted from 1. 0: the third one after the start."),
           0);
  run.key(
      "nvtx", [](auto& s) -> auto& { return s.run.nvtx; },
      "Names the spans of a timeline for Nsight Systems (NVTX ranges), in all steps. Needs a build with CUDA.");
}

void declare_data(std::vector<CoreKey>& keys) {
  Declarer data(keys, "data");
  data.kind<Source>(
      "source", [](auto& s) -> auto& { return s.data.source; },
      "Text files, token files, conversations, pairs of answers, or a synthetic source of known entropy.");
  data.key(
      "path", [](auto& s) -> auto& { return s.data.path; },
      "Files to train on; a relative path is relative to the file that names it.");
  data.key(
      "tokenizer", [](auto& s) -> auto& { return s.data.tokenizer; },
      "How text becomes tokens: bytes (256 tokens), a tokenizer.json, a SentencePiece .model, or a folder with one of "
      "them; a relative path is relative to the file that names it.");
  between(data.key(
              "sequence_length", [](auto& s) -> auto& { return s.data.sequence_length; },
              "Positions of one sequence, in tokens."),
          1, 1 << 24);
  at_least(data.key(
               "validation_fraction", [](auto& s) -> auto& { return s.data.validation_fraction; },
               "Share of the data, at its end, that is held out for validation (below 1). With validation_path 0 where "
               "nobody wrote it."),
           0);
  at_least(data.key(
               "validation_sequences", [](auto& s) -> auto& { return s.data.validation_sequences; },
               "Sequences of one measurement of the validation loss; of each set of validation_path, at most."),
           0);
  data.key(
      "validation_path", [](auto& s) -> auto& { return s.data.validation_path; },
      "Files that are measured and not trained on, each a validation set of its own; what path takes, relative to the "
      "file that names them.");
  data.key(
      "validation_names", [](auto& s) -> auto& { return s.data.validation_names; },
      "Names of the sets of validation_path, one for each: letters, digits, '_' and '-'. Empty: the files' names "
      "without "
      "their ending.");
  data.choice(
      "documents", [](auto& s) -> auto& { return s.data.documents; }, {"stream", "packed", "separate"},
      "One stream of tokens, documents packed into sequences, or one document per sequence.");
  data.key(
      "separator", [](auto& s) -> auto& { return s.data.separator; }, "What separates the documents of a text.");
  data.key(
      "text_key", [](auto& s) -> auto& { return s.data.text_key; },
      "The key of a JSON line that has its text, in .jsonl and .json files; empty: text, or content where there is "
      "none.");
  data.key(
      "chat_template", [](auto& s) -> auto& { return s.data.chat_template; },
      "The texts around the messages of a conversation: chatml, llama3, llama2, zephyr or plain, a TOML file of your "
      "own, or model, the Jinja template beside the tokenizer (docs/guides/data.md).");
  data.key(
      "blend", [](auto& s) -> auto& { return s.data.blend; },
      "Weights of the files of path, one for each: their sequences take turns by weight. Tokens that each should give "
      "do as well. Empty: the files follow each other.");
  data.choice(
      "too_long", [](auto& s) -> auto& { return s.data.too_long; }, {"cut", "refuse", "leave_out"},
      "Conversations and pairs that are longer than a sequence: cut at their end, refused by file and line, or left "
      "out.");

  Declarer batch(keys, "batch");
  between(batch.key(
              "sequences", [](auto& s) -> auto& { return s.batch.sequences; },
              "Sequences of one optimizer step, all ranks together; of the first steps where the batch grows."),
          1, 1 << 24);
  between(batch.key(
              "micro_batch", [](auto& s) -> auto& { return s.batch.micro_batch; },
              "Sequences that a rank computes at once; 0: all of its share of batch.sequences."),
          0, 1 << 24);
  between(batch.key(
              "grow_after", [](auto& s) -> auto& { return s.batch.grow_after; },
              "Numbers of steps of the run after which the batch grows, rising. Empty: it does not."),
          1, most_of_an_integer);
  between(batch.key(
              "grow_to", [](auto& s) -> auto& { return s.batch.grow_to; },
              "Sequences of a step after each of them, rising."),
          1, 1 << 24);
}

void declare_training(std::vector<CoreKey>& keys) {
  Declarer train(keys, "train");
  train.kind<Objective>(
      "objective", [](auto& s) -> auto& { return s.train.objective; },
      "What is learned. Empty: \"pairs\" with data.source = \"pairs\", \"distil\" with distil.teacher, else "
      "\"cross_entropy\".");
  train.key(
      "from", [](auto& s) -> auto& { return s.train.from; },
      "A run's folder (its newest checkpoint), an import's, or a checkpoint's, whose weights a new run begins with, at "
      "step 0 and without its optimizer's state; a relative path is relative to the file that names it. Empty: weights "
      "are drawn from run.seed.");
  train.key(
      "freeze", [](auto& s) -> auto& { return s.train.freeze; },
      "Parameters that keep their values, by name; * stands for anything, as in \"model.layers.0.*\".");
  train.key(
      "train_only", [](auto& s) -> auto& { return s.train.train_only; },
      "The only parameters that train, by name as in freeze; empty: all that are not frozen.");
  at_least(train.key(
               "mtp_weight", [](auto& s) -> auto& { return s.train.mtp_weight; },
               "Coefficient of the mean of the losses of model.mtp_depth (DeepSeek-V3: 0.3, later 0.1)."),
           0);

  declare_tuning(keys);

  Declarer optimizer(keys, "optimizer");
  optimizer.kind<Optimizer>(
      "name", [](auto& s) -> auto& { return s.optimizer.name; }, "Optimizer.");
  at_least(optimizer.key(
               "lr", [](auto& s) -> auto& { return s.optimizer.lr; }, "Highest learning rate."),
           0);
  at_least(optimizer.key(
               "min_lr", [](auto& s) -> auto& { return s.optimizer.min_lr; },
               "Learning rate at the end of a schedule that falls."),
           0);
  optimizer
      .key(
          "betas", [](auto& s) -> auto& { return s.optimizer.betas; },
          "adamw (muon, of what it leaves to adamw): decay of the two moments, each between 0 and 1.")
      .length = 2;
  at_least(optimizer.key(
               "momentum", [](auto& s) -> auto& { return s.optimizer.momentum; },
               "sgd, muon: decay of the momentum (below 1)."),
           0);
  optimizer.key(
      "eps", [](auto& s) -> auto& { return s.optimizer.eps; },
      "adamw (muon, of what it leaves to adamw): added to the root of the second moment (above 0).");
  at_least(optimizer.key(
               "weight_decay", [](auto& s) -> auto& { return s.optimizer.weight_decay; },
               "Decay of the weight matrices, per unit of learning rate."),
           0);
  optimizer.key(
      "lr_of", [](auto& s) -> auto& { return s.optimizer.lr_of; },
      "Parameters with learning rates of their own, by name as in train.freeze: \"*.gate.weight\". Of several patterns "
      "that name a parameter the first counts.");
  optimizer.key(
      "lr_scales", [](auto& s) -> auto& { return s.optimizer.lr_scales; },
      "What lr is multiplied by for each pattern of lr_of, at every step; each above 0.");
  optimizer.key(
      "no_decay", [](auto& s) -> auto& { return s.optimizer.no_decay; },
      "Matrices that do not decay, by name as in train.freeze; norms and biases never do.");
  at_least(optimizer.key(
               "clip_grad_norm", [](auto& s) -> auto& { return s.optimizer.clip_grad_norm; },
               "Largest norm of the whole gradient; 0: no clipping."),
           0);
  optimizer.key(
      "in_backward", [](auto& s) -> auto& { return s.optimizer.in_backward; },
      "A layer is updated, and its gradient freed, as soon as the gradient is whole, within the backward pass; only "
      "with clip_grad_norm = 0. A step that is not finite then ends the run with some layers updated.");
  optimizer.kind<LearningRate>(
      "schedule", [](auto& s) -> auto& { return s.optimizer.schedule; }, "Learning rate after the warm-up.");
  at_least(optimizer.key(
               "warmup_steps", [](auto& s) -> auto& { return s.optimizer.warmup_steps; },
               "Steps over which the learning rate rises from 0."),
           0);
  at_least(optimizer.key(
               "decay_steps", [](auto& s) -> auto& { return s.optimizer.decay_steps; },
               "cosine: step at which it reaches min_lr; 0: run.steps. wsd, wsd_sqrt: length of the decay, in steps at "
               "the end of the run; 0: a tenth of run.steps."),
           0);
  optimizer.choice(
      "master_weights", [](auto& s) -> auto& { return s.optimizer.master_weights; }, {"fp32", "none"},
      "bf16: fp32 weights beside those of the computation, which are updated and rounded; or none: the bf16 weights "
      "are "
      "all there is, and an update rounds them by chance, so that small ones are not lost. Not with muon.");
  optimizer.choice(
      "state_dtype", [](auto& s) -> auto& { return s.optimizer.state_dtype; }, {"fp32", "8bit"},
      "How states of matrices are stored between updates. 8bit: in blocks of 32 columns, each with a scale; norms, "
      "biases and matrices with other rows keep fp32. Not with muon.");
  optimizer.choice(
      "gradient_dtype", [](auto& s) -> auto& { return s.optimizer.gradient_dtype; }, {"fp32", "bf16"},
      "In which numbers gradients are kept, added up over micro-batches and summed over ranks. bf16: half "
      "of the bytes, and each of these sums is rounded to 8 bits; the optimizer computes in fp32.");
  at_least(optimizer.key(
               "ema_decay", [](auto& s) -> auto& { return s.optimizer.ema_decay; },
               "Decay of a moving average of the weights (below 1; 0.999, say), which --ema of export, eval, generate "
               "and serve takes: step s, from 0, decays by (1 + s) / (10 + s) where that is less. 0: none."),
           0);

  Declarer memory(keys, "memory");
  memory
      .key(
          "recompute", [](auto& s) -> auto& { return s.memory.recompute; },
          "What the backward pass computes again instead of keeping it: nothing, the activations of "
          "dense FFNs (those of experts always are), or whole blocks from their inputs. fit: what computes least again "
          "of all that keeps limit, keep_micro_batches included.")
      .spec.choices = {"none", "selective", "full", "fit"};
  at_least(
      memory.key(
          "keep_micro_batches", [](auto& s) -> auto& { return s.memory.keep_micro_batches; },
          "Of the micro-batches that a pipeline's stage has in flight at once (pairs of chunk and micro-batch where "
          "it has several chunks), so many keep all activations; recompute holds for the others."),
      0);
  memory.bytes(
      "limit", [](auto& s) -> auto& { return s.memory.limit; },
      "The most that the tensors of a rank may take on its device, such as 20 GiB. A run that could take more, by any "
      "routing, is refused before it starts. Empty: no limit.");
  memory.bytes(
      "host_limit", [](auto& s) -> auto& { return s.memory.host_limit; },
      "The same of its tensors in the host's memory, where plugins keep some.");
}

}  // namespace

std::vector<CoreKey> core_keys() {
  std::vector<CoreKey> keys;
  declare_run(keys);
  declare_data(keys);
  declare_model(keys);
  declare_moe(keys);
  declare_training(keys);
  return keys;
}

std::vector<std::string> core_tables(const std::vector<CoreKey>& keys) {
  std::vector<std::string> tables;
  for (const CoreKey& key : keys) {
    if (tables.empty() || tables.back() != key.table) {
      tables.push_back(key.table);
    }
  }
  return tables;
}

}  // namespace orthant
