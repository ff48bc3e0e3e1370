#include "tests/support/experiment.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/check/experiment.h"
#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "parallel/local/local_communicator.h"

namespace orthant::test {
namespace {

// eps lies well above the rounding of a gradient: with a smaller one Adam's first step is nearly the sign of each
// gradient, and turns the rounding of one that is almost zero into a difference of the weights.
constexpr const char* base = R"(
[run]
steps = 10
timeout_seconds = 60
[data]
source = "synthetic"
sequence_length = 12
validation_sequences = 4
[batch]
sequences = 8
[model]
layers = 2
d_model = 16
heads = 4
d_ff = 16
vocab_size = 24
activation = "swiglu"
init_std = 0.2
[moe]
experts = 4
router = "topk"
top_k = 2
aux_loss = 0.02
z_loss = 0.01
[optimizer]
lr = 0.01
eps = 1e-5
schedule = "constant"
)";

}  // namespace

Config experiment(const Overrides& overrides, const std::string& plugins) {
  return config_from_text(base + plugins, overrides);
}

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::ostream& operator<<(std::ostream& out, const Model& model) {
  return out << model.name;
}

std::string refusal(const Overrides& overrides, const std::string& plugins) {
  try {
    return fmt::format("(accepted with {} ranks)", check_layout(experiment(overrides, plugins)));
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_configuration);
    return error.what();
  }
}

std::string axes(int data, int expert) {
  std::string text;
  if (data > 0) {
    text += fmt::format("[plugins.data]\nsize = {}\n", data);
  }
  if (expert > 0) {
    text += fmt::format("[plugins.expert]\nsize = {}\n", expert);
  }
  return text;
}

TestRank::TestRank(const Config& config, Communicator& communicator, const BatchSource* source)
    : device_(make_device(config.settings.run.device, 1)), stream_(device_->make_main_stream()), session_(config) {
  if (source == nullptr) {
    own_source_ = make_batch_source(config.settings);
    source = own_source_.get();
  }
  session_.plan(communicator.rank(), &communicator, device_.get());
  trainer_ = std::make_unique<Trainer>(session_.plan(), *stream_, *source);
}

std::vector<std::string> TestRank::names() {
  std::vector<std::string> names;
  for (const auto& group : trainer_->parameters().groups()) {
    for (const Param& p : group->params) {
      names.push_back(p.spec.name);
    }
  }
  return names;
}

std::vector<float> TestRank::read(Tensor ParamGroup::*flat, const std::string& name) {
  const auto found = trainer_->parameters().find(name);
  require(found.group != nullptr, "this rank does not hold {}", name);
  return read((found.group->*flat).slice(found.param->begin, {found.param->elements()}));
}

std::vector<float> TestRank::read(const Tensor& values) {
  std::vector<float> host(values.elements());
  Tensor wide = values;
  if (values.dtype() != DType::f32) {
    wide = device_->empty(DType::f32, values.shape());
    stream_->cast(wide, values);
  }
  stream_->download(host.data(), wide);
  return host;
}

std::vector<float> TestRank::weight(const std::string& name) {
  return saved_state(name, "");
}
std::vector<float> TestRank::gradient(const std::string& name) {
  return read(&ParamGroup::grad, name);
}
std::vector<float> TestRank::state(const std::string& state, const std::string& name) {
  return saved_state(name, state);
}

std::vector<float> TestRank::saved_state(const std::string& name, const std::string& state) {
  const auto found = trainer_->parameters().find(name);
  require(found.group != nullptr, "this rank does not hold {}", name);
  std::vector<float> host;
  with_held(session_.plan().keepers(), *found.group, Held::saved, {.stream = *stream_}, [&](Stream& home) {
    for (const StatePiece& part : state_pieces(*found.group, *found.param)) {
      if (part.state == state) {
        std::vector<float> piece(part.piece.elements());
        part.download(piece.data(), part.stream(*stream_, home));
        host.insert(host.end(), piece.begin(), piece.end());
      }
    }
  });
  require(!host.empty(), "{} has no state {}", name, state);
  return host;
}

void TestRank::set_weight(const std::string& name, const std::vector<float>& global) {
  const auto found = trainer_->parameters().find(name);
  if (found.group == nullptr) {
    return;
  }
  const Param& p = *found.param;
  const std::int64_t columns = p.spec.global.rank() > 1 ? p.spec.global[1] : 1;
  require(static_cast<std::int64_t>(global.size()) == p.spec.global.elements(), "{} has {} elements, got {}", name,
          p.spec.global.elements(), global.size());
  std::vector<float> slice;
  for (std::int64_t r = 0; r < p.size[0]; ++r) {
    const auto row = global.begin() + (p.offset[0] + r) * columns + p.offset[1];
    slice.insert(slice.end(), row, row + p.size[1]);
  }
  stream_->upload(found.group->master.slice(p.begin, {p.elements()}), slice.data());
  trainer_->parameters().refresh_weights(session_.plan(), Change::loaded, {.stream = *stream_});
  stream_->synchronize();
}

OneRank::OneRank(const Config& config, const BatchSource* source)
    : config_(config),
      communicator_(make_local_communicator(LocalSegment::create(1), 0, 60)),
      rank_(config_, *communicator_, source) {}

namespace {

template <class T>
std::vector<T> part(const std::vector<T>& all, std::int64_t begin, std::int64_t count) {
  return {all.begin() + begin, all.begin() + begin + count};
}

}  // namespace

HostBatch FixedSource::train(std::int64_t, std::int64_t first, std::int64_t count) const {
  require(first >= 0 && first + count <= batch_.sequences, "sequences [{}, {}) of {}", first, first + count,
          batch_.sequences);
  const std::int64_t at = first * batch_.positions, n = count * batch_.positions;
  HostBatch batch;
  batch.sequences = count;
  batch.positions = batch_.positions;
  batch.token = part(batch_.token, at, n);
  batch.label = part(batch_.label, at, n);
  batch.position = part(batch_.position, at, n);
  batch.first = part(batch_.first, at, n);
  batch.valid = part(batch_.valid, at, n);
  batch.index = part(batch_.index, at, n);
  return batch;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) {
    return INFINITY;
  }
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace orthant::test
