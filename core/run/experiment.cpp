#include <orthant/experiment.h>

#include <mutex>

#include "core/config/config.h"
#include "core/data/source.h"
#include "core/modules/make_device.h"
#include "core/plan/keeper_chain.h"
#include "core/run/check_start.h"
#include "core/run/loaded_teacher.h"
#include "core/session/session.h"
#include "core/train/whole_gradients.h"
#include "parallel/local/thread_world.h"

namespace orthant {

struct Experiment::Inside {
  Config config;
  int ranks;
};

namespace {

class StepOfAll {
 public:
  StepOfAll(int steps, const std::function<void(const ExperimentStep&)>& each) : steps_(steps), each_(each) {}

  void run_rank(const Config& config, Communicator& communicator) {
    const RunSettings& run = config.settings.run;
    const std::unique_ptr<Device> device = make_device(run.device, 1, run.deterministic);
    const std::unique_ptr<Stream> stream = device->make_main_stream();
    const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
    Session session(config);
    session.plan(communicator.rank(), &communicator, device.get());
    Group& world = session.mesh().world_group("experiment");
    const std::unique_ptr<Teacher> teacher = loaded_teacher(config, communicator, *device, *stream);
    Trainer trainer(session.plan(), *stream, *source, teacher.get());
    for (int step = 0; step < steps_; ++step) {
      const StepReport report = trainer.gradients(step);
      stream->synchronize();  // no rank waits for others while it has the mutex
      {
        const std::lock_guard lock(mutex_);
        add_gradients(trainer, session.plan().keepers(), *stream, step, session.mesh().worker() == 0, gradients_);
      }
      world.barrier(*stream);
      stream->synchronize();
      if (communicator.rank() == 0) {
        each_({.report = report, .gradients = gradients_});
        gradients_.clear();
      }
      world.barrier(*stream);
      trainer.apply(step);
    }
    stream->synchronize();
  }

 private:
  const int steps_;
  const std::function<void(const ExperimentStep&)>& each_;
  std::mutex mutex_;
  WholeTensors gradients_;
};

}  // namespace

Experiment::Experiment(const std::string& file, const std::vector<std::string>& overrides)
    : inside_(std::make_unique<Inside>(
          Inside{load_config(file, overrides, keys_of_plugin, kinds_of_plugin, check_layout), 0})) {
  inside_->ranks = check_start(inside_->config, Ranks::threads).world_size;
}

Experiment::~Experiment() = default;

int Experiment::ranks() const {
  return inside_->ranks;
}

const Settings& Experiment::settings() const {
  return inside_->config.settings;
}

void Experiment::train(int steps, const std::function<void(const ExperimentStep&)>& each) {
  StepOfAll all(steps, each);
  run_threads(inside_->ranks, [&](Communicator& communicator) { all.run_rank(inside_->config, communicator); },
              {.timeout_seconds = inside_->config.settings.run.timeout_seconds, .segment = {}});
}

}  // namespace orthant
