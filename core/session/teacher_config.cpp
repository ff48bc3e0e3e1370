#include "core/session/teacher_config.h"

#include <fmt/format.h>

#include "core/arch/decoder.h"
#include "core/arch/trained.h"
#include "core/checkpoint/model_folder.h"
#include "core/session/session.h"

namespace orthant {

namespace fs = std::filesystem;

Config teacher_config(const Config& student) {
  const Settings& ours = student.settings;
  const ReferenceModel named = teacher_of(ours);
  const fs::path file = named_run(named.folder) / "config.resolved.toml";
  if (!fs::exists(file)) {
    throw SettingError(named.setting, fmt::format("{}: '{}' is missing: it tells the shape of the model; give "
                                                  "the folder of a run, or of a checkpoint in one{}",
                                                  named.key, file.string(), hint_of_published(named.folder)));
  }
  Config teacher = load_config(file.string(),
                               {"data.source=\"none\"", "train.objective=\"\"", "data.tokenizer=\"bytes\"",
                                "run.graphs=false", fmt::format("data.sequence_length={}", ours.data.sequence_length),
                                fmt::format("batch.sequences={}", ours.batch.sequences),
                                fmt::format("batch.micro_batch={}", ours.batch.micro_batch.written()),
                                "batch.grow_after=[]", "batch.grow_to=[]"},
                               keys_of_plugin, kinds_of_plugin);
  Settings& theirs = teacher.settings;
  if (theirs.model.kind != decoder_kind) {
    throw SettingError(named.setting, fmt::format("{}: '{}' is a model of kind \"{}\", and logits are read of \"{}\" "
                                                  "alone",
                                                  named.key, named.folder, theirs.model.kind, decoder_kind));
  }
  leave_out_mtp(theirs);
  if (theirs.model.vocab_size != ours.model.vocab_size) {
    throw SettingError(named.setting, fmt::format("{}: it has {} ids, the model that learns from it has {}: "
                                                  "both must have the same tokenizer",
                                                  named.key, theirs.model.vocab_size, ours.model.vocab_size));
  }
  theirs.run = ours.run;
  theirs.data = ours.data;
  theirs.batch = ours.batch;
  theirs.memory = ours.memory;
  theirs.optimizer = ours.optimizer;
  theirs.optimizer.state_dtype = StateType::fp32;  // what is frozen has none, and 8 bits for nothing are refused
  theirs.optimizer.lr_of = theirs.optimizer.no_decay = {};  // names of our parameters
  theirs.optimizer.lr_scales = {};
  theirs.train = {.objective = "", .from = "", .freeze = {"*"}, .train_only = {}};
  theirs.data.source = "synthetic";  // nothing is asked of its tokens
  theirs.own.erase("distil");
  teacher.plugins = student.plugins;
  return teacher;
}

}  // namespace orthant
