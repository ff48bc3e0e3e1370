// Experiment: a configuration that a program of one's own trains for some steps, to look at it: what a command outside
// the tree stands on (examples/).
//
// The layout's ranks are threads of this process. Nothing is written to disk. Thread safety: none.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <orthant/abi/experiment.h>
#include <orthant/hook.h>

namespace orthant {

struct Settings;  // settings.h

// A step as rank 0 sees it, between its gradients and their update.
struct ExperimentStep {
  const StepReport& report;
  // Whole gradients of the global batch, by the parameter's name, before clipping. Elements in row-major order.
  const std::map<std::string, std::vector<float>>& gradients;
};

class Experiment {
 public:
  // file: a configuration. overrides: as --set takes them, "run.steps=10". Errors: ConfigError with all that is wrong.
  explicit Experiment(const std::string& file, const std::vector<std::string>& overrides = {});
  ~Experiment();
  Experiment(const Experiment&) = delete;
  Experiment& operator=(const Experiment&) = delete;

  int ranks() const;  // that its layout has
  const Settings& settings() const;

  // Trains from the first step on. `each` is called once a step, on one thread, while the ranks wait. Errors: what
  // training fails with; what `each` throws.
  void train(int steps, const std::function<void(const ExperimentStep&)>& each);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace orthant
