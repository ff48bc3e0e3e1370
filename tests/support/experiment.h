// A tiny experiment: its configuration, and one rank of it whose weights and gradients a test can read and write.
#pragma once

#include <orthant/device.h>
#include <orthant/group.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/data/source.h"
#include "core/session/session.h"
#include "core/train/trainer.h"

namespace orthant::test {

using Overrides = std::vector<std::string>;  // as --set takes them: "moe.top_k=2"

// Two blocks of width 16 with four experts each, eight synthetic sequences of twelve tokens a step. `plugins` is TOML:
// the [plugins.NAME] tables, outermost first. Errors: as load_config's.
Config experiment(const Overrides& overrides = {}, const std::string& plugins = "");

Overrides joined(Overrides a, const Overrides& b);

// A model, by what it changes in the experiment.
struct Model {
  std::string name;
  Overrides overrides;
};
std::ostream& operator<<(std::ostream& out, const Model& model);

// What is said when the experiment is refused before anything starts; "(accepted with N ranks)" where it is not.
std::string refusal(const Overrides& overrides, const std::string& plugins);

// The tables of the two axes that split tokens and experts; an axis of size 0 is left out.
std::string axes(int data, int expert = 0);

// One rank: device, plan and trainer. `source` replaces the configuration's batches; it must outlive the rank.
// Collective over the communicator's world.
class TestRank {
 public:
  TestRank(const Config& config, Communicator& communicator, const BatchSource* source = nullptr);

  Trainer& trainer() { return *trainer_; }
  Stream& stream() { return *stream_; }
  Session& session() { return session_; }

  bool holds(const std::string& name) { return trainer_->parameters().find(name).group != nullptr; }
  std::vector<std::string> names();  // of every parameter held

  // This rank's slice, flattened.
  std::vector<float> weight(const std::string& name);
  std::vector<float> gradient(const std::string& name);
  // Of the optimizer's state of this name.
  std::vector<float> state(const std::string& state, const std::string& name);

  // Replaces this rank's slice of a parameter by that part of `global`; nothing where it holds none of it.
  void set_weight(const std::string& name, const std::vector<float>& global);

 private:
  std::vector<float> saved_state(const std::string& name, const std::string& state);  // state "": the weights
  std::vector<float> read(Tensor ParamGroup::*flat, const std::string& name);
  std::vector<float> read(const Tensor& values);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<BatchSource> own_source_;
  Session session_;
  std::unique_ptr<Trainer> trainer_;
};

// A world of one rank on the calling thread.
class OneRank {
 public:
  explicit OneRank(const Config& config, const BatchSource* source = nullptr);
  TestRank* operator->() { return &rank_; }
  TestRank& operator*() { return rank_; }

 private:
  Config config_;
  std::unique_ptr<Communicator> communicator_;
  TestRank rank_;
};

// Batches made by hand: sequence g of every step is row g.
class FixedSource final : public BatchSource {
 public:
  FixedSource(HostBatch batch, std::int64_t vocabulary) : batch_(std::move(batch)), vocabulary_(vocabulary) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override;
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return train(0, first, count); }
  std::int64_t validation_sequences() const override { return batch_.sequences; }
  std::int64_t vocabulary() const override { return vocabulary_; }

 private:
  HostBatch batch_;
  std::int64_t vocabulary_;
};

// A configuration's batches, of which a test changes those of training.
class ChangedSource : public BatchSource {
 public:
  explicit ChangedSource(const Settings& settings) : source_(make_batch_source(settings)) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    return source_->train(step, first, count);
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override {
    return source_->validation(first, count);
  }
  std::int64_t validation_sequences() const override { return source_->validation_sequences(); }
  std::int64_t vocabulary() const override { return source_->vocabulary(); }

 private:
  std::unique_ptr<BatchSource> source_;
};

// ||a - b|| / ||b||, in fp64; infinite where the sizes differ.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace orthant::test
