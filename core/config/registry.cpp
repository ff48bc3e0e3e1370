#include "core/config/registry.h"

#include <orthant/learning_rate.h>
#include <orthant/objective.h>
#include <orthant/optimizer.h>
#include <orthant/source.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/config/declarer.h"
#include "core/config/model_keys.h"

namespace orthant {
namespace {

void declare_run(std::vector<CoreKey>& keys) {
  Declarer run(keys, "run", &Settings::run);
  run.key("name", &RunSettings::name, "Name of the run and of its folder.");
  run.key("directory", &RunSettings::directory,
          "Folder that holds the run's folder, relative to the current directory.");
  run.key("seed", &RunSettings::seed, "Seed of every random number; results depend on it and not on the layout.")
      .spec.minimum = 0;  // any number: nothing is counted by it
  run.key("steps", &RunSettings::steps, "Optimizer steps to train.", between(1, 1e12));
  run.key(
      "epochs", &RunSettings::epochs,
      "In place of steps: how many times the training sequences are read; steps follow, rounded up. 0: steps count.",
      between(0, 1e12));
  run.key("log_every", &RunSettings::log_every, "Steps between two lines of metrics.", at_least(1));
  run.key("checkpoint_every", &RunSettings::checkpoint_every, "Steps between two checkpoints; 0: only at the end.",
          at_least(0));
  run.key("checkpoint_async", &RunSettings::checkpoint_async,
          "Training waits until a checkpoint is copied to the host's memory, and goes on while it is written. Each "
          "rank keeps room for its copy. The last checkpoint of a start is waited for.");
  run.key("validate_every", &RunSettings::validate_every,
          "Steps between two measurements of the validation loss; 0: never.", at_least(0));
  run.key("routing_metrics", &RunSettings::routing_metrics,
          "Logged steps measure the routers: entropy, margin, gradients by cause, churn; and warn of what goes wrong.");
  run.key("record_routing", &RunSettings::record_routing,
          "Steps whose routing is recorded for `orthant route`: the first so many, and the last one; 0: none.",
          at_least(0));
  run.key("record_logits", &RunSettings::record_logits,
          "Logits of a token that are recorded where there are more than 64 experts; 0: top_k + 8.", at_least(0));
  run.key("keep", &RunSettings::keep, "Checkpoints kept, the newest ones.", at_least(1));
  run.key("keep_every", &RunSettings::keep_every,
          "Checkpoints of steps that are multiples of it are kept beside the newest ones, for good; 0: none.",
          at_least(0));
  run.key("time_limit", &RunSettings::time_limit,
          "Seconds since its start within which a process saves and ends with 75, resumable, as when it is asked to "
          "stop; 0: none.",
          at_least(0));
  run.key("skip_not_finite", &RunSettings::skip_not_finite,
          "Steps in a row that are passed over where loss or gradient is not finite: nothing is updated, and the run "
          "goes on with the next batch. One more ends it.",
          at_least(0));
  run.key("device", &RunSettings::device,
          "Where tensors live: cpu, cuda (GPUs), or a device library by name. For tests: guarded; late and late_sides, "
          "whose streams run behind; simt, which runs the kernels of cuda on the CPU.");
  run.choice(
      "dtype", &RunSettings::dtype, {"fp32", "bf16"},
      "Type of the computation; the weights that the optimizer updates are fp32 (but see optimizer.master_weights).");
  run.key(
      "communicator", &RunSettings::communicator,
      "How ranks talk: local (one machine, shared memory), mpi, nccl (for cuda), or a communicator library by name.");
  run.key("threads", &RunSettings::threads, "CPU threads of one rank.", between(1, 4096));
  run.key("timeout_seconds", &RunSettings::timeout_seconds,
          "Seconds that a collective may wait for a rank before it fails.");
  run.key("disk_timeout_seconds", &RunSettings::disk_timeout_seconds,
          "Seconds that a rank may be busy with the files of one checkpoint before it is taken for stuck.");
  run.key("graphs", &RunSettings::graphs,
          "Records a step's work and launches it as one (CUDA graphs). For one rank without plugins, refused with "
          "them; devices other than cuda take no notice.");
  run.key("deterministic", &RunSettings::deterministic,
          "Every step has the same bits each time. False: cuda takes cuDNN's attention that adds gradients in any "
          "order, which is faster; other devices take no notice.");
  run.key("peak_tflops", &RunSettings::peak_tflops,
          "Peak rate of one rank's device in TFLOP/s (989 for bf16 on an H100 or H200): metrics then tell the share of "
          "it that the model uses, mfu. 0: no mfu.",
          at_least(0));
  run.key("tensorboard", &RunSettings::tensorboard,
          "Writes the numbers of metrics.jsonl for TensorBoard too, into the run's folder tensorboard/.");
  run.key("prometheus", &RunSettings::prometheus,
          "A file that has the newest numbers of metrics.jsonl for Prometheus, NAME.prom in the folder of its node "
          "exporter's textfile collector, relative to the current directory. Empty: none.");
  run.key("trace", &RunSettings::trace,
          "Steps that are recorded as a timeline, in the run's folder trace/: compute, communication, who waits for "
          "whom. 0: none.",
          at_least(0));
  run.key("trace_first", &RunSettings::trace_first,
          "The first step that is recorded, counted from 1. 0: the third one after the start.", at_least(0));
  run.key("nvtx", &RunSettings::nvtx,
          "Names the spans of a timeline for Nsight Systems (NVTX ranges), in all steps. Needs a build with CUDA.");
}

void declare_data(std::vector<CoreKey>& keys) {
  Declarer data(keys, "data", &Settings::data);
  data.kind<Source>(
      "source", &DataSettings::source,
      "Text files, token files, conversations, pairs of answers, or a synthetic source of known entropy.");
  data.key("path", &DataSettings::path, "Files to train on; a relative path is relative to the file that names it.")
      .spec.file = true;
  data.key("tokenizer", &DataSettings::tokenizer,
           "How text becomes tokens: bytes (256 tokens), a tokenizer.json, a SentencePiece .model, or a folder with "
           "one of them; a relative path is relative to the file that names it.");
  data.key("sequence_length", &DataSettings::sequence_length, "Positions of one sequence, in tokens.",
           between(1, 1 << 24));
  data.key("validation_fraction", &DataSettings::validation_fraction,
           "Share of the data, at its end, that is held out for validation (below 1). With validation_path 0 where "
           "nobody wrote it.",
           at_least(0));
  data.key("validation_sequences", &DataSettings::validation_sequences,
           "Sequences of one measurement of the validation loss; of each set of validation_path, at most.",
           at_least(0));
  data.key("validation_path", &DataSettings::validation_path,
           "Files that are measured and not trained on, each a validation set of its own; what path takes, relative to "
           "the file that names them.")
      .spec.file = true;
  data.key("validation_names", &DataSettings::validation_names,
           "Names of the sets of validation_path, one for each: letters, digits, '_' and '-'. Empty: the files' names "
           "without their ending.");
  data.choice("documents", &DataSettings::documents, {"stream", "packed", "separate"},
              "One stream of tokens, documents packed into sequences, or one document per sequence.");
  data.key("separator", &DataSettings::separator, "What separates the documents of a text.");
  data.key("text_key", &DataSettings::text_key,
           "The key of a JSON line that has its text, in .jsonl and .json files; empty: text, or content where there "
           "is none.");
  data.key("chat_template", &DataSettings::chat_template,
           "The texts around the messages of a conversation: chatml, llama3, llama2, zephyr or plain, a TOML file of "
           "your own, or model, the Jinja template beside the tokenizer (docs/guides/data.md).");
  data.key("blend", &DataSettings::blend,
           "Weights of the files of path, one for each: their sequences take turns by weight. Tokens that each should "
           "give do as well. Empty: the files follow each other.");
  data.choice("too_long", &DataSettings::too_long, {"cut", "refuse", "leave_out"},
              "Conversations and pairs that are longer than a sequence: cut at their end, refused by file and line, or "
              "left out.");

  Declarer batch(keys, "batch", &Settings::batch);
  batch.key("sequences", &BatchSettings::sequences,
            "Sequences of one optimizer step, all ranks together; of the first steps where the batch grows.",
            between(1, 1 << 24));
  batch.key("micro_batch", &BatchSettings::micro_batch,
            "Sequences that a rank computes at once; 0: all of its share of batch.sequences.", between(0, 1 << 24));
  batch.key("grow_after", &BatchSettings::grow_after,
            "Numbers of steps of the run after which the batch grows, rising. Empty: it does not.",
            between(1, most_of_an_integer));
  batch.key("grow_to", &BatchSettings::grow_to, "Sequences of a step after each of them, rising.", between(1, 1 << 24));
}

void declare_training(std::vector<CoreKey>& keys) {
  Declarer train(keys, "train", &Settings::train);
  train.kind<Objective>("objective", &TrainSettings::objective,
                        "What is learned. Empty: \"pairs\" with data.source = \"pairs\", \"distil\" with "
                        "distil.teacher, else \"cross_entropy\".");
  train
      .key("from", &TrainSettings::from,
           "A run's folder (its newest checkpoint), an import's, or a checkpoint's, whose weights a new run begins "
           "with, at step 0 and without its optimizer's state; a relative path is relative to the file that names it. "
           "Empty: weights are drawn from run.seed.")
      .spec.file = true;
  train.key("freeze", &TrainSettings::freeze,
            "Parameters that keep their values, by name; * stands for anything, as in \"model.layers.0.*\".");
  train.key("train_only", &TrainSettings::train_only,
            "The only parameters that train, by name as in freeze; empty: all that are not frozen.");
  train.key("mtp_weight", &TrainSettings::mtp_weight,
            "Coefficient of the mean of the losses of model.mtp_depth (DeepSeek-V3: 0.3, later 0.1).", at_least(0));

  Declarer lora(keys, "lora", &Settings::lora);
  lora.key(
      "rank", &LoraSettings::rank,
      "Rank of the adapters of lora.targets (Hu et al., \"LoRA\", 2021), which train in place of all else; 0: none.",
      between(0, 1 << 16));
  lora.key("alpha", &LoraSettings::alpha, "A matrix W with an adapter is used as W + alpha / rank * B A.", at_least(0));
  lora.key("rank_stabilised", &LoraSettings::rank_stabilised,
           "Whether the factor is alpha / sqrt(rank) (Kalajdzievski, \"rsLoRA\", 2023).");
  lora.key("rank_of", &LoraSettings::rank_of,
           "Matrices whose adapters have other ranks, by name as in targets; the first pattern that names one counts.");
  lora.key("ranks", &LoraSettings::ranks, "Those ranks, one for each pattern of rank_of.");
  lora.key("alpha_of", &LoraSettings::alpha_of, "Matrices whose adapters have another alpha, as rank_of.");
  lora.key("alphas", &LoraSettings::alphas, "Those alphas, one for each pattern of alpha_of.");
  lora.key("targets", &LoraSettings::targets,
           "Matrices that get an adapter, by name as in train.freeze: \"*.q_proj.weight\", \"*.experts.*\".");
  lora.key("train_also", &LoraSettings::train_also,
           "Parameters that train beside the adapters, by name as in train.freeze.");
  lora.key("init_std", &LoraSettings::init_std, "Deviation of the initial A; B begins with zeros.", at_least(0));

  Declarer optimizer(keys, "optimizer", &Settings::optimizer);
  optimizer.kind<Optimizer>("name", &OptimizerSettings::name, "Optimizer.");
  optimizer.key("lr", &OptimizerSettings::lr, "Highest learning rate.", at_least(0));
  optimizer.key("min_lr", &OptimizerSettings::min_lr, "Learning rate at the end of a schedule that falls.",
                at_least(0));
  optimizer.key("weight_decay", &OptimizerSettings::weight_decay,
                "Decay of the weight matrices, per unit of learning rate.", at_least(0));
  optimizer.key("lr_of", &OptimizerSettings::lr_of,
                "Parameters with learning rates of their own, by name as in train.freeze: \"*.gate.weight\". Of "
                "several patterns that name a parameter the first counts.");
  optimizer.key("lr_scales", &OptimizerSettings::lr_scales,
                "What lr is multiplied by for each pattern of lr_of, at every step; each above 0.");
  optimizer.key("no_decay", &OptimizerSettings::no_decay,
                "Matrices that do not decay, by name as in train.freeze; norms and biases never do.");
  optimizer.key("clip_grad_norm", &OptimizerSettings::clip_grad_norm,
                "Largest norm of the whole gradient; 0: no clipping.", at_least(0));
  optimizer.key(
      "in_backward", &OptimizerSettings::in_backward,
      "A layer is updated, and its gradient freed, as soon as the gradient is whole, within the backward pass; only "
      "with clip_grad_norm = 0. A step that is not finite then ends the run with some layers updated.");
  optimizer.kind<LearningRate>("schedule", &OptimizerSettings::schedule, "Learning rate after the warm-up.");
  optimizer.key("warmup_steps", &OptimizerSettings::warmup_steps, "Steps over which the learning rate rises from 0.",
                at_least(0));
  optimizer.choice(
      "master_weights", &OptimizerSettings::master_weights, {"fp32", "none"},
      "bf16: fp32 weights beside those of the computation, which are updated and rounded; or none: the bf16 weights "
      "are all there is, and an update rounds them by chance, so that small ones are not lost. Not with muon.");
  optimizer.choice("state_dtype", &OptimizerSettings::state_dtype, {"fp32", "8bit"},
                   "How states of matrices are stored between updates. 8bit: in blocks of 32 columns, each with a "
                   "scale; norms, biases and matrices with other rows keep fp32. Not with muon.");
  optimizer.choice("gradient_dtype", &OptimizerSettings::gradient_dtype, {"fp32", "bf16"},
                   "In which numbers gradients are kept, added up over micro-batches and summed over ranks. bf16: half "
                   "of the bytes, and each of these sums is rounded to 8 bits; the optimizer computes in fp32.");
  optimizer.key("ema_decay", &OptimizerSettings::ema_decay,
                "Decay of a moving average of the weights (below 1; 0.999, say), which --ema of export, eval, generate "
                "and serve takes: step s, from 0, decays by (1 + s) / (10 + s) where that is less. 0: none.",
                at_least(0));

  Declarer memory(keys, "memory", &Settings::memory);
  memory
      .key("recompute", &MemorySettings::recompute,
           "What the backward pass computes again instead of keeping it: nothing, the activations of dense FFNs (those "
           "of experts always are), or whole blocks from their inputs. fit: what computes least again of all that "
           "keeps limit, keep_micro_batches included.")
      .spec.choices = {"none", "selective", "full", "fit"};
  memory.key("keep_micro_batches", &MemorySettings::keep_micro_batches,
             "Of the micro-batches that a pipeline's stage has in flight at once (pairs of chunk and micro-batch where "
             "it has several chunks), so many keep all activations; recompute holds for the others.",
             at_least(0));
  memory.bytes("limit", &MemorySettings::limit,
               "The most that the tensors of a rank may take on its device, such as 20 GiB. A run that could take "
               "more, by any routing, is refused before it starts. Empty: no limit.");
  memory.bytes("host_limit", &MemorySettings::host_limit,
               "The same of its tensors in the host's memory, where plugins keep some.");
}

// Where a kind's keys come to stand.
class KindKeys {
 public:
  KindKeys(std::vector<CoreKey>& keys, const RefuseKey& refuse) : keys_(keys), refuse_(refuse) {}

  // `of`: of the key that names the kind.
  void add(const Catalogue::Entry& kind, const std::string& table, const std::string& of) {
    std::string last_table = table, last = of;
    for (KindKey& key : kind.keys()) {
      key.table = key.table.empty() ? table : key.table;
      if (add(kind, key, place_of(key, table, last_table, last))) {
        last_table = key.table;
        last = key.spec.name;
      }
    }
  }

 private:
  std::vector<CoreKey>::iterator find(const std::string& table, const std::string& name) {
    return std::find_if(keys_.begin(), keys_.end(),
                        [&](const CoreKey& key) { return key.table == table && key.spec.name == name; });
  }
  std::vector<CoreKey>::iterator end_of(const std::string& table) {
    return std::find_if(keys_.rbegin(), keys_.rend(), [&](const CoreKey& key) { return key.table == table; }).base();
  }

  std::vector<CoreKey>::iterator place_of(const KindKey& key, const std::string& table, const std::string& last_table,
                                          const std::string& last) {
    if (const auto before = find(key.table, key.after); before != keys_.end()) {
      return before + 1;
    }
    if (key.table == last_table) {
      return find(last_table, last) + 1;
    }
    const auto end = end_of(key.table);
    return end != keys_.begin() ? end : end_of(table);  // a table of its own stands behind the kind's
  }

  bool add(const Catalogue::Entry& kind, const KindKey& key, std::vector<CoreKey>::iterator place) {
    const auto known = find(key.table, key.spec.name);
    if (const std::string problem = problem_of(key, known); !problem.empty()) {
      if (refuse_) {
        refuse_(kind, problem);
      }
      return false;
    }
    if (known == keys_.end()) {
      const auto set = [table = key.table, name = key.spec.name](Settings& s, const Value& value) {
        kind_values(s, table)[name] = value;
      };
      keys_.insert(place, {.table = key.table, .spec = key.spec, .of_kind = true, .set = set, .wrong = key.wrong});
    }
    return true;
  }

  std::string problem_of(const KindKey& key, std::vector<CoreKey>::iterator known) const {
    const std::string name = fmt::format("[{}] {}", key.table, key.spec.name);
    const KeySpec& spec = key.spec;
    const bool plain = !spec.name.empty() && std::all_of(spec.name.begin(), spec.name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-';
    });
    if (!plain) {
      return name + " cannot be a key\nits author writes letters, digits, '-' and '_'";
    }
    if (spec.required) {
      return name + " is required, and another kind has no use for it\nits author gives it a default";
    }
    if (known == keys_.end()) {
      return "";
    }
    const KeySpec& other = known->spec;
    const bool same = spec.default_value == other.default_value && spec.minimum == other.minimum &&
                      spec.maximum == other.maximum && spec.choices == other.choices && spec.bytes == other.bytes &&
                      spec.length == other.length && spec.file == other.file;
    return !known->of_kind ? name + " is a key of the core\nits author gives it another name"
           : same          ? ""
                           : name +
                        " is declared by another kind, with another type, default or range\nits author "
                        "declares it as that one, or gives it another name";
  }

  std::vector<CoreKey>& keys_;
  const RefuseKey& refuse_;
};

}  // namespace

std::vector<CoreKey> declared_keys(const Catalogue& catalogue, const RefuseKey& refuse) {
  std::vector<CoreKey> keys;
  declare_run(keys);
  declare_data(keys);
  declare_model(keys);
  declare_moe(keys);
  declare_training(keys);
  const std::vector<CoreKey> of_core = keys;
  for (const CoreKey& chooses : of_core) {
    for (const Catalogue::Entry& kind : catalogue.entries(chooses.noun)) {
      if (kind.keys) {
        KindKeys(keys, refuse).add(kind, chooses.table, chooses.spec.name);
      }
    }
  }
  return keys;
}

std::vector<CoreKey> core_keys() {
  return declared_keys(*built_in_catalogue());
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
