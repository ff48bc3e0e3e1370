#include "core/run/train_run.h"

#include <signal.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "core/arch/trained_text.h"
#include "core/base/output.h"
#include "core/base/stop_signals.h"
#include "core/checkpoint/checkpoint.h"
#include "core/config/batch_text.h"
#include "core/config/validate.h"
#include "core/data/source.h"
#include "core/run/bytes_per_token.h"
#include "core/run/file_work.h"
#include "core/run/loaded_teacher.h"
#include "core/run/recorder.h"
#include "core/run/routing_alarms.h"
#include "core/run/run_log.h"
#include "core/run/run_numbers.h"
#include "core/run/run_parts.h"
#include "core/run/run_saver.h"
#include "core/run/run_start.h"
#include "core/run/run_trace.h"
#include "core/run/step_runner.h"
#include "core/run/time_limit.h"
#include "core/train/trainer.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One rank's side of a run; destroyed in reverse order.
class TrainingRun {
 public:
  TrainingRun(const Config& config, const RunOptions& options, Communicator& communicator)
      : config_(config),
        settings_(config.settings),
        options_(options),
        trace_(settings_.run, options.run_directory, communicator),
        communicator_(trace_.communicator()),
        device_(trace_.around(
            make_device(settings_.run.device, static_cast<int>(settings_.run.threads), settings_.run.deterministic))),
        stream_(device_->make_main_stream()),
        source_(open_source()),
        session_(config),
        planned_((device_->limit_memory(settings_.memory.limit),
                  device_->limit_host_memory(settings_.memory.host_limit),
                  session_.plan(communicator_.rank(), &communicator_, device_.get()), true)),
        world_(session_.mesh().world_group("run")),
        teacher_(make_teacher(config, communicator_.rank(), communicator_, *device_, *stream_)),
        trainer_(session_.plan(), *stream_, *source_, teacher_.get()),
        steps_(trainer_, *device_, *stream_, settings_,
               {.before = [this](std::int64_t step) { before(step); },
                .measures = [this](std::int64_t step) { return logs_after(step); },
                .looks_after = [this](std::int64_t step) { return looks_after(step); }}),
        recorder_(session_.plan()),
        alarms_(settings_),
        parts_{config, options, communicator_, world_, *stream_, session_.plan(), trainer_, teacher_.get()},
        start_(parts_),
        saver_(parts_, trace_.trace()),
        limit_(settings_.run.time_limit) {}

  ExitCode train() {
    require_same_recompute();
    start_.resume();
    start_.take_teacher();
    step_ = start_.step();
    if (step_ >= settings_.run.steps) {
      if (first()) {
        put("nothing is left to do: run.steps is {}, and {} are done; give more with --set run.steps=N\n",
            settings_.run.steps, step_);
      }
      return ExitCode::ok;
    }
    require_all_alive(world_, *stream_);  // all have read what begin may move, and none has failed
    if (first()) {
      for (const std::string& warning : warnings(settings_)) {
        say("orthant: warning: {}", warning);
      }
      start_.begin(log_);
      put("{} parameters on rank 0, {} ranks, steps {} to {}\n", trainer_.parameters().elements(), world_.size(),
          step_ + 1, settings_.run.steps);
      if (const std::optional<DataSize> size = source_->size(); size.has_value()) {
        put("{}\n", size_text(*size, settings_));
      }
      if (!settings_.batch.grow_to.empty()) {
        put("{}\n", batch_text(settings_.batch));
      }
      for (const auto& text : {trained_text(settings_), rates_text(settings_)}) {
        for (const std::string& line : text) {
          put("{}\n", line);
        }
      }
      const bool wide = settings_.run.dtype == ComputeType::fp32;
      if (const std::string kernels = device_->kernels(wide ? DType::f32 : DType::bf16); !kernels.empty()) {
        put("{}\n", kernels);
      }
    }
    if (first() && settings_.run.validate_every > 0) {
      const FileWork work = file_work();
      text_ = bytes_per_token(*source_, settings_);
    }
    saver_.begin(start_.shared_ids(), start_.taught_by());
    const Clock::time_point begin = Clock::now();
    std::int64_t saved = -1;
    trace_.connect(world_, *stream_, session_.plan().stage());
    limit_.begin();
    while (step_ < settings_.run.steps) {
      communicator_.report_step(step_);  // the one that is not finished, whatever has begun behind it
      const auto [report, step_seconds, peak] = steps_.next(step_);
      limit_.after_step(sequences_of_step(settings_.batch, step_));
      if (report.passed_over && first()) {
        log_->finish();
        say("orthant: warning: step {} is passed over: loss {}, gradient norm {} ({} in a row; run.skip_not_finite = "
            "{})",
            report.step + 1, report.loss, report.grad_norm, trainer_.passed_over(), settings_.run.skip_not_finite);
      }
      if (records(step_++)) {
        const FileWork work = file_work();
        recorder_.write(options_.run_directory, step_, world_, *stream_);
      }
      tokens_ += report.tokens;
      const bool last = step_ == settings_.run.steps;
      saver_.done_here();  // what fails on this rank ends the run now, whenever ranks meet
      const bool stop = steps_.idle() && meets_after(step_) && everyone_stops();
      std::optional<Validation> validation;
      if (due(settings_.run.validate_every) || (last && settings_.run.validate_every > 0)) {
        const Phase phase(*stream_, "validation");
        validation = trainer_.validate_sets();
      }
      if (step_ == 1 || due(settings_.run.log_every) || last || validation.has_value() || report.passed_over) {
        const StepReport all = trainer_.over_workers(report);
        const MetricsLine line{&all,
                               all_tokens(),
                               sequences_of_step(settings_.batch, step_ - 1),
                               step_seconds,
                               peak.has_value() ? *peak : largest_peak(*device_, world_, *stream_),
                               validation,
                               model_flops_utilization(settings_, all.tokens, step_seconds, world_.size()),
                               alarms_.after(all),
                               saver_.take_waited(),
                               &text_};
        if (first()) {
          log_->write(line, alarms_.begun(), seconds_since(begin));
        }
      }
      if (due(settings_.run.checkpoint_every) || last || stop) {
        const Phase phase(*stream_, "save");
        limit_.before_save();
        saver_.save(step_, all_tokens(), last || stop, log_ ? &*log_ : nullptr);
        limit_.save_took(saver_.take_beside());
        saver_.under_way() ? limit_.save_goes_on() : limit_.after_save();
        saved = step_;
      }
      saver_.tell_of_pruning();
      if (stop && !last) {
        finish();
        if (first()) {
          put("{}stopped after step {}; go on with --resume auto\n", out_of_time_, step_);
          std::fflush(stdout);
        }
        // mpirun ends all ranks, and drops what they say, when the first one leaves with this code.
        world_.barrier(*stream_);
        stream_->synchronize();
        return ExitCode::stopped_resumable;
      }
    }
    finish();
    const std::int64_t tokens = all_tokens();
    if (first()) {
      finish_text(saved, tokens, seconds_since(begin));
    }
    return ExitCode::ok;
  }

 private:
  bool first() const { return world_.rank() == 0; }
  static bool due_after(std::int64_t step, std::int64_t every) { return every > 0 && (step + 1) % every == 0; }
  bool due(std::int64_t every) const { return due_after(step_ - 1, every); }

  void before(std::int64_t step) {
    trace_.at(step);
    trainer_.look_on(records(step) ? &recorder_ : nullptr);
  }

  // Whether the step has a line of metrics.
  bool logs_after(std::int64_t step) const {
    return step == 0 || step + 1 == settings_.run.steps || due_after(step, settings_.run.log_every) ||
           due_after(step, settings_.run.validate_every);
  }

  bool records(std::int64_t step) const {
    const std::int64_t first = settings_.moe.experts > 0 ? settings_.run.record_routing : 0;
    return first > 0 && (step < first || step + 1 == settings_.run.steps);
  }

  // Whether this rank by itself wants the model as the step leaves it.
  bool looks_after(std::int64_t step) {
    constexpr std::int64_t under_way_and_next = 2;
    return stop_wanted(under_way_and_next, due_after(step, settings_.run.checkpoint_every)) || saver_.done_here() ||
           records(step) || records(step + 1) || due_after(step, settings_.run.validate_every) ||
           due_after(step, settings_.run.checkpoint_every);
  }

  // Each rank has found by itself what "fit" stands for.
  void require_same_recompute() {
    if (config_.table("memory").text("recompute") != "fit") {
      return;
    }
    const MemorySettings& memory = settings_.memory;
    const std::vector<std::string> found =
        gather_texts(fmt::format("\"{}\" with keep_micro_batches = {}", memory.recompute, memory.keep_micro_batches),
                     world_, *stream_);
    require(std::all_of(found.begin(), found.end(), [&](const std::string& other) { return other == found.front(); }),
            "memory.recompute = \"fit\" stands for different things on different ranks: {}", fmt::join(found, ", "));
  }

  // Independent workers wait for each other where something is logged, validated or saved, and nowhere else.
  bool meets_after(std::int64_t done) {
    const RunSettings& run = settings_.run;
    return session_.mesh().workers() == 1 || done == 1 || done == run.steps || due_after(done - 1, run.log_every) ||
           due_after(done - 1, run.validate_every) || due_after(done - 1, run.checkpoint_every);
  }
  std::int64_t steps_to_meeting() {
    const RunSettings& run = settings_.run;
    std::int64_t steps = session_.mesh().workers() == 1 ? 1 : std::max<std::int64_t>(run.steps - step_, 1);
    for (const std::int64_t every : {run.log_every, run.validate_every, run.checkpoint_every}) {
      steps = every > 0 ? std::min(steps, every - step_ % every) : steps;
    }
    return steps;
  }

  // Since the run began, of all workers.
  std::int64_t all_tokens() {
    if (session_.mesh().workers() == 1) {
      return start_.tokens() + tokens_;
    }
    std::vector<std::int64_t> sum = {tokens_};
    all_reduce_values(sum, ReduceOp::sum, world_, *stream_);
    return start_.tokens() + sum[0] * session_.mesh().workers() / world_.size();
  }

  // However slow the disk is, no rank takes this one for stuck.
  FileWork file_work() { return {communicator_, settings_.run.disk_timeout_seconds}; }

  // A rank may make tokens of a text first, while others wait for it.
  std::unique_ptr<BatchSource> open_source() {
    const FileWork work = file_work();
    return make_batch_source(settings_);
  }

  // Whoever asks for a signal takes it. Of the time rank 0 decides: `steps` more, and a save before them where one is
  // due, would pass before a stop could follow.
  bool stop_wanted(std::int64_t steps, bool save_due) {
    const std::int64_t sequences = sequences_of_step(settings_.batch, step_ + steps - 1);
    if (first() && out_of_time_.empty() && limit_.is_up(steps, sequences, save_due)) {
      out_of_time_ = limit_.text(sequences);
    }
    stop_wanted_ = stop_wanted_ || stop_requested();
    return stop_wanted_ || !out_of_time_.empty();
  }

  // The meeting of all ranks: whether one of them is to stop, and how far they are with a checkpoint that is written
  // beside the training.
  bool everyone_stops() {
    const SavingBeside::Word own = saver_.word();
    const bool stop = stop_wanted(steps_to_meeting(), due(settings_.run.checkpoint_every));
    std::vector<std::int64_t> all = {stop ? 1 : 0, own[0], own[1]};
    all_reduce_values(all, ReduceOp::max, world_, *stream_);
    saver_.hear({all[1], all[2]});
    limit_.save_took(saver_.take_beside());
    return all[0] != 0;
  }

  void finish() {
    trace_.finish();
    if (first()) {
      log_->finish();
      saver_.finish();
    }
  }

  void finish_text(std::int64_t saved, std::int64_t tokens, double seconds) const {
    put("done: {} steps, {} tokens, {}\n", step_, tokens, human_duration(seconds));
    put("  metrics     {}\n", (options_.run_directory / "metrics.jsonl").string());
    if (saved >= 0) {
      put("  checkpoint  {}\n", checkpoint_folder(parts_.checkpoints(), saved).string());
    }
    put("  logs        {}\n", (options_.run_directory / "logs").string());
  }

  const Config& config_;
  const Settings& settings_;
  const RunOptions& options_;
  RunTrace trace_;
  Communicator& communicator_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<BatchSource> source_;
  Session session_;
  bool planned_;
  Group& world_;
  std::unique_ptr<Teacher> teacher_;  // null: none
  Trainer trainer_;
  StepRunner steps_;
  RoutingRecorder recorder_;
  RoutingAlarms alarms_;
  RunParts parts_;
  RunStart start_;
  RunSaver saver_;
  std::optional<RunLog> log_;  // of rank 0
  BytesPerToken text_;         // on rank 0
  TimeLimit limit_;
  bool stop_wanted_ = false;
  std::string out_of_time_;  // on rank 0, why the time is up; empty: it is not
  std::int64_t step_ = 0;    // steps done
  std::int64_t tokens_ = 0;  // of this process's steps, those of this rank's worker
};

}  // namespace

ExitCode train_run(const Config& config, const RunOptions& options, Communicator& communicator) {
  TrainingRun run(config, options, communicator);
  try {
    return run.train();
  } catch (const std::exception& failure) {
    // Now, while the run stands: to take it down waits for what its side streams are sending, and peers for this word.
    communicator.abort(failure.what());
    throw;
  }
}

}  // namespace orthant
