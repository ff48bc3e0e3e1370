#include "core/run/saving.h"

#include <orthant/gate.h>
#include <orthant/weight_average.h>

#include <algorithm>
#include <set>

#include "core/arch/links.h"
#include "core/arch/trained.h"
#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "core/run/file_work.h"
#include "core/run/plugin_state.h"
#include "core/run/saving_parts.h"
#include "core/run/written_runs.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// As the first worker has it.
std::string own_name(const std::string& name) {
  return name.substr(name.starts_with("worker") ? name.find('/') + 1 : 0);
}

enum class Loaded { everything, weights };

void load_gate_states(const CheckpointReader& reader, const Plan& plan, const ParamStore& store, Stream& stream,
                      Loaded what) {
  for (const GateState& state : store.gate_states()) {
    const std::string name = name_for_worker(reader, plan.mesh().worker(), state.name);
    if (what == Loaded::weights && is_mtp(state.name) && !reader.has(name)) {
      continue;
    }
    require(reader.has(name), "the checkpoint of step {} has no '{}': it is of another gate", reader.step(), name);
    const CheckpointReader::TensorInfo info = reader.info(name);
    require(info.shape == state.value.shape() && info.dtype == DType::f32,
            "the checkpoint's '{}' is {} {}, this model's is f32 {}", name, name_of(info.dtype), info.shape,
            state.value.shape());
    std::vector<float> host(state.value.elements());
    reader.read(name, {0}, {state.value.elements()}, host.data());
    stream.upload(state.value, host.data());
  }
}

}  // namespace

bool has_averages(const CheckpointReader& reader) {
  const std::vector<std::string> names = reader.names();
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return own_name(name).starts_with(averages_prefix); });
}

bool is_parameter_name(const std::string& name) {
  return !name.starts_with("optimizer/") && !name.starts_with("plugins/") && !name.starts_with("worker") &&
         !name.starts_with(gate_state_prefix);
}

std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, const Plan& plan,
                                      ParamStore& store, const std::map<std::string, std::string>& state,
                                      const SavingRanks& ranks, Stream& stream,
                                      const std::function<void()>& before_commit) {
  Group& world = ranks.world;
  const std::vector<WrittenRun> runs = written_runs(store, plan, world, stream);
  stream.synchronize();  // from here on it is the disk that a rank is busy with
  CheckpointWriter writer(root, step, world.rank(), world.size());
  try {
    std::string part;
    {
      const FileWork work(ranks.communicator, ranks.disk_timeout_seconds);
      add_saved(writer, runs, plan, store, {.stream = stream, .step = step});
      part = writer.finish();
    }
    const std::vector<std::string> parts = gather_texts(part, world, stream);
    std::filesystem::path folder;
    if (world.rank() == 0) {
      const FileWork work(ranks.communicator, ranks.disk_timeout_seconds);
      folder = writer.commit(parts, with_layout(state, plan), before_commit);
    }
    world.barrier(stream);
    stream.synchronize();
    return folder;
  } catch (const std::exception& failure) {
    fail_save(failure.what(), writer, before_commit, ranks);
  }
}

namespace {

// home: on which the group's state lives. An average begins as the weight where it is not to be read.
void load_group(const CheckpointReader& reader, ParamGroup& group, const Plan& plan, Stream& home, Loaded what) {
  const int worker = plan.mesh().worker();
  std::vector<std::byte> host;
  for (const Param& p : group.params) {
    for (const StatePiece& part : state_pieces(group, p)) {
      const bool average = part.state == average_state;
      if (part.state.starts_with("plugins/") || (what == Loaded::weights && !part.state.empty() && !average)) {
        continue;  // load_plugin_states
      }
      SliceMeta meta = slice_of(part, p);
      meta.name = name_for_worker(reader, worker, meta.name);
      if (average && (what == Loaded::weights || !reader.has(meta.name))) {
        meta.name = name_for_worker(reader, worker, p.spec.name);
      }
      if (what == Loaded::weights && (is_adapter(p.spec.name) || is_mtp(p.spec.name)) && !reader.has(meta.name)) {
        continue;  // a new one keeps its initial values
      }
      if (what == Loaded::weights && may_begin_anew(plan.settings(), p.spec.name) &&
          !(reader.has(meta.name) && reader.info(meta.name).shape == meta.global)) {
        continue;
      }
      require(reader.has(meta.name), "the checkpoint of step {} has no '{}': it is of another model or optimizer",
              reader.step(), meta.name);
      const CheckpointReader::TensorInfo info = reader.info(meta.name);
      require(info.shape == meta.global && info.dtype == meta.dtype,
              "the checkpoint's '{}' is {} {}, this model's is {} {}: model or configuration differ", meta.name,
              name_of(info.dtype), info.shape, name_of(meta.dtype), meta.global);
      host.resize(static_cast<std::size_t>(part.piece.elements()) * size_of(meta.dtype));
      reader.read(meta.name, meta.offset, meta.size, host.data());
      part.upload(host.data(), p, plan.settings(), home);
    }
  }
}

void note_averages(const CheckpointReader& reader, const Settings& settings, std::set<std::string>& notes) {
  const bool wanted = settings.optimizer.ema_decay > 0;
  if (wanted && !has_averages(reader)) {
    notes.insert(fmt::format(
        "the checkpoint of step {} has no averages of the weights: they begin as its weights (optimizer.ema_decay)",
        reader.step()));
  } else if (!wanted && has_averages(reader)) {
    notes.insert(fmt::format(
        "the averages of the weights in the checkpoint of step {} are left out: optimizer.ema_decay is 0 here",
        reader.step()));
  }
}

}  // namespace

std::vector<std::string> load_checkpoint(const CheckpointReader& reader, const Plan& plan, ParamStore& store,
                                         Stream& stream) {
  const HookContext at{.stream = stream, .step = reader.step()};
  std::set<std::string> notes;
  for (const auto& group : store.groups()) {
    with_held(plan.keepers(), *group, Held::state, at,
              [&](Stream& home) { load_group(reader, *group, plan, home, Loaded::everything); });
    load_plugin_states(reader, *group, plan, stream, notes);
  }
  load_gate_states(reader, plan, store, stream, Loaded::everything);
  note_unknown_states(reader, store, notes);
  note_averages(reader, plan.settings(), notes);
  store.refresh_weights(plan, Change::loaded, at);
  return {notes.begin(), notes.end()};
}

void load_weights(const CheckpointReader& reader, const Plan& plan, ParamStore& store, Stream& stream) {
  const HookContext at{.stream = stream, .step = 0};
  for (const auto& group : store.groups()) {
    with_held(plan.keepers(), *group, Held::state, at,
              [&](Stream& home) { load_group(reader, *group, plan, home, Loaded::weights); });
  }
  load_gate_states(reader, plan, store, stream, Loaded::weights);
  store.refresh_weights(plan, Change::loaded, at);
}

void require_same_parameters(const CheckpointReader& reader, const Settings& settings) {
  std::set<std::string> known;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      known.insert(spec.name);
      known.insert(averages_prefix + spec.name);  // load_checkpoint says what becomes of it
      for (const OptimizerState& state : treatment_of(spec, settings).states) {
        known.insert(name_in_checkpoint(state.name, spec.name));
      }
    }
  }
  for (const GateStateSpec& state : gate_state_table(settings)) {
    known.insert(state.name);
  }
  for (const std::string& name : reader.names()) {
    const std::string own = own_name(name);
    require(
        own.starts_with("plugins/") || known.contains(own),
        "the checkpoint of step {} has '{}', which this model with optimizer \"{}\" has not: go on with the settings "
        "that wrote it (config.resolved.toml in its run)",
        reader.step(), name, settings.optimizer.name);
  }
}

}  // namespace orthant
