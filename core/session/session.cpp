#include "core/session/session.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "core/arch/links.h"
#include "core/config/check_trained.h"
#include "core/layers/attention.h"
#include "core/layers/parameter_store.h"
#include "core/plan/batch_share.h"
#include "core/plan/named_seams.h"
#include "core/plan/recompute_rule.h"
#include "core/plan/schedule_check.h"
#include "core/plan/units_error.h"
#include "core/session/teacher_config.h"
#include "router/routing_layout.h"

namespace orthant {

std::vector<KeySpec> keys_of_plugin(const PluginRequest& request) {
  return plugin_keys(request.name, request.path);
}

void kinds_of_plugin(const PluginRequest& request, Catalogue& catalogue) {
  add_plugin_kinds(request.name, request.path, request.table, catalogue);
}

namespace {

// The setting that says how many of what does not divide there are.
const char* setting_of(const Settings& s, const LayoutError& refused) {
  const auto* units = dynamic_cast<const UnitsError*>(&refused);
  switch (*refused.dim()) {
    case Dim::batch: return "batch.sequences";
    case Dim::position: return "data.sequence_length";
    case Dim::head:
      if (units == nullptr || units->units() == s.model.heads) {
        return "model.heads";
      }
      // A norm over all heads has one unit.
      return units->units() == 1 && read_keys<MultiHeadKeys>(s.model.own).qk_norm_over == QkNormOver::all
                 ? "model.qk_norm_over"
                 : "model.kv_heads";
    case Dim::ffn: {
      const bool of_experts = units != nullptr && (units->region() == Region::experts || units->units() != d_ff_of(s));
      if (of_experts && s.moe.d_shared != 0 && units->region() != Region::experts) {
        return "moe.d_shared";
      }
      return of_experts && s.moe.d_expert != 0 ? "moe.d_expert" : "model.d_ff";
    }
    case Dim::vocab: return "model.vocab_size";
    case Dim::expert: return "moe.experts";
    case Dim::layer: return "model.layers";
  }
  return "";
}

// "default" as well where there is no such table: in a configuration that was made by hand, or where a plugin was
// loaded by another name than it gives its settings.
std::string origin_of(const Config& config, const std::string& setting) {
  try {
    return config.origin(setting);
  } catch (const Error&) {
    return "default";
  }
}

// Of the element of a list, where one is refused.
std::string origin_of(const Config& config, const SettingError& refused) {
  const auto list = config.element_origins.find(refused.setting());
  const bool known =
      refused.element().has_value() && list != config.element_origins.end() && *refused.element() < list->second.size();
  return known ? list->second[*refused.element()] : origin_of(config, refused.setting());
}

std::string nearest_of(const Config& config, const std::string& setting) {
  try {
    return config.nearest_origin(setting);
  } catch (const Error&) {
    return "default";
  }
}

bool is_written(const std::string& origin) {
  return origin != "default";
}

// Where to change what was refused: at the size of the axis, else at the setting that it should divide, else at
// `otherwise`. By convention an axis has the name of its plugin, and the plugin a key `size`.
std::string place_of(const Config& config, const LayoutError& refused, const std::string& otherwise) {
  for (const PluginRequest& plugin : config.plugins) {
    if (plugin.name == refused.axis() && plugin.table.entries().contains("size")) {
      const std::string& size = plugin.table.origin("size");
      return is_written(size) ? size : plugin.origin;
    }
  }
  const std::string setting =
      refused.dim().has_value() ? origin_of(config, setting_of(config.settings, refused)) : "default";
  return is_written(setting) ? setting : otherwise;
}

std::string advice_for(const Config& config, const LayoutError& refused) {
  if (!refused.dim().has_value()) {
    return fmt::format("change [plugins.{}] size", refused.axis());
  }
  const char* setting = setting_of(config.settings, refused);
  return fmt::format("change [plugins.{}] size, or {} (from {})", refused.axis(), setting, origin_of(config, setting));
}

// Runs a phase, and adds what it refuses; `origin` is used where the refusal itself does not say where.
template <class Phase>
void collect(const Config& config, const std::string& origin, Diagnostics& to, Phase phase) {
  try {
    phase();
  } catch (const LayoutError& refused) {
    to.add(place_of(config, refused, origin), refused.what(), advice_for(config, refused));
  } catch (const SettingError& refused) {
    const std::string written = origin_of(config, refused), text = refused.what();
    const std::size_t end = std::min(text.find('\n'), text.size());  // the rest is advice
    to.add(is_written(written)  ? written
           : is_written(origin) ? origin
                                : nearest_of(config, refused.setting()),
           text.substr(0, end), end < text.size() ? text.substr(end + 1) : "change " + refused.setting());
  } catch (const ConfigError& refused) {
    to.add(origin, refused.what());
  }
}

template <class Phase>
void run_phase(const Config& config, const std::string& origin, Phase phase) {
  Diagnostics diagnostics = config.diagnostics();
  collect(config, origin, diagnostics, phase);
  diagnostics.throw_if_any();
}

}  // namespace

Session::Session(const Config& config) : config_(config) {
  for (const PluginRequest& request : config.plugins) {
    run_phase(config, request.origin, [&] {
      plugins_.push_back(create<Plugin>(find_module("plugin", request.name, request.path)));
      const std::size_t axes = mesh_.axes().size();
      as_plugin(request.name, "claim its axes", [&] { plugins_.back()->claim(mesh_, request.table); });
      decides_.push_back(mesh_.axes().size() > axes);
    });
  }
  run_phase(config, "default", [&] { mesh_.freeze(); });
}

std::vector<Mathematics> Session::mathematics() const {
  std::vector<Mathematics> found;
  for (const PluginPtr& plugin : plugins_) {
    found.push_back(plugin->mathematics());
  }
  return found;
}

std::vector<std::vector<KeyChange>> Session::smaller() const {
  std::vector<std::vector<KeyChange>> found;
  for (const PluginPtr& plugin : plugins_) {
    found.push_back(plugin->smaller());
  }
  return found;
}

std::vector<std::int64_t> Session::likeness(int rank) const {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < plugins_.size(); ++i) {
    found.push_back(decides_[i] ? plugins_[i]->likeness(mesh_, rank) : 0);
  }
  return found;
}

void Session::plan(int rank, Communicator* communicator, Device* device) {
  Diagnostics refused = config_.diagnostics();
  plan(rank, communicator, device, refused);
  refused.throw_if_any();
}

void Session::plan(int rank, Communicator* communicator, Device* device, Diagnostics& refused) {
  mesh_.place(rank, communicator);
  plan_ = std::make_unique<Plan>(config_.settings, mesh_, device);
  plan_->share_links(links_);
  if (core_ != nullptr) {
    plan_->bind(std::move(core_));
  }
  for (std::size_t i = 0; i < plugins_.size(); ++i) {
    plan_->set_current_plugin(config_.plugins[i].name);
    const std::size_t bound = plan_->bound();
    collect(config_, config_.plugins[i].origin, refused,
            [&] { as_plugin(config_.plugins[i].name, "bind its seams", [&] { plugins_[i]->plan(*plan_, mesh_); }); });
    decides_[i] = decides_[i] || plan_->bound() > bound;
  }
  collect(config_, "default", refused, [&] {
    if (config_.settings.run.skip_not_finite > 0 && mesh_.workers() > 1) {
      throw SettingError("run.skip_not_finite",
                         fmt::format("[run] skip_not_finite: {} workers train by themselves, and each would pass over "
                                     "other steps\nwrite 0",
                                     mesh_.workers()));
    }
  });
  if (refused.empty()) {
    collect(config_, "default", refused, [&] { plan_->freeze(); });
  }
}

namespace {

// Every slice that the layout would cut, each refusal once: the blocks are alike.
void check_slices(const Config& config, const Plan& plan, Diagnostics& refused) {
  std::set<std::pair<std::string, std::string>> known;  // axis and setting
  const auto check = [&](auto ask) {
    collect(config, "default", refused, [&] {
      try {
        ask();
      } catch (const LayoutError& error) {
        if (known.insert({error.axis(), error.dim() ? setting_of(config.settings, error) : ""}).second) {
          throw;
        }
      }
    });
  };
  for (int space = 0; space < static_cast<int>(plan.spaces().size()); ++space) {
    check([&] { plan.positions(Region::embedding, 0, space); });
  }
  const auto cut_alike = [](const ParamSpec& a, const ParamSpec& b) {
    return a.region == b.region && a.global == b.global && a.repeats == b.repeats &&
           a.expert.has_value() == b.expert.has_value() && std::equal(a.split, a.split + 2, b.split) &&
           std::equal(a.units, a.units + 2, b.units);
  };
  std::vector<const ParamSpec*> seen;  // each kind of parameter is asked for once
  for (const LayerSpecs& layer : parameters_of(plan.links())) {
    for (const ParamSpec& spec : layer.params) {
      if (std::any_of(seen.rbegin(), seen.rend(), [&](const ParamSpec* other) { return cut_alike(*other, spec); })) {
        continue;
      }
      seen.push_back(&spec);
      check([&] {
        Param param{.spec = spec};
        plan.place(param);
      });
      check([&] {  // what would come to light once experts divide
        Param param{.spec = spec};
        param.spec.expert.reset();
        plan.place(param);
      });
    }
  }
}

}  // namespace

namespace {

// The same axes divide the teacher.
void check_teacher(const Config& config) {
  Config teacher = teacher_config(config);
  teacher.settings.train.freeze.clear();  // a layout of parameters none of which trains is refused
  try {
    check_layout(teacher);
  } catch (const ConfigError& refused) {
    throw ConfigError(
        fmt::format("{}: '{}' cannot be divided as this layout divides the model that "
                    "learns from it: {}",
                    teacher_of(config.settings).key, teacher_of(config.settings).folder, refused.what()));
  }
}

// A teacher has no depth of multi-token prediction, and its head is on the last stage. An objective that takes no
// depths refuses them by itself.
void check_heads_meet(const Plan& plan) {
  const Settings& settings = plan.settings();
  const int stage = plan.stage_of_layer(head_of(plan.links()).number);
  const std::vector<Refusal> refusals = objective_of(settings).refusals(settings);
  const bool refused = std::any_of(refusals.begin(), refusals.end(),
                                   [](const Refusal& refusal) { return refusal.keys.front() == "model.mtp_depth"; });
  if (stage != plan.stages() - 1 && !refused) {
    throw SettingError(
        "model.mtp_depth",
        fmt::format("model.mtp_depth: its blocks have the last of {} stages to themselves, and the head, "
                    "on stage {}, is not where the teacher's is\nwrite fewer stages, mtp_depth = 0, or "
                    "leave [distil] out",
                    plan.stages(), stage));
  }
}

}  // namespace

int check_layout(const Config& config) {
  run_phase(config, "default", [&] { check_trained(config.settings); });  // a part may refuse the settings, too
  Session session(config);
  Diagnostics refused = config.diagnostics();
  session.plan(0, nullptr, nullptr, refused);
  std::vector<BatchShare> shares;
  collect(config, "default", refused, [&] { shares = batch_shares(session.plan()); });
  collect(config, "default", refused, [&] { check_routed_rows(session.plan()); });
  collect(config, "default", refused, [&] { model_kind(config.settings).groups(session.plan()); });
  if (!session.plan().cut().empty()) {
    check_slices(config, session.plan(), refused);
  }
  // Keepers may refuse a group that only a later stage has.
  const std::vector<int> line = session.mesh().members(session.plan().axes_of(Dim::layer, Region::norm), 0);
  for (int stage = 0; stage < session.plan().stages() && refused.empty(); ++stage) {
    const int rank = line.at(static_cast<std::size_t>(stage));
    Session there(config);
    there.share_links(session.plan().shared_links());
    there.plan(rank, nullptr, nullptr, refused);
    if (refused.empty()) {
      collect(config, "default", refused, [&] { ParamStore store(there.plan()); });
    }
  }
  refused.throw_if_any();
  const Plan& plan = session.plan();
  if (has_teacher(config)) {
    run_phase(config, origin_of(config, teacher_of(config.settings).setting), [&] { check_teacher(config); });
    run_phase(config, origin_of(config, "model.mtp_depth"), [&] { check_heads_meet(plan); });
  }
  const int chunks = static_cast<int>(plan.cut().size() - 1) / plan.stages();
  for (const BatchShare& share : shares) {
    check_programs(programs_of(plan.schedule(), plan.stages(), chunks, share.micro_batches));
  }
  return session.world_size();
}

namespace {

// Tokens, layers, or a parameter of this model.
bool divides_something(const Plan& plan, AxisId axis) {
  const Mesh& mesh = plan.mesh();
  for (const Region region : {Region::embedding, Region::norm, Region::attention, Region::attention_core, Region::ffn,
                              Region::router, Region::experts, Region::head}) {
    for (const Dim dim : {Dim::batch, Dim::position, Dim::layer}) {
      if (mesh.splits(axis, dim, region)) {
        return true;
      }
    }
  }
  for (const LayerSpecs& layer : parameters_of(plan.links())) {
    for (const ParamSpec& spec : layer.params) {
      const std::vector<AxisId> axes = plan.axes_of(spec);
      if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> layout_notes(const Config& config) {
  std::vector<std::string> notes;
  for (const PluginRequest& request : config.plugins) {
    const Module loaded = find_module("plugin", request.name, request.path);
    if (request.name != loaded.entry->name) {
      notes.push_back(
          fmt::format("[plugins.{}] loads {}, which is plugin '{}': write [plugins.{}], the name by which it "
                      "reports its keys and its axis",
                      request.name, loaded.file.string(), loaded.entry->name, loaded.entry->name));
    }
  }
  Session session(config);
  session.plan(0, nullptr, nullptr);
  const std::optional<Config> teacher =
      has_teacher(config) ? std::optional<Config>(teacher_config(config)) : std::nullopt;
  std::optional<Session> beside;
  if (teacher.has_value()) {
    beside.emplace(*teacher);
    beside->plan(0, nullptr, nullptr);
  }
  const std::vector<AxisSpec>& axes = session.mesh().axes();
  for (AxisId axis = 0; axis < static_cast<AxisId>(axes.size()); ++axis) {
    const AxisSpec& spec = axes[axis];
    const bool divides =
        divides_something(session.plan(), axis) || (beside.has_value() && divides_something(beside->plan(), axis));
    if (spec.size > 1 && !divides) {
      notes.push_back(fmt::format("axis '{}' has {} ranks and divides nothing of this model: they all do the same work",
                                  spec.name, spec.size));
    }
  }
  if (const std::int64_t keep = config.settings.memory.keep_micro_batches; keep > 0) {
    if (const int most = most_in_flight(session.plan()); keep >= most) {
      notes.push_back(
          fmt::format("memory.keep_micro_batches = {}: no stage has more than {} in flight at once, so all "
                      "keep everything, and memory.recompute = \"{}\" does nothing",
                      keep, most, config.settings.memory.recompute));
    }
  }
  return notes;
}

}  // namespace orthant
