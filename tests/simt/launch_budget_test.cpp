// How many launches operations and layers of a training step make, at sizes of real models: kernels are counted and not
// run (counters.h). A GPU needs some microseconds for each, however small it is.
//
// The widths are small, which no count depends on. Counted as the shim runs them: a product by cuBLAS may be two
// launches where ours is one, and cuDNN's attention is not counted.
#include <gtest/gtest.h>

#include "core/layers/head.h"
#include "core/layers/head_chunks.h"
#include "experts/moe_layer.h"
#include "tests/simt/device_library.h"
#include "tests/support/experiment.h"

namespace orthant::launch_budget_test {
namespace {

using test::experiment;
using test::OneRank;
using test::SimtLibrary;
using test::WithVariable;

// A rank of one block on the device, and the step that its layers see.
class Counted {
 public:
  explicit Counted(const test::Overrides& overrides)
      : config_(experiment(test::joined(
            {"run.device=\"simt\"", "run.dtype=\"bf16\"", "model.layers=1", "data.sequence_length=4096"}, overrides))) {
    library_.only_count(true);
    rank_.emplace(config_);
    const std::int64_t routed = 1, experts = config_.settings.moe.experts;
    const auto empty = [&](DType dtype, Shape shape) { return plan().device().empty(dtype, shape); };
    batch_.sequences = config_.settings.batch.sequences;
    batch_.positions = 4096;
    tokens_ = batch_.tokens();
    batch_.label = empty(DType::i32, {tokens_});
    batch_.whole_valid = empty(DType::u8, {tokens_});
    batch_.whole_index = empty(DType::i64, {tokens_});
    sums_.loss = empty(DType::f64, {1});
    sums_.balance = empty(DType::f64, {1});
    sums_.z = empty(DType::f64, {1});
    sums_.choices = empty(DType::i64, {routed, 2, experts});
    sums_.counts = empty(DType::i32, {routed, 2, experts});
    // Counters that stay (CudaStream::counters) are made at their first use.
    (*rank_)->stream().sum(sums_.loss, empty(DType::f32, {1}));
  }

  Plan& plan() { return (*rank_)->session().plan(); }
  const ParamStore& parameters() { return (*rank_)->trainer().parameters(); }
  StepContext context() {
    return {.plan = plan(), .stream = (*rank_)->stream(), .batch = batch_, .sums = sums_, .aux_scale = 1, .z_scale = 1};
  }
  // Of the residual stream.
  Tensor rows() { return plan().device().empty(DType::bf16, {tokens_, config_.settings.model.d_model}); }
  std::int64_t tokens() const { return tokens_; }

  template <class F>
  std::int64_t launches(F&& work) const {
    const std::int64_t before = library_.launches();
    work();
    return library_.launches() - before;
  }

 private:
  SimtLibrary library_;
  Config config_;
  std::optional<OneRank> rank_;
  DeviceBatch batch_;
  StepSums sums_;
  std::int64_t tokens_ = 0;
};

// Each chunk also reads the matrix of logits twice, and its gradient once, and writes that.
TEST(LaunchBudget, TheHeadOfALargeVocabulary) {
  Counted counted({"batch.sequences=8", "model.vocab_size=50304"});
  ASSERT_EQ(counted.tokens(), 32768);
  const std::int64_t rows = tokens_a_chunk(50304, true);
  EXPECT_LE((counted.tokens() + rows - 1) / rows, 8) << "chunks";
  HeadLayer head(counted.parameters(), counted.plan(), head_of(counted.plan().links()));
  const StepContext ctx = counted.context();
  Saved saved;
  const Tensor x = counted.rows();
  const std::int64_t forward = counted.launches([&] { head.forward(ctx, {x}, saved); });
  const std::int64_t backward = counted.launches([&] { head.backward(ctx, {}, saved); });
  EXPECT_LE(forward + backward, 40) << forward << " forward, " << backward << " backward";
}

// Of 128 experts for 24,576 tokens, 8 for each. On a Hopper the packed products are CUTLASS's: one launch describes
// those of a pass, and sets to zero what they leave out.
TEST(LaunchBudget, ARoutedLayer) {
  struct Kind {
    const char *architecture, *experts;
    std::int64_t most;
  };
  for (const auto& [architecture, experts, most] :
       {Kind{"80", "fused", 19}, Kind{"80", "packed", 24}, Kind{"90", "fused", 19}, Kind{"90", "packed", 25}}) {
    const WithVariable gpu("ORTHANT_SIMT_ARCHITECTURE", architecture), chosen("ORTHANT_CUDA_EXPERTS", experts);
    Counted counted({"batch.sequences=6", "moe.experts=128", "moe.top_k=8"});
    const MoeLayer layer(counted.parameters(), counted.plan(), find(counted.plan().links(), "layer 0"));
    const StepContext ctx = counted.context();
    Saved saved;
    const Tensor n = counted.rows(), dy = counted.rows();
    const std::int64_t forward = counted.launches([&] { layer.forward(ctx, n, saved); });
    const std::int64_t backward = counted.launches([&] { layer.backward(ctx, dy, saved); });
    EXPECT_LE(forward + backward, most) << "sm_" << architecture << ", " << experts << ": " << forward << " forward, "
                                        << backward << " backward";
  }
}

TEST(LaunchBudget, EachOperation) {
  Counted counted({"batch.sequences=6", "moe.experts=128", "moe.top_k=8"});
  Device& device = counted.plan().device();
  Stream& s = counted.context().stream;
  const std::int64_t tokens = counted.tokens(), d = 64, f = 32, experts = 128, k = 8, rows = tokens * k;
  const auto empty = [&](DType dtype, Shape shape) { return device.empty(dtype, shape); };
  const auto wide = [&](std::int64_t columns) { return empty(DType::bf16, {tokens, columns}); };
  const auto floats = [&](Shape shape) { return empty(DType::f32, shape); };
  const Tensor x = wide(d), y = wide(d), weight = floats({d}), stats = floats({tokens, 2}),
               sum = empty(DType::f64, {1});
  const Tensor packed = empty(DType::bf16, {rows, d}), offset = empty(DType::i32, {experts + 1});
  const Tensor h = empty(DType::bf16, {rows, 2 * f}), a = empty(DType::bf16, {rows, f}),
               dh = empty(DType::bf16, h.shape());
  const Tensor expert = empty(DType::i32, {tokens, k}), by = floats({tokens, k}), lse = floats({tokens});
  const Tensor row = empty(DType::i32, {tokens, k}), source = empty(DType::i32, {rows, 1});
  const Tensor logits = floats({tokens, experts}), valid = empty(DType::u8, {tokens}), id = empty(DType::i32, {tokens});
  const Tensor chosen = empty(DType::i32, {6, experts}), share = empty(DType::f64, {6, experts});
  const Tensor count = empty(DType::i32, {experts}), dropped = empty(DType::i32, {experts});
  const Tensor index = empty(DType::i64, {tokens}), table = floats({50304, d}), factor = floats({1});
  const GateConfig gate{.experts = experts, .top_k = k, .group_tokens = 4096};
  GateConfig crowded = gate;
  crowded.capacity_factor = 1;
  const AttentionShape heads{6, 4096, 2, 2, 32};
  const Tensor sums_of_heads = floats({6, 2, 4096});
  const struct {
    const char* name;
    std::int64_t launches;
    std::function<void()> work;
  } operations[] = {
      {"fill", 1, [&] { s.fill(x, 0); }},
      {"cast", 1, [&] { s.cast(x, floats(x.shape())); }},
      {"add", 1, [&] { s.add(x, y); }},
      {"sum", 1, [&] { s.sum(sum, x); }},
      {"gemm", 1,
       [&] {
         s.gemm(y, x, empty(DType::bf16, {d, d}), {});
       }},
      {"norm", 1, [&] { s.norm(y, stats, x, weight, {}, NormKind::rmsnorm, 1e-5f); }},
      {"norm_backward", 2, [&] { s.norm_backward(y, weight, {}, y, x, stats, weight, NormKind::rmsnorm); }},
      {"attention", 1, [&] { s.attention(y, sums_of_heads, x, x, x, {}, heads); }},
      {"attention_backward", 3,
       [&] { s.attention_backward(wide(d), wide(d), wide(d), y, x, x, x, y, sums_of_heads, {}, heads); }},
      {"activation", 1, [&] { s.activation(a, h, Activation::swiglu); }},
      {"cross_entropy", 1, [&] { s.cross_entropy(lse, logits, id, 1); }},
      {"embedding", 1, [&] { s.embedding(y, table, id, false); }},
      {"embedding_backward", 9, [&] { s.embedding_backward(table, y, id); }},
      {"gate", 1, [&] { s.gate(expert, by, lse, chosen, share, logits, valid, index, {}, gate); }},
      {"gate_losses", 1, [&] { s.gate_losses(sum, sum, chosen, share, lse, gate); }},
      {"gate_backward", 1,
       [&] { s.gate_backward(floats(logits.shape()), by, expert, lse, chosen, logits, valid, 1, 1, gate); }},
      {"dispatch_plan", 2, [&] { s.dispatch_plan(row, source, count, dropped, offset, expert, by, valid, gate); }},
      {"dispatch_plan with seats", 6,
       [&] { s.dispatch_plan(row, source, count, dropped, offset, expert, by, valid, crowded); }},
      {"pack", 1, [&] { s.pack(packed, x, row, source); }},
      {"pack_backward", 1, [&] { s.pack_backward(x, packed, row, false); }},
      {"combine", 1, [&] { s.combine(y, packed, row, by, false); }},
      {"grouped_gemm", 1,
       [&] {
         s.grouped_gemm(a, packed, empty(DType::bf16, {experts, d, f}), offset, {});
       }},
      {"weighted_activation_backward", 2,
       [&] { s.weighted_activation_backward(dh, a, by, a, h, by, source, Activation::swiglu); }},
      {"adamw", 1,
       [&] {
         s.adamw(table, empty(DType::bf16, table.shape()), floats({50304, d}), floats({50304, d}), floats({50304, d}),
                 factor, {});
       }},
      {"clip_factor", 1, [&] { s.clip_factor(factor, sum, sum, 1); }},
  };
  for (const auto& operation : operations) {
    EXPECT_EQ(counted.launches(operation.work), operation.launches) << operation.name;
  }
}

}  // namespace
}  // namespace orthant::launch_budget_test
