#include "core/run/saving_parts.h"

#include <utility>

#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "core/run/file_work.h"
#include "core/run/plugin_state.h"

namespace orthant {

std::string name_in_checkpoint(const std::string& state, const std::string& parameter) {
  return fmt::format("{}{}/{}", state.starts_with("plugins/") ? "" : "optimizer/", state, parameter);
}

// Under the names of the first worker.
SliceMeta slice_of(const StatePiece& part, const Param& p) {
  const OwnedPiece& piece = part.piece;
  SliceMeta meta{.name = part.state.empty() ? p.spec.name : name_in_checkpoint(part.state, p.spec.name),
                 .dtype = part.dtype(),
                 .global = part.global,
                 .offset = {},
                 .size = {}};
  for (int i = 0; i < part.global.rank(); ++i) {
    meta.offset.push_back(piece.offset[i]);
    meta.size.push_back(piece.size[i]);
  }
  return meta;
}

namespace {

// A keeper may have the state elsewhere: it is there when a slice is written, and only then.
void add_state(CheckpointWriter& writer, const std::vector<WrittenRun>& runs, const Plan& plan, const HookContext& at) {
  const auto pieces = [](const WrittenRun& run) { return state_pieces(*run.group, *run.param, run.begin, run.end); };
  for (const WrittenRun& run : runs) {
    std::vector<SliceMeta> slices;
    with_held(plan.keepers(), *run.group, Held::saved, at, [&](Stream&) {
      for (const StatePiece& part : pieces(run)) {
        slices.push_back(slice_of(part, *run.param));
      }
    });
    for (std::size_t i = 0; i < slices.size(); ++i) {
      slices[i].name = worker_prefix(plan.mesh().worker()) + slices[i].name;
      writer.add(slices[i], [i, run, pieces, &plan, at](void* out) {
        with_held(plan.keepers(), *run.group, Held::saved, at, [&](Stream& home) {
          const StatePiece part = pieces(run)[i];
          part.download(out, part.stream(at.stream, home));
        });
      });
    }
  }
}

void add_gate_states(CheckpointWriter& writer, const Plan& plan, const ParamStore& store, Stream& stream) {
  for (const GateState& state : store.gate_states()) {
    if (state.written) {
      const std::int64_t experts = state.value.dim(0);
      const std::string name = worker_prefix(plan.mesh().worker()) + state.name;
      writer.add({.name = name, .dtype = DType::f32, .global = {experts}, .offset = {0}, .size = {experts}},
                 [t = state.value, &stream](void* out) { stream.download(out, t); });
    }
  }
}

}  // namespace

void add_saved(CheckpointWriter& writer, const std::vector<WrittenRun>& runs, const Plan& plan, ParamStore& store,
               const HookContext& at) {
  add_state(writer, runs, plan, at);
  for (const auto& group : store.groups()) {
    add_plugin_states(writer, *group, plan, at);
  }
  add_gate_states(writer, plan, store, at.stream);
}

std::map<std::string, std::string> with_layout(std::map<std::string, std::string> state, const Plan& plan) {
  state.emplace("layout", layout_text(plan));
  return state;
}

// Why no checkpoint may appear any more, such as that another job has taken the folder: what fails there fails by that.
// Empty: it may.
std::string refusal_of(const std::function<void()>& before_commit, const SavingRanks& ranks) {
  try {
    if (before_commit) {
      const FileWork work(ranks.communicator, ranks.disk_timeout_seconds);
      before_commit();
    }
  } catch (const std::exception& refusal) {
    return refusal.what();
  }
  return "";
}

void fail_save(const std::string& failure, CheckpointWriter& writer, const std::function<void()>& before_commit,
               const SavingRanks& ranks) {
  const std::string refusal = refusal_of(before_commit, ranks);
  const bool new_reason = !refusal.empty() && refusal != failure;
  const std::string reason = new_reason ? fmt::format("{} ({})", failure, refusal) : failure;
  // First the others are told: a disk that fails may hold up this rank for long.
  ranks.communicator.abort(reason);
  writer.abandon(refusal.empty());
  throw Error(reason);
}

}  // namespace orthant
