#include "core/run/saving.h"

#include <algorithm>
#include <optional>
#include <set>

#include "core/arch/parameter_table.h"
#include "core/layers/owned_pieces.h"
#include "core/layers/parameter_state.h"
#include "core/run/file_work.h"
#include "core/run/written_runs.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

std::string name_in_checkpoint(const std::string& state, const std::string& parameter) {
  return fmt::format("optimizer/{}/{}", state, parameter);
}

SliceMeta slice_of(const StatePiece& part, const Param& p) {
  const OwnedPiece& piece = part.piece;
  SliceMeta meta{.name = part.state.empty() ? p.spec.name : name_in_checkpoint(part.state, p.spec.name),
                 .dtype = part.values.dtype(),
                 .global = p.spec.global,
                 .offset = {},
                 .size = {}};
  for (int i = 0; i < p.spec.global.rank(); ++i) {
    meta.offset.push_back(piece.offset[i]);
    meta.size.push_back(piece.size[i]);
  }
  return meta;
}

void add_state(CheckpointWriter& writer, const std::vector<WrittenRun>& runs, Stream& stream) {
  for (const WrittenRun& run : runs) {
    for (const StatePiece& part : state_pieces(*run.group, *run.param, run.begin, run.end)) {
      const Tensor t = part.values;
      writer.add(slice_of(part, *run.param), [t, &stream](void* out) { stream.download(out, t); });
    }
  }
}

void add_gate_states(CheckpointWriter& writer, const ParamStore& store, Stream& stream) {
  for (const GateState& state : store.gate_states()) {
    if (state.written) {
      const std::int64_t experts = state.value.dim(0);
      writer.add({.name = state.name, .dtype = DType::f32, .global = {experts}, .offset = {0}, .size = {experts}},
                 [t = state.value, &stream](void* out) { stream.download(out, t); });
    }
  }
}

void load_gate_states(const CheckpointReader& reader, const ParamStore& store, Stream& stream) {
  for (const GateState& state : store.gate_states()) {
    require(reader.has(state.name), "the checkpoint of step {} has no '{}': it is of another gate", reader.step(),
            state.name);
    const CheckpointReader::TensorInfo info = reader.info(state.name);
    require(info.shape == state.value.shape() && info.dtype == DType::f32,
            "the checkpoint's '{}' is {} {}, this model's is f32 {}", state.name, name_of(info.dtype),
            info.shape.to_string(), state.value.shape().to_string());
    std::vector<float> host(static_cast<std::size_t>(state.value.elements()));
    reader.read(state.name, {0}, {state.value.elements()}, host.data());
    stream.upload(state.value, host.data());
  }
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

}  // namespace

std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, const Plan& plan,
                                      ParamStore& store, const std::map<std::string, std::string>& state,
                                      const SavingRanks& ranks, Stream& stream,
                                      const std::function<void()>& before_commit) {
  Group& world = ranks.world;
  const std::vector<WrittenRun> runs = written_runs(store, plan, world, stream);
  stream.synchronize();  // from here on it is the disk that a rank is busy with
  std::optional<CheckpointWriter> writer;
  try {
    std::string part;
    {
      const FileWork work(ranks.communicator, ranks.disk_timeout_seconds);
      writer.emplace(root, step, world.rank(), world.size());
      add_state(*writer, runs, stream);
      add_gate_states(*writer, store, stream);
      part = writer->finish();
    }
    const std::vector<std::string> parts = gather_texts(part, world, stream);
    std::filesystem::path folder;
    if (world.rank() == 0) {
      const FileWork work(ranks.communicator, ranks.disk_timeout_seconds);
      folder = writer->commit(parts, state, before_commit);
    }
    world.barrier(stream);
    stream.synchronize();
    return folder;
  } catch (const std::exception& failure) {
    const std::string refusal = refusal_of(before_commit, ranks);
    const bool new_reason = !refusal.empty() && refusal != failure.what();
    const std::string reason = new_reason ? fmt::format("{} ({})", failure.what(), refusal) : failure.what();
    // First the others are told: a disk that fails may hold up this rank for long.
    ranks.communicator.abort(reason);
    if (writer.has_value()) {
      writer->abandon(refusal.empty());
    }
    throw Error(reason);
  }
}

void load_checkpoint(const CheckpointReader& reader, const Plan& plan, ParamStore& store, Stream& stream) {
  std::vector<std::byte> host;
  for (const auto& group : store.groups()) {
    for (const Param& p : group->params) {
      for (const StatePiece& part : state_pieces(*group, p)) {
        const SliceMeta meta = slice_of(part, p);
        require(reader.has(meta.name), "the checkpoint of step {} has no '{}': it is of another model or optimizer",
                reader.step(), meta.name);
        const CheckpointReader::TensorInfo info = reader.info(meta.name);
        require(info.shape == meta.global && info.dtype == meta.dtype,
                "the checkpoint's '{}' is {} {}, this model's is {} {}: model or configuration differ", meta.name,
                name_of(info.dtype), info.shape.to_string(), name_of(meta.dtype), meta.global.to_string());
        host.resize(part.values.bytes());
        reader.read(meta.name, meta.offset, meta.size, host.data());
        stream.upload(part.values, host.data());
      }
    }
  }
  load_gate_states(reader, store, stream);
  store.refresh_weights(plan, stream);
}

void require_same_parameters(const CheckpointReader& reader, const Settings& settings) {
  std::set<std::string> known;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      known.insert(spec.name);
      for (const OptimizerState& state : treatment_of(spec, settings).states) {
        known.insert(name_in_checkpoint(state.name, spec.name));
      }
    }
  }
  for (const GateStateSpec& state : gate_state_table(settings)) {
    known.insert(state.name);
  }
  for (const std::string& name : reader.names()) {
    require(known.contains(name),
            "the checkpoint of step {} has '{}', which this model or optimizer has not: it is of another one",
            reader.step(), name);
  }
}

}  // namespace orthant
