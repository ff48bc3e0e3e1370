#include "bench/study/run_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "apps/report/report.h"
#include "bench/study/counterfactual.h"
#include "bench/study/fit_card.h"
#include "bench/study/open_study.h"
#include "bench/study/point_queue.h"
#include "bench/study/point_run.h"
#include "bench/study/points_csv.h"
#include "bench/study/study_clock.h"
#include "bench/study/study_progress.h"
#include "bench/study/timing.h"
#include "core/base/output.h"
#include "core/base/text_file.h"
#include "core/checkpoint/disk.h"
#include "core/command/program.h"
#include "core/config/config.h"
#include "core/config/print.h"
#include "core/run/metrics.h"
#include "core/run/run_ids.h"
#include "core/run/run_lock.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class StudyRun {
 public:
  StudyRun(OpenedStudy opened, const StudyOptions& options)
      : study_(std::move(opened.study)),
        options_(options),
        files_(std::move(opened.files)),
        overrides_(std::move(opened.overrides)),
        folder_{fs::path(study_.directory) / study_.name, main_program()},
        cores_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
    overrides_.insert(overrides_.end(), options_.overrides.begin(), options_.overrides.end());
    points_ = make_points(study_, overrides_);
    for (const std::string& id : options_.only) {
      if (std::none_of(points_.begin(), points_.end(), [&](const GridPoint& point) { return point.id == id; })) {
        throw ConfigError(fmt::format("--only {}: the study has no such point; --dry-run lists them", id));
      }
    }
    for (const GridPoint& point : points_) {
      for (const std::string& warning : point.warnings) {
        warned_[warning].push_back(point.id);
      }
    }
    check_text(opened.text_hash);
  }

  // Each once, with the points that it is of.
  void say_warnings() const {
    for (const auto& [warning, ids] : warned_) {
      say("orthant: warning: {}{}: {}", ids.front(), ids.size() == 1 ? "" : fmt::format(" and {} more", ids.size() - 1),
          warning);
    }
  }

  void print_grid() const {
    put("{:<28} {:>6} {:>12} {:>12} {:>14} {:>12} {:>12} {:>10}\n", "point", "ranks", "parameters", "active",
        "FLOPs/token", "router's", "row bytes", "tokens");
    std::size_t shown = 0;
    for (const GridPoint& point : points_) {
      if (!chosen(point)) {
        continue;
      }
      ++shown;
      put("{:<28} {:>6} {:>12} {:>12} {:>14.4g} {:>12.4g} {:>12} {:>10}\n", point.id, point.ranks,
          point.total_parameters, point.active_parameters, point.model_flops, point.router_flops, point.dispatch_bytes,
          point.tokens);
    }
    put("{} points. {}\n",
        shown == points_.size() ? fmt::format("{}", shown) : fmt::format("{} of {}", shown, points_.size()),
        rule_text(study_));
  }

  ExitCode run() {
    lock_ = std::make_unique<RunLock>(folder_.root, new_id(), RunLock::Holder::children_too, std::chrono::seconds(5),
                                      "name = \"...\" in its [study]");
    open_card();
    clock_ = std::make_unique<StudyClock>(folder_.clock(), card_->seconds());
    note_seconds();  // with what a session had taken that was killed
    const bool whole = choose_places() && train_points() && time_points();
    note_seconds();
    if (!whole) {
      say("orthant: the study was stopped: {} of {} points are done. Go on with --resume", count(PointStatus::done),
          points_.size());
      return ExitCode::stopped_resumable;
    }
    write_results();
    const std::size_t failed = count(PointStatus::failed);
    put("{}: {} of {} points are done, {} failed, {} in all. The page is {}\n", study_.name, count(PointStatus::done),
        points_.size(), failed, human_duration(card_->seconds()), (folder_.root / "report.html").string());
    if (failed > 0) {
      put("--resume leaves a point that failed as it is; --only ID tries it again\n");
    }
    return failed == 0 ? ExitCode::ok : ExitCode::failure;
  }

 private:
  void write_results() const {
    const Disk disk;
    disk.replace_file(folder_.root / "points.csv", points_csv(card_->document()));
    disk.replace_file(folder_.root / "fits.json", fits_of(*card_, study_.resamples));
    write_study_report(folder_.root);
  }

  void check_text(const std::string& wanted) {
    std::vector<std::string> set = study_.set;
    set.emplace_back("moe.experts=0");
    set.insert(set.end(), overrides_.begin(), overrides_.end());
    const Config config = load_config(study_.config, set, keys_of_plugin, kinds_of_plugin);
    origin_ = {options_.command,
               options_.version,
               resolved_toml(config),
               Json::parse(resolved_json(config)),
               describe_text(config.settings),
               overrides_};
    for (const auto& [warning, ids] : warned_) {
      origin_.warnings.push_back(warning);
    }
    const Json& text = origin_.text;
    if (!wanted.empty() && text["hash"] != wanted) {
      throw ConfigError(
          fmt::format("{}: the card's points were trained on a text with hash {}, and {} has {}. Give the same text by "
                      "--set data.path=FILE",
                      study_.path, wanted, text["path"].get<std::string>(), text["hash"].get<std::string>()));
    }
  }

  void open_card() {
    const bool there = fs::exists(folder_.root / "study.json");
    if (there && !options_.resume) {
      throw ConfigError(fmt::format(
          "{} holds a study already. Go on with --resume, give this one another name, or remove that folder",
          folder_.root.string()));
    }
    const Disk disk;
    disk.create_folder(folder_.points());
    if (there) {
      card_ = std::make_unique<StudyCard>(folder_.root);
      card_->require_same(points_, origin_);
      return;
    }
    disk.replace_file(folder_.config(), origin_.config);
    card_ = std::make_unique<StudyCard>(folder_.root, study_, points_, origin_);
  }

  bool chosen(const GridPoint& point) const {
    return options_.only.empty() ||
           std::find(options_.only.begin(), options_.only.end(), point.id) != options_.only.end();
  }

  // A failed point is tried again only where it is asked for.
  std::vector<const GridPoint*> points_to_train() const {
    std::vector<const GridPoint*> all;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const PointStatus status = card_->status(i);
      if (chosen(points_[i]) &&
          (status == PointStatus::waiting || (status == PointStatus::failed && !options_.only.empty()))) {
        all.push_back(&points_[i]);
      }
    }
    return all;
  }

  std::size_t count(PointStatus status) const {
    std::size_t number = 0;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      number += card_->status(i) == status ? 1 : 0;
    }
    return number;
  }

  bool choose_places() {
    const std::vector<const GridPoint*> all = points_to_train();
    places_ = static_cast<int>(study_.side_by_side);
    if (places_ == 0 && card_->document().contains("side_by_side")) {
      places_ = card_->document()["side_by_side"]["places"];
    }
    if (places_ != 0 || all.size() < 2) {
      places_ = std::max(places_, 1);
      return true;
    }
    const auto costliest = [&](int ranks) {
      const GridPoint* found = nullptr;
      for (const GridPoint* point : all) {
        if (point->ranks <= ranks && (found == nullptr || point->flops() > found->flops())) {
          found = point;
        }
      }
      return found;
    };
    const GridPoint* point = costliest(1);
    places_ = 1;
    if (point == nullptr || cores_ == 1) {
      return true;
    }
    const int together = std::min(cores_, static_cast<int>(all.size()));
    put("{}: a trial of {}: one run on {} cores, or {} at a time\n", study_.name, point->id, cores_, together);
    std::fflush(stdout);
    const auto trial = try_side_by_side(folder_, *point, cores_, together);
    if (!trial) {
      return false;
    }
    places_ = trial->places;
    card_->set("side_by_side", {{"places", places_},
                                {"point", point->id},
                                {"tokens_per_second_one_after_another", trial->one_after_another},
                                {"tokens_per_second_together", trial->together}});
    put("{}: {:.0f} tokens/s one after another, {:.0f} together: {} at a time\n", study_.name, trial->one_after_another,
        trial->together, places_);
    return true;
  }

  void note_seconds() { card_->set("seconds", clock_->seconds()); }

  bool train_points() {
    std::vector<const GridPoint*> all = points_to_train();
    if (all.empty()) {
      return true;
    }
    progress_.begin(all, places_);
    PointQueue queue(folder_, places_, cores_);
    const bool whole = queue.run(
        std::move(all),
        [&](const GridPoint& point) { clock_->begin(point.id, fs::exists(folder_.run_of(point) / "metrics.jsonl")); },
        [&](const PointQueue::Ended& ended) { take(ended); },
        [&](const std::vector<PointQueue::Running>& running) { progress_.running(running); });
    progress_.clear_line();
    return whole;
  }

  std::size_t index(const GridPoint& point) const { return static_cast<std::size_t>(&point - points_.data()); }

  void take(const PointQueue::Ended& ended) {
    const std::size_t i = index(*ended.point);
    clock_->end(ended.point->id);
    const std::optional<double> seconds = clock_->seconds_of(ended.point->id);
    progress_.clear_line();
    // A run that is told to stop before it listens is killed by that, and one without a checkpoint has nothing to save.
    const bool resumable =
        ended.ending.signal == 0 && ended.ending.code == static_cast<int>(ExitCode::stopped_resumable);
    if (resumable || (ended.stopped && ended.ending.exit_code() != 0)) {
      card_->set_waiting(i);
      return;
    }
    std::string outcome;
    try {
      require(ended.ending.exit_code() == 0, "{}\n{}", ended.ending.to_string(),
              end_of_log(folder_.log_of(*ended.point)));
      Json result = result_of(folder_, *ended.point, seconds);
      if (!study_.counterfactual.empty() && is_recorded(*ended.point)) {
        result["counterfactual"] = counterfactual_drops(folder_, *ended.point, study_.counterfactual);
      }
      card_->set_done(i, result);
      if (!study_.keep_checkpoints) {
        Disk().remove_all(folder_.run_of(*ended.point) / "checkpoints");
      }
      outcome = fmt::format("validation {:.4f}", result["validation_loss"].get<double>());
    } catch (const Error& error) {
      card_->set_failed(i, error.what());
      outcome = fmt::format("failed: {}", error.what());
    }
    note_seconds();
    progress_.ended(*ended.point, outcome, seconds);
  }

  // Only shapes of points that are done and have no time yet.
  bool time_points() {
    std::vector<const GridPoint*> shapes;
    std::set<std::string> wanted;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const bool timed =
          card_->status(i) == PointStatus::done && !card_->result(i).value("step_seconds", Json()).is_null();
      if (card_->status(i) == PointStatus::done && !timed && wanted.insert(points_[i].shape()).second) {
        shapes.push_back(&points_[i]);
      }
    }
    if (study_.timing_rounds == 0 || shapes.empty()) {
      forget_timings();  // of a session that ended between card and file
      return true;
    }
    put("{}: timing {} shapes, each alone, {} rounds in turns\n", study_.name, shapes.size(), study_.timing_rounds);
    std::fflush(stdout);
    std::size_t said = 0;  // also of a round in whose middle a resumed session begins
    const auto times = time_shapes(folder_, shapes, study_, cores_, [&](std::size_t run, std::size_t all) {
      if (options_.terminal) {
        progress_.overwritten(fmt::format("timing {}/{}", run + 1, all));
      } else if (const std::size_t round = run / shapes.size() + 1; round != said) {
        put("timing round {} of {}\n", round, study_.timing_rounds);
        said = round;
        std::fflush(stdout);
      }
    });
    progress_.clear_line();
    if (!times) {
      return false;
    }
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const auto found = times->find(points_[i].shape());
      if (card_->status(i) == PointStatus::done && found != times->end() && !found->second.step_seconds.empty()) {
        const std::vector<double>& rounds = found->second.step_seconds;
        Json members = {{"step_seconds", median(rounds)}, {"step_seconds_of_rounds", rounds}};
        try {
          members.update(costs_of(found->second.why));
        } catch (const Error& error) {
          say("orthant: warning: {}: {}", points_[i].id, error.what());
        }
        card_->add_to_result(i, members);
      }
    }
    forget_timings();
    return true;
  }

  // Once the card has them.
  void forget_timings() {
    std::error_code ignored;
    std::filesystem::remove(folder_.timings(), ignored);
  }

  StudyFile study_;
  const StudyOptions& options_;
  std::shared_ptr<const ScratchFolder> files_;
  std::vector<std::string> overrides_;  // of every point
  StudyFolder folder_;
  int cores_;
  std::vector<GridPoint> points_;
  std::map<std::string, std::vector<std::string>> warned_;  // ids of points, by the warning of their configuration
  StudyOrigin origin_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<StudyCard> card_;
  std::unique_ptr<StudyClock> clock_;
  StudyProgress progress_{folder_, study_, points_, options_.terminal};
  int places_ = 1;
};

}  // namespace

ExitCode run_study(const std::string& path, const StudyOptions& options) {
  StudyRun study(open_study(path), options);
  study.say_warnings();
  if (options.dry_run) {
    study.print_grid();
    return ExitCode::ok;
  }
  return study.run();
}

}  // namespace orthant
