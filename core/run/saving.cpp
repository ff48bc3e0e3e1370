#include "core/run/saving.h"

#include <algorithm>
#include <set>

#include "core/layers/parameters.h"
#include "core/owned_pieces.h"
#include "core/run/host_collectives.h"

namespace orthant {
namespace {

constexpr const char* moment1_prefix = "optimizer/moment1/";
constexpr const char* moment2_prefix = "optimizer/moment2/";

// The tensors of a group that a checkpoint holds, with the prefix of their names.
struct StateTensor {
  const char* prefix;
  Tensor tensor;  // f32 [owned]
};

std::vector<StateTensor> state_of(const ParamGroup& group) {
  std::vector<StateTensor> found = {{"", group.master}, {moment1_prefix, group.moment1}};
  if (group.moment2.defined()) {
    found.push_back({moment2_prefix, group.moment2});
  }
  return found;
}

SliceMeta slice_of(const char* prefix, const Param& p, const OwnedPiece& piece) {
  SliceMeta meta{.name = prefix + p.spec.name, .dtype = DType::f32, .global = p.spec.global, .offset = {}, .size = {}};
  for (int i = 0; i < p.spec.global.rank(); ++i) {
    meta.offset.push_back(piece.offset[i]);
    meta.size.push_back(piece.size[i]);
  }
  return meta;
}

}  // namespace

std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, ParamStore& store,
                                      const std::map<std::string, std::string>& state, Group& world, Stream& stream,
                                      const std::function<void()>& before_commit) {
  CheckpointWriter writer(root, step, world.rank(), world.size());
  for (const auto& group : store.groups()) {
    for (const StateTensor& part : state_of(*group)) {
      for (const Param& p : group->params) {
        if (!p.counted || !group->owner) {
          continue;
        }
        for (const OwnedPiece& piece : owned_pieces(*group, p)) {
          const Tensor t = part.tensor.slice(piece.begin, {piece.elements()});
          writer.add(slice_of(part.prefix, p, piece), [t, &stream](void* out) { stream.download(out, t); });
        }
      }
    }
  }
  const std::vector<std::string> parts = gather_texts(writer.finish(), world, stream);
  std::filesystem::path folder;
  if (world.rank() == 0) {
    folder = writer.commit(parts, state, before_commit);
  }
  world.barrier(stream);
  stream.synchronize();
  return folder;
}

void load_checkpoint(const CheckpointReader& reader, const Plan& plan, ParamStore& store, Stream& stream) {
  std::vector<float> host;
  for (const auto& group : store.groups()) {
    for (const StateTensor& part : state_of(*group)) {
      for (const Param& p : group->params) {
        const std::string name = part.prefix + p.spec.name;
        require(reader.has(name), "the checkpoint of step {} has no '{}': it is of another model or optimizer",
                reader.step(), name);
        const CheckpointReader::TensorInfo info = reader.info(name);
        require(info.shape == p.spec.global && info.dtype == DType::f32,
                "the checkpoint's '{}' is {} {}, this model's is f32 {}: model or configuration differ", name,
                name_of(info.dtype), info.shape.to_string(), p.spec.global.to_string());
        for (const OwnedPiece& piece : owned_pieces(*group, p)) {
          const SliceMeta meta = slice_of(part.prefix, p, piece);
          host.resize(static_cast<std::size_t>(piece.elements()));
          reader.read(name, meta.offset, meta.size, host.data());
          stream.upload(part.tensor.slice(piece.begin, {piece.elements()}), host.data());
        }
      }
    }
  }
  store.refresh_weights(plan, stream);
}

void require_same_parameters(const CheckpointReader& reader, const Settings& settings) {
  std::set<std::string> known;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      known.insert({spec.name, moment1_prefix + spec.name});
      if (settings.optimizer.name == OptimizerKind::adamw) {
        known.insert(moment2_prefix + spec.name);
      }
    }
  }
  for (const std::string& name : reader.names()) {
    require(known.contains(name),
            "the checkpoint of step {} has '{}', which this model or optimizer has not: it is of another one",
            reader.step(), name);
  }
}

}  // namespace orthant
