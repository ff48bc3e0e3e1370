#include "core/run/run_start.h"

#include <fmt/ranges.h>

#include <vector>

#include "core/base/output.h"
#include "core/checkpoint/model_folder.h"
#include "core/data/chat_sources.h"
#include "core/run/file_work.h"
#include "core/run/find_checkpoint.h"
#include "core/run/loaded_teacher.h"
#include "core/run/resumed.h"
#include "core/run/run_saver.h"
#include "core/run/run_text_rules.h"
#include "core/run/run_tokenizer.h"
#include "core/run/saving.h"
#include "core/run/shared_folder.h"
#include "core/run/starting_weights.h"
#include "parallel/host_collectives.h"

namespace orthant {

void RunStart::resume() {
  const auto& [config, options, communicator, world, stream, plan, trainer, teacher] = parts_;
  const FileWork work(communicator, config.settings.run.disk_timeout_seconds);
  const bool first = parts_.first();
  if (first) {
    claim_.emplace(options.run_directory, options.resume, options.job_id);
  }
  require_shared_folder(options.run_directory, world, stream);
  from_ = find_checkpoint(first ? claim_->resume() : "", parts_.checkpoints(), world, stream);
  if (from_.empty()) {
    if (first && claim_->resume() == "auto") {
      put("no checkpoint to resume from under {}: starting at step 1\n", parts_.checkpoints().string());
    }
    take_starting_weights();
    return;
  }
  const CheckpointReader reader(from_);
  if (first) {
    claim_->check(from_, reader.state());
    require_same_tokenizer(config.settings, run_of(from_));
    warn_of_changed_settings(reader, config);
  }
  require_same_kind(reader, config.settings);
  require_same_parameters(reader, config.settings);
  const std::vector<std::string> notes = load_checkpoint(reader, plan, trainer.parameters(), stream);
  if (first) {
    for (const std::string& note : notes) {
      say("orthant: warning: {}", note);
    }
  }
  step_ = number_in(reader, "step");
  tokens_ = number_in(reader, "tokens");
  from_state_ = reader.state();
  trainer.resume_behind(from_state_.contains(passed_over_state) ? number_in(reader, passed_over_state) : 0);
  const std::vector<std::string> absent = trainer.observers().restore(from_state_);
  if (first) {
    say_resumed(from_, reader);
    if (!absent.empty()) {
      say("orthant: warning: the checkpoint was written with hooks that no plugin brings now, their changes end "
          "here: "
          "{}",
          fmt::join(absent, ", "));
    }
  }
}

void RunStart::take_starting_weights() {
  const std::string& from = parts_.settings().train.from;
  if (from.empty()) {
    return;
  }
  // Rank 0 decides: a run that is still training may save another one while the ranks look.
  const std::string newest = parts_.first() ? starting_checkpoint(from).string() : "";
  const std::filesystem::path checkpoint = gather_texts(newest, parts_.world, parts_.stream).front();
  const CheckpointReader reader(checkpoint);
  load_weights(reader, parts_.plan, parts_.trainer.parameters(), parts_.stream);
  if (parts_.first()) {
    origin_ = checkpoint;
    put("begins with the weights of {} after step {}\n", checkpoint.string(), reader.step());
    if (const std::string told = told_of_depths(reader, parts_.settings()); !told.empty()) {
      put("{}\n", told);
    }
    for (const std::string& line : other_router_training(reader, parts_.config)) {
      put("{}\n", line);
    }
  }
}

void RunStart::take_teacher() {
  if (parts_.teacher != nullptr) {
    const FileWork work(parts_.communicator, parts_.settings().run.disk_timeout_seconds);
    taught_by_ = load_teacher(*parts_.teacher, parts_.settings(), from_state_, parts_.world, parts_.stream);
  } else {
    require_no_teacher(from_state_);
  }
}

void RunStart::begin(std::optional<RunLog>& log) {
  const RunOptions& options = parts_.options;
  const FileWork work(parts_.communicator, parts_.settings().run.disk_timeout_seconds);
  const auto tokenizer =
      tokenizer_to_keep(parts_.settings());  // before an earlier run, in which it may lie, is set aside
  const std::filesystem::path& begun = origin_.empty() ? from_ : origin_;
  const TextRules rules = rules_to_keep(parts_.settings(), begun.empty() ? begun : run_of(begun));
  claim_->begin(parts_.config, from_, from_state_, step_);
  if (!origin_.empty()) {
    copy_origin(origin_, options.run_directory);
  }
  if (tokenizer != nullptr) {
    keep_tokenizer(*tokenizer, options.run_directory);
  }
  keep_text_rules(rules, options.run_directory);
  if (reads_by_template(parts_.settings())) {
    put("conversations are read by the template {}: {}, here and where the model is served, evaluated and exported\n",
        parts_.settings().data.chat_template, described(rules, *load_tokenizer(parts_.settings().data.tokenizer)));
  }
  log.emplace(options.run_directory, parts_.settings(), step_, claim_->ids().run, options.columns);
  sync_run_folder(options.run_directory);
}

RunIds RunStart::shared_ids() {
  const RunIds own = parts_.first() ? claim_->ids() : RunIds();
  const std::vector<std::string> run = gather_texts(own.run, parts_.world, parts_.stream);
  return {.run = run.front(), .job = gather_texts(own.job, parts_.world, parts_.stream).front()};
}

}  // namespace orthant
