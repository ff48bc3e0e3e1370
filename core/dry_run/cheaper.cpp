#include "core/dry_run/cheaper.h"

#include <orthant/gate.h>

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "core/base/bytes_text.h"
#include "core/base/flops_text.h"
#include "core/config/value_text.h"
#include "core/dry_run/recompute_choice.h"
#include "core/plan/batch_share.h"
#include "core/session/session.h"

namespace orthant {
namespace {

// Operations that a rank makes while it sends a byte: of a GPU with 1000 TFLOP/s, 2200 over NVLink (450 GB/s) and 20000
// over a network card (50 GB/s).
constexpr double flops_of_a_byte = 5000;

class Trials {
 public:
  Trials(const Config& config, const Need& now) : config_(config), now_(now) {}

  void recompute() {
    const MemorySettings& now = config_.settings.memory;
    const std::int64_t in_flight = most_in_flight(config_);
    for (const char* to : {"selective", "full"}) {
      const bool other = now.recompute != to;
      if (other && now.recompute == "full") {
        continue;
      }
      const std::int64_t most = (other ? in_flight : std::min(in_flight, now.keep_micro_batches)) - 1;
      if (const auto choice = most_kept(config_, to, most)) {
        keep(saving(text_of(*choice), choice->need));
      }
    }
  }

  void in_backward() {
    const OptimizerSettings& optimizer = config_.settings.optimizer;
    if (!optimizer.in_backward && optimizer.clip_grad_norm == 0 && config_.settings.run.skip_not_finite == 0) {
      Config with = config_;
      with.settings.optimizer.in_backward = true;
      keep(attempt(with, "optimizer.in_backward = true"));
    }
  }

  // Halved until it fits.
  void micro_batch() {
    for (std::int64_t size = micro_batch_of(config_) / 2; size > 0; size /= 2) {
      if (keep(attempt(set_micro_batch(config_, size), fmt::format("batch.micro_batch = {}", size)))) {
        return;
      }
    }
  }

  // Of each key of a plugin the first that fits.
  void plugins() {
    const std::vector<std::vector<KeyChange>> all = Session(config_).smaller();
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::set<std::string> done;
      for (const KeyChange& change : all[i]) {
        if (done.count(change.key) == 0 && keep(attempt(set_key(config_, i, change), text_of(i, change)))) {
          done.insert(change.key);
        }
      }
    }
  }

  void capacity() {
    const MoeSettings& moe = config_.settings.moe;
    if (moe.experts == 0 || moe.capacity_factor > 0) {
      return;
    }
    for (double factor : {2.0, 1.25}) {
      Config with = config_;
      with.settings.moe.capacity_factor = factor;
      if (gate_of(with.settings).refusals(with.settings).empty() &&
          keep(attempt(with, fmt::format("moe.capacity_factor = {}", factor)), true)) {
        return;
      }
    }
  }

  // What none of them does alone.
  void together() {
    std::vector<std::string> texts;
    Config with = config_;
    if (const RecomputeChoice all{.recompute = "full", .keep = 0, .need = {}}; !text_of(all).empty()) {
      with = with_recompute(with, all.recompute, all.keep);
      texts.push_back(text_of(all));
    }
    const std::vector<std::vector<KeyChange>> all = Session(config_).smaller();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].empty()) {
        with = set_key(with, i, all[i].back());
        texts.push_back(text_of(i, all[i].back()));
      }
    }
    for (std::int64_t size = micro_batch_of(config_); size > 0; size /= 2) {
      std::string text = fmt::format("{}", fmt::join(texts, " and "));
      if (size < micro_batch_of(config_)) {
        text += fmt::format("{}batch.micro_batch = {}", text.empty() ? "" : " and ", size);
        with = set_micro_batch(with, size);
      }
      if (!text.empty() && keep(attempt(with, text))) {
        return;
      }
    }
  }

  std::vector<Saving> result() && { return std::move(fit_); }
  bool any() const { return !fit_.empty(); }

 private:
  // What of it differs from the configuration.
  std::string text_of(const RecomputeChoice& choice) const {
    const MemorySettings& now = config_.settings.memory;
    std::vector<std::string> texts;
    if (choice.recompute != now.recompute) {
      texts.push_back(fmt::format("memory.recompute = \"{}\"", choice.recompute));
    }
    if (choice.keep != now.keep_micro_batches) {
      texts.push_back(fmt::format("memory.keep_micro_batches = {}", choice.keep));
    }
    return fmt::format("{}", fmt::join(texts, " and "));
  }
  static Config set_micro_batch(Config config, std::int64_t size) {
    config.settings.batch.micro_batch = size;
    return config;
  }
  static Config set_key(Config config, std::size_t plugin, const KeyChange& change) {
    Table& table = config.plugins[plugin].table;
    std::map<std::string, Table::Entry> entries = table.entries();
    entries.at(change.key).value = change.value;
    table = Table(table.path(), std::move(entries));
    return config;
  }
  std::string text_of(std::size_t plugin, const KeyChange& change) const {
    return fmt::format("{}.{} = {}", config_.plugins[plugin].table.path(), change.key, toml_text(change.value));
  }
  static std::int64_t micro_batch_of(const Config& config) {
    Session session(config);
    session.plan(0, nullptr, nullptr);
    return largest_share(session.plan()).micro_batch;
  }

  Saving saving(std::string text, const Need& need) const {
    return {.what = std::move(text),
            .need = need,
            .flops = std::max(0.0, need.recomputed - now_.recomputed),
            .bytes = need.sent - now_.sent};
  }
  // Nothing where the layout cannot be changed so.
  std::optional<Saving> attempt(const Config& with, std::string text) const {
    try {
      check_layout(with);
      return saving(std::move(text), memory_need(with));
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  bool keep(std::optional<Saving> change, bool drops = false) {
    if (!change || !keeps_limits(change->need, config_.settings.memory)) {
      return false;
    }
    change->drops = drops;
    fit_.push_back(std::move(*change));
    return true;
  }

  const Config& config_;
  const Need& now_;
  std::vector<Saving> fit_;
};

}  // namespace

double Saving::price() const {
  return flops + flops_of_a_byte * static_cast<double>(std::max<std::int64_t>(bytes, 0));
}

std::string Saving::cost() const {
  std::string text;
  if (flops > 0) {
    text = fmt::format("computes {} again in a step", flops_text(flops));
  }
  if (bytes > 0) {
    text += fmt::format("{}sends {} more in a step", text.empty() ? "" : ", ", bytes_text(bytes));
  }
  if (drops) {
    text += fmt::format("{}drops the choices beyond it", text.empty() ? "" : ", ");
  }
  return text.empty() ? "computes and sends no more" : text;
}

std::vector<Saving> fitting_changes(const Config& config, const Need& now) {
  Trials trials(config, now);
  trials.in_backward();
  trials.recompute();
  trials.micro_batch();
  trials.plugins();
  trials.capacity();
  if (!trials.any()) {
    trials.together();
  }
  std::vector<Saving> found = std::move(trials).result();
  std::stable_sort(found.begin(), found.end(), [](const Saving& a, const Saving& b) {
    return std::pair(a.drops, a.price()) < std::pair(b.drops, b.price());
  });
  return found;
}

}  // namespace orthant
