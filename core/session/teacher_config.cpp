#include "core/session/teacher_config.h"

#include <fmt/format.h>

#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* setting = "distil.teacher";

}  // namespace

fs::path teacher_run(const Settings& student) {
  const fs::path given = (fs::path(student.distil.teacher) / "").lexically_normal().parent_path();
  return fs::exists(given / "manifest.json") ? given.parent_path().parent_path() : given;
}

Config teacher_config(const Config& student) {
  const Settings& ours = student.settings;
  const fs::path file = teacher_run(ours) / "config.resolved.toml";
  if (!fs::exists(file)) {
    const bool published = fs::exists(fs::path(ours.distil.teacher) / "config.json");
    throw SettingError(
        setting, fmt::format("[distil] teacher: '{}' is missing: it tells the shape of the teacher; {}", file.string(),
                             published ? "make a run of a published model first, by orthant import"
                                       : "give the folder of a run, or of a checkpoint in one"));
  }
  Config teacher = load_config(file.string(),
                               {"data.source=\"synthetic\"", "data.tokenizer=\"bytes\"", "run.graphs=false",
                                fmt::format("data.sequence_length={}", ours.data.sequence_length),
                                fmt::format("batch.sequences={}", ours.batch.sequences),
                                fmt::format("batch.micro_batch={}", ours.batch.micro_batch)},
                               keys_of_plugin, kinds_of_plugin);
  Settings& theirs = teacher.settings;
  if (theirs.model.vocab_size != ours.model.vocab_size) {
    throw SettingError(setting, fmt::format("[distil] teacher: it has {} ids, the model that learns from it has {}: "
                                            "both must have the same tokenizer",
                                            theirs.model.vocab_size, ours.model.vocab_size));
  }
  theirs.run = ours.run;
  theirs.data = ours.data;
  theirs.batch = ours.batch;
  theirs.memory = ours.memory;
  theirs.optimizer = ours.optimizer;
  theirs.train = {.from = "", .freeze = {"*"}, .train_only = {}};
  theirs.distil = {};
  teacher.plugins = student.plugins;
  return teacher;
}

}  // namespace orthant
