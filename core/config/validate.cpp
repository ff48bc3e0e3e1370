#include "core/config/validate.h"

#include <orthant/gate.h>

#include <fmt/format.h>
#include <orthant/learning_rate.h>
#include <orthant/model.h>
#include <orthant/objective.h>
#include <orthant/optimizer.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>
#include <vector>

#include "core/config/validate_data.h"
#include "core/config/validate_model.h"

namespace orthant {
namespace {

// Names become parts of file names.
bool plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

void check_run(const RunSettings& run, Rules& rules) {
  const char* const letters = "write letters, digits, '-', '_' and '.', and begin with no '.'";
  rules.expect(plain_name(run.name), {"run.name"}, "[run] name: cannot be the name of a folder", letters);
  rules.expect(plain_name(run.device), {"run.device"}, "[run] device: cannot be the name of a device",
               "write \"cpu\", \"cuda\" or the name of a device library");
  rules.expect(plain_name(run.communicator), {"run.communicator"},
               "[run] communicator: cannot be the name of a communicator",
               "write \"local\" or the name of a communicator library");
  rules.expect(!run.directory.empty(), {"run.directory"}, "[run] directory: is empty", "write \"runs\"");
  rules.expect(run.timeout_seconds > 0, {"run.timeout_seconds"},
               fmt::format("[run] timeout_seconds: {} is not above 0", run.timeout_seconds),
               "write a number of seconds above 0");
  rules.expect(run.disk_timeout_seconds > 0, {"run.disk_timeout_seconds"},
               fmt::format("[run] disk_timeout_seconds: {} is not above 0", run.disk_timeout_seconds),
               "write a number of seconds above 0");
}

void check_graphs(const Config& config, Rules& rules) {
  rules.expect(!config.settings.run.graphs || config.plugins.empty(), {"run.graphs"},
               "[run] graphs: true records the work of one rank by itself, but the configuration has plugins",
               "leave out graphs, or the [plugins.*] tables");
}

// "optimizer 'lion' of plugin 'lion'".
std::string kind_text(const Settings& s, const std::string& noun, const std::string& name) {
  std::string plugin;
  for (const Catalogue::Entry& entry : s.catalogue->entries(noun)) {
    plugin = entry.name == name ? entry.plugin : plugin;
  }
  return fmt::format("{} '{}'{}", noun, name, plugin.empty() ? "" : fmt::format(" of plugin '{}'", plugin));
}

// What a kind of the catalogue, which `setting` names, refuses. The first line is the message, the rest the advice.
template <class Noun, class Check>
void ask(const Settings& s, const std::string& setting, const std::string& name, Rules& rules, Check check) {
  const auto failed = [&](const std::string& reason) {
    rules.expect(false, {setting}, fmt::format("{} fails in check(): {}", kind_text(s, Noun::noun, name), reason),
                 "change " + setting);
  };
  try {
    check(s.catalogue->get<Noun>(name));
  } catch (const SettingError& refused) {
    const std::string text = refused.what();
    const std::size_t end = std::min(text.find('\n'), text.size());
    rules.expect(false, {refused.setting()}, text.substr(0, end),
                 end < text.size() ? text.substr(end + 1) : "change " + refused.setting());
  } catch (const std::exception& failure) {
    failed(failure.what());
  } catch (...) {
    failed("it throws what is no std::exception");
  }
}

void check_rates(const OptimizerSettings& o, Rules& rules) {
  if (!rules.sound({"optimizer.lr_of", "optimizer.lr_scales"})) {
    return;
  }
  rules.expect(
      o.lr_of.size() == o.lr_scales.size(), {"optimizer.lr_scales", "optimizer.lr_of"},
      fmt::format("[optimizer] lr_scales: {} numbers for {} patterns of lr_of", o.lr_scales.size(), o.lr_of.size()),
      "write one number for each pattern of lr_of");
  for (std::size_t i = 0; i < o.lr_scales.size(); ++i) {
    const double scale = o.lr_scales[i];
    if (!(positive_float(scale) && finite_float(scale) && finite_float(o.lr * scale))) {
      rules.refuse("optimizer.lr_scales", i, fmt::format("[optimizer] lr_scales: {} is no factor of a rate", scale),
                   scale == 0 ? "name in train.freeze what shall not learn" : "write a number above 0, such as 0.1");
    }
  }
}

void check_optimizer(const Settings& s, Rules& rules) {
  const OptimizerSettings& o = s.optimizer;
  rules.expect(o.lr > 0, {"optimizer.lr"}, "[optimizer] lr: a learning rate of 0 learns nothing",
               "write a number above 0");
  rules.expect(o.min_lr <= o.lr, {"optimizer.min_lr", "optimizer.lr"},
               fmt::format("[optimizer] min_lr: {} is above lr {}", o.min_lr, o.lr), "write at most lr");
  check_rates(o, rules);
  rules.expect(static_cast<float>(o.ema_decay) < 1, {"optimizer.ema_decay"},
               fmt::format("[optimizer] ema_decay: {} is not below 1 in single precision", o.ema_decay),
               "write a number below 1, such as 0.999, or 0 for no average");
  rules.expect(
      !o.in_backward || o.clip_grad_norm == 0, {"optimizer.in_backward", "optimizer.clip_grad_norm"},
      fmt::format("[optimizer] in_backward: with clip_grad_norm = {} no layer can be updated before the norm of "
                  "all gradients is known",
                  o.clip_grad_norm),
      "write clip_grad_norm = 0, or in_backward = false");
  rules.expect(
      !o.in_backward || s.run.skip_not_finite == 0, {"run.skip_not_finite", "optimizer.in_backward"},
      "[run] skip_not_finite: with optimizer.in_backward a step that is not finite has updated some layers when "
      "that is known",
      "write skip_not_finite = 0, or in_backward = false");
  rules.expect(o.master_weights == MasterWeights::fp32 || s.run.dtype == ComputeType::bf16,
               {"optimizer.master_weights", "run.dtype"},
               "[optimizer] master_weights: fp32 weights are their own master, there is none to leave out",
               "write run.dtype = \"bf16\", or master_weights = \"fp32\"");
  // A plugin that was not asked may bring the name.
  if (s.catalogue->has<Optimizer>(o.name)) {
    ask<Optimizer>(s, "optimizer.name", o.name, rules, [&](const Optimizer& kind) { kind.check(o); });
  }
  if (s.catalogue->has<LearningRate>(o.schedule) && s.run.epochs == 0 && rules.sound({"run.steps"})) {
    ask<LearningRate>(s, "optimizer.schedule", o.schedule, rules,
                      [&](const LearningRate& kind) { kind.check(o, s.run.steps); });
  }
}

void check_memory(const MemorySettings& memory, Rules& rules) {
  rules.expect(memory.recompute != "fit" || memory.limit > 0, {"memory.recompute", "memory.limit"},
               "[memory] recompute: \"fit\" needs a limit to fit",
               "write limit = \"20 GiB\" (the memory that a rank's tensors may take), or recompute = \"none\"");
  rules.expect(memory.keep_micro_batches == 0 || memory.recompute == "selective" || memory.recompute == "full",
               {"memory.keep_micro_batches", "memory.recompute"},
               fmt::format("[memory] keep_micro_batches: with recompute = \"{}\" {}", memory.recompute,
                           memory.recompute == "fit" ? "it is chosen, not given" : "all micro-batches keep everything"),
               memory.recompute == "fit" ? "leave it out, or write recompute = \"full\" (or \"selective\")"
                                         : "write recompute = \"full\" (or \"selective\"), or leave it out");
}

// What a kind says of the value of one of its keys, whether it is chosen or not.
void check_values(const Config& config, const std::vector<CoreKey>& keys, Rules& rules) {
  for (const CoreKey& key : keys) {
    const Value& value = config.table(key.table).entries().at(key.spec.name).value;
    if (const std::string wrong = key.wrong ? key.wrong(value) : ""; !wrong.empty()) {
      const std::size_t end = std::min(wrong.find('\n'), wrong.size());
      rules.expect(false, {key.table + "." + key.spec.name},
                   fmt::format("[{}] {}: {}", key.table, key.spec.name, wrong.substr(0, end)),
                   wrong.substr(std::min(end + 1, wrong.size())));
    }
  }
}

// A configuration that a run keeps has the whole table, and commands that read it put "none" for its data.
void check_preference(const Config& config, const std::vector<CoreKey>& keys, Rules& rules) {
  const Settings& s = config.settings;
  const bool asked = std::any_of(keys.begin(), keys.end(), [&](const CoreKey& key) {
    return key.table == "preference" &&
           config.table(key.table).entries().at(key.spec.name).value != key.spec.default_value;
  });
  const bool fits = s.data.source == "synthetic" || s.data.source == "none" || s.data.source == "pairs";
  rules.expect(!asked || fits, {"data.source"},
               fmt::format("[data] source: [preference] compares pairs of answers, and \"{}\" has none", s.data.source),
               "write source = \"pairs\", or leave out [preference]");
}

void check_objective(const Settings& s, Rules& rules) {
  if (!s.catalogue->has<Objective>(objective_name(s))) {
    return;  // its plugin was not asked, or the name is refused by itself
  }
  const Objective& objective = objective_of(s);
  for (const Refusal& refusal : objective.refusals(s)) {
    rules.expect(false, refusal.keys, refusal.message, refusal.advice);
  }
  const ReferenceModel reference = objective.reference(s);
  const KeyValues& distil = kind_values(s, "distil");
  const auto teacher = distil.find("teacher");
  const std::string named = teacher == distil.end() ? "" : std::get<std::string>(teacher->second);
  rules.expect(named.empty() || s.train.objective.empty() || reference.folder == named,
               {"train.objective", "distil.teacher"},
               fmt::format("[train] objective: \"{}\" does not learn from [distil] teacher", s.train.objective),
               "leave objective out, or [distil]");
  rules.expect(
      reference.folder.empty() || !s.run.graphs, {"run.graphs"},
      fmt::format("[run] graphs: a step with a {} is not recorded", reference.measures ? "reference model" : "teacher"),
      "leave out graphs");
}

// A source gives tokens of every space of the model, and of no other.
void check_spaces(const Settings& s, const ModelKind& kind, Rules& rules) {
  if (!s.catalogue->has<Source>(s.data.source)) {
    return;
  }
  std::vector<std::string> wanted, fitting;
  for (const Space& space : kind.spaces(s)) {
    wanted.push_back(space.name);
  }
  for (const std::string& name : s.catalogue->names<Source>()) {
    if (s.catalogue->get<Source>(name).spaces(s) == wanted) {
      fitting.push_back('"' + name + '"');
    }
  }
  const std::vector<std::string> given = s.catalogue->get<Source>(s.data.source).spaces(s);
  rules.expect(given == wanted, {"data.source", "model.kind"},
               fmt::format("[data] source: \"{}\" gives {}, and a model of kind \"{}\" reads {}", s.data.source,
                           fmt::join(given, " and "), s.model.kind, fmt::join(wanted, " and ")),
               fitting.empty() ? "load a plugin that brings such a source"
                               : fmt::format("write source = {}", fmt::join(fitting, " or ")));
}

void check_model_kind(const Settings& s, Rules& rules) {
  if (s.catalogue->has<ModelKind>(s.model.kind)) {  // else its plugin was not asked, or the name is refused by itself
    const ModelKind& kind = s.catalogue->get<ModelKind>(s.model.kind);
    for (const Refusal& refusal : kind.refusals(s)) {
      rules.expect(false, refusal.keys, refusal.message, refusal.advice);
    }
    check_spaces(s, kind, rules);
  }
}

}  // namespace

std::vector<std::string> warnings(const Settings& s) {
  std::vector<std::string> found;
  const bool known = s.catalogue->has<Gate>(s.moe.router);  // false where its plugin was not asked
  const std::string of_gate = s.moe.experts > 0 && known ? gate_of(s).warning(s) : "";
  if (!of_gate.empty()) {
    found.push_back(of_gate);
  }
  const bool steps_known = s.run.epochs == 0;
  if (steps_known && s.optimizer.warmup_steps > s.run.steps) {
    found.push_back(
        fmt::format("optimizer.warmup_steps = {} is above run.steps = {}: the run ends before the learning rate has "
                    "risen to optimizer.lr = {:g}",
                    s.optimizer.warmup_steps, s.run.steps, s.optimizer.lr));
  }
  const RunSettings& run = s.run;
  if (steps_known && first_largest_step(s.batch) >= run.steps) {
    found.push_back(
        fmt::format("batch.grow_after: the batch grows to {} sequences after {} steps, and the run has {} (run.steps)",
                    largest_batch(s.batch), first_largest_step(s.batch), run.steps));
  }
  if (!s.data.validation_path.empty() && run.validate_every == 0) {
    found.push_back("data.validation_path names validation sets, and run.validate_every = 0: they are never measured");
  }
  if (run.keep_every > 0 && (run.checkpoint_every == 0 || run.keep_every % run.checkpoint_every != 0)) {
    found.push_back(
        fmt::format("run.keep_every = {} is no multiple of run.checkpoint_every = {}: it keeps what is written, and no "
                    "checkpoint is written after most of its multiples",
                    run.keep_every, run.checkpoint_every));
  }
  if (run.checkpoint_async && run.checkpoint_every == 0) {
    found.push_back(
        "run.checkpoint_async changes nothing with run.checkpoint_every = 0: the only checkpoint is the last one, "
        "which "
        "is waited for");
  }
  return found;
}

void validate(const Config& config, const std::vector<CoreKey>& keys, const std::set<std::string>& broken,
              Diagnostics& diagnostics) {
  Rules rules(config, broken, diagnostics);
  check_run(config.settings.run, rules);
  check_graphs(config, rules);
  check_data(config, rules);
  check_model(config.settings, rules);
  check_moe(config, rules);
  check_optimizer(config.settings, rules);
  check_memory(config.settings.memory, rules);
  check_values(config, keys, rules);
  check_preference(config, keys, rules);
  check_objective(config.settings, rules);
  check_model_kind(config.settings, rules);
}

}  // namespace orthant
