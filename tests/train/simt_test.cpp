// Training on the CUDA device, whose kernels run on the CPU here (tests/simt): as the CPU does.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/run/verify.h"
#include "tests/simt/device_library.h"
#include "tests/support/experiment.h"

namespace orthant {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;
using test::SimtLibrary;
using test::WithVariable;

struct Model {
  const char* label;
  Overrides overrides;
};

const std::vector<Model> dense = {
    {"gelu_layernorm", {"moe.experts=0", "model.activation=\"gelu\"", "model.norm=\"layernorm\""}},
    {"swiglu_gqa_tied_dropout",
     {"moe.experts=0", "model.kv_heads=2", "model.tie_embeddings=true", "model.dropout=0.1", "model.norm=\"rmsnorm\""}},
};

Overrides with(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

// Two steps on simt against two on the CPU: verify's tolerances for the type of the computation.
void expect_trains_as_the_cpu(const Overrides& overrides) {
  const Config simt = experiment(with(overrides, {"run.device=\"simt\""}));
  const Snapshot reference = take_snapshot(one_rank(experiment(overrides)), 2);
  const Snapshot got = take_snapshot(simt, 2);
  EXPECT_EQ(got.replica_differences, std::vector<std::string>());
  for (const Comparison& row : compare(got, reference, simt.settings.run.dtype).rows) {
    EXPECT_TRUE(row.ok()) << row.quantity << " " << row.where << ": " << row.difference << " above " << row.tolerance;
  }
}

class SimtTraining : public testing::Test {
 protected:
  SimtLibrary library_;
};

TEST_F(SimtTraining, EveryModelIsThatOfTheCpu) {
  for (const Model& model : dense) {
    SCOPED_TRACE(model.label);
    expect_trains_as_the_cpu(model.overrides);
  }
}

TEST_F(SimtTraining, InBf16Too) {
  for (const Model& model : dense) {
    SCOPED_TRACE(model.label);
    expect_trains_as_the_cpu(with(model.overrides, {"run.dtype=\"bf16\""}));
  }
}

TEST_F(SimtTraining, RecordedStepsHaveTheSameBits) {
  const WithVariable cached("ORTHANT_CUDA_CACHE", "1");
  for (const Model& model : dense) {
    SCOPED_TRACE(model.label);
    const Overrides more = with(model.overrides, {"run.device=\"simt\"", "batch.micro_batch=4"});
    OneRank plain(experiment(more)), recorded(experiment(with(more, {"run.graphs=true"})));
    for (int step = 0; step < 3; ++step) {
      const StepReport a = plain->trainer().step(step), b = recorded->trainer().step(step);
      EXPECT_EQ(a.loss, b.loss) << step;
      EXPECT_EQ(a.grad_norm, b.grad_norm) << step;
    }
    for (const std::string& name : plain->names()) {
      EXPECT_EQ(plain->weight(name), recorded->weight(name)) << name;
    }
  }
}

// How often a step waits for the device depends neither on layers nor on micro-batches: it is the report alone.
TEST_F(SimtTraining, AStepWaitsForItsReportAlone) {
  for (const Model& model : dense) {
    SCOPED_TRACE(model.label);
    for (const Overrides& size : {Overrides{}, Overrides{"model.layers=3", "batch.micro_batch=4"}}) {
      OneRank rank(experiment(with(with(model.overrides, {"run.device=\"simt\""}), size)));
      rank->trainer().step(0);  // makes what stays
      const std::int64_t before = library_.waits();
      rank->trainer().step(1);
      EXPECT_LE(library_.waits() - before, 3) << size.size();  // sums, gradient norm, counters
    }
  }
}

}  // namespace
}  // namespace orthant
