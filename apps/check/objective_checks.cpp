#include <orthant/objective.h>

#include "apps/check/kind_checks.h"
#include "core/data/source.h"
#include "core/run/metrics.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"

namespace orthant {

// What a run says of a step and of a validation.
Finding check_objective_figures(const KindUnderTest& kind) {
  const Config config = kind.experiment({"batch.sequences=2", "batch.micro_batch=0", "data.validation_sequences=2"});
  std::string text;
  run_threads(1, [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
    const std::unique_ptr<Stream> stream = device->make_main_stream();
    const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
    Session session(config);
    session.plan(communicator.rank(), &communicator, device.get());
    Trainer trainer(session.plan(), *stream, *source);
    const StepReport report = trainer.step(0, true);
    MetricsLine line;
    line.report = &report;
    line.validation = trainer.validate_sets();
    to_json(line, "check");
    text = Progress(config.settings, 0, 0).text(line, 1);
  });
  return Finding::ok(text);
}

}  // namespace orthant
