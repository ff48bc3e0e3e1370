// orthant-gradients CONFIG OUT [KEY=VALUE]...: takes ten steps of a configuration, and writes the norm of each
// parameter's gradient to OUT, a line "STEP NAME NORM" each.
//
// A command outside the tree in C++: it stands on the installed package's public headers alone.
#include <orthant/error.h>
#include <orthant/experiment.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

namespace {

constexpr int steps = 10;

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * value;
  }
  return std::sqrt(sum);
}

void write_norms(orthant::Experiment& experiment, const std::string& file) {
  std::ofstream out(file);
  experiment.train(steps, [&](const orthant::ExperimentStep& step) {
    for (const auto& [name, gradient] : step.gradients) {
      out << step.report.step << ' ' << name << ' ' << norm_of(gradient) << '\n';
    }
    std::printf("step %lld  loss %.6f  gradient norm %.6f\n", static_cast<long long>(step.report.step + 1),
                step.report.loss, step.report.grad_norm);
  });
  if (!out.flush()) {
    throw orthant::Error("cannot write '" + file + "'");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: orthant gradients CONFIG OUT [KEY=VALUE]...\n");
    return 2;
  }
  try {
    orthant::Experiment experiment(argv[1], {argv + 3, argv + argc});
    std::printf("%d ranks\n", experiment.ranks());
    write_norms(experiment, argv[2]);
    return 0;
  } catch (const orthant::Error& error) {
    std::fprintf(stderr, "orthant gradients: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
