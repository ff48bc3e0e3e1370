// Several tensors at a cut: each slot arrives in its place, with its type and width, forward and backward, whatever the
// pieces of a pipeline are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/catalogue.h>

#include <algorithm>
#include <atomic>

#include "core/arch/decoder.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"

namespace orthant::slots_test {
namespace {

using test::experiment;

// What a kind of the test does wrong.
enum class Fault { none, one_missing, other_type, no_gradient };

std::vector<float> floats(const Tensor& t, Stream& s) {
  const Tensor wide = s.device().empty(DType::f32, t.shape());
  s.cast(wide, t);
  std::vector<float> host(static_cast<std::size_t>(wide.elements()));
  s.download(host.data(), wide);
  return host;
}

// Beside x a decoder's link passes two more tensors on, that are all its number, and minus that; their gradients are
// the same of the link that gives them back.
class Numbered final : public Layer {
 public:
  Numbered(std::unique_ptr<Layer> inner, const Link& link, Fault fault, std::atomic<int>& looked_at)
      : inner_(std::move(inner)), link_(link), fault_(fault), looked_at_(looked_at) {}

  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    if (in.size() > 1) {
      look_at(in[1], link_.number - 1, 3, DType::f32, ctx.stream);
      look_at(in[2], 1 - link_.number, 2, ctx.compute(), ctx.stream);
    }
    Bundle out = inner_->forward(ctx, in.empty() ? Bundle() : Bundle{in[0]}, saved);
    if (!link_.passes.empty()) {
      add(out, ctx, out[0].dim(0), link_.number);
    }
    return out;
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    if (dy.size() > 1) {
      look_at(dy[1], link_.number + 1, 3, DType::f32, ctx.stream);
      look_at(dy[2], -1 - link_.number, 2, ctx.compute(), ctx.stream);
    }
    Bundle dx = inner_->backward(ctx, dy.empty() ? Bundle() : Bundle{dy[0]}, saved);
    if (!dx.empty() && fault_ != Fault::no_gradient) {
      add(dx, ctx, dx[0].dim(0), link_.number);
    }
    return dx;
  }
  std::vector<ParamGroup*> grown_in_forward() const override { return inner_->grown_in_forward(); }
  const ParamRef* overwritten() const override { return inner_->overwritten(); }

 private:
  void add(Bundle& to, const StepContext& ctx, std::int64_t rows, int number) const {
    to.push_back(ctx.device().empty(DType::f32, {rows, 3}));
    ctx.stream.fill(to.back(), number);
    if (fault_ != Fault::one_missing) {
      to.push_back(ctx.device().empty(fault_ == Fault::other_type ? DType::f64 : ctx.compute(), {rows, 2}));
      ctx.stream.fill(to.back(), -number);
    }
  }
  void look_at(const Tensor& t, int expected, std::int64_t columns, DType dtype, Stream& s) const {
    EXPECT_EQ(t.dim(1), columns) << link_.name;
    EXPECT_EQ(t.dtype(), dtype) << link_.name;
    EXPECT_THAT(floats(t, s), testing::Each(static_cast<float>(expected))) << link_.name;
    ++looked_at_;
  }

  std::unique_ptr<Layer> inner_;
  Link link_;
  Fault fault_;
  std::atomic<int>& looked_at_;
};

class NumberedKind final : public ModelKind {
 public:
  NumberedKind(Fault fault, std::atomic<int>& looked_at) : fault_(fault), looked_at_(looked_at) {}
  std::vector<Link> links(const Settings& s) const override {
    std::vector<Link> links = decoder_links(s);
    for (Link& link : links) {
      if (!link.passes.empty()) {
        link.passes.push_back({.name = "number", .columns = 3, .dtype = DType::f32});
        link.passes.push_back({.name = "minus", .columns = 2, .dtype = compute_type(s)});
      }
    }
    return links;
  }
  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    Link own = link;
    own.passes.resize(std::min<std::size_t>(own.passes.size(), 1));
    const ModelKind& decoder = plan.settings().catalogue->get<ModelKind>(decoder_kind);
    return std::make_unique<Numbered>(decoder.make(own, parameters, plan), link, fault_, looked_at_);
  }

 private:
  Fault fault_;
  std::atomic<int>& looked_at_;
};

constexpr int micro_batches = 4, links = 8;  // embedding, five blocks, head, one depth behind it

Config with(const std::string& plugins, Fault fault, std::atomic<int>& looked_at, const std::string& dtype = "bf16") {
  Config config = experiment({"model.layers=5", "model.mtp_depth=1", "batch.sequences=8", "batch.micro_batch=2",
                              fmt::format("run.dtype=\"{}\"", dtype)},
                             plugins);
  const auto catalogue = built_in_catalogue();
  catalogue->add<ModelKind>("numbered", "A decoder with numbers beside it.",
                            std::make_shared<NumberedKind>(fault, looked_at));
  config.settings.catalogue = catalogue;
  config.settings.model.kind = "numbered";
  return config;
}

double loss_of(const Config& config, int ranks) {
  double loss = 0;
  run_threads(ranks, [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    const StepReport report = rank.trainer().step(0);
    if (communicator.rank() == 0) {
      loss = report.loss;
    }
  });
  return loss;
}

class Slots : public testing::TestWithParam<const char*> {};

TEST_P(Slots, ArriveInTheirPlaces) {
  for (const char* dtype : {"bf16", "fp32"}) {
    std::atomic<int> looked_at = 0, alone = 0;
    const Config config = with(GetParam(), Fault::none, looked_at, dtype);
    const int ranks = check_layout(config);
    const double loss = loss_of(config, ranks);
    // Two tensors of each place between links, for each micro-batch, on the way there and on the way back.
    EXPECT_EQ(looked_at, 2 * 2 * (links - 1) * micro_batches);
    const double expected = loss_of(with("", Fault::none, alone, dtype), 1);
    EXPECT_NEAR(loss, expected, dtype == std::string("fp32") ? 1e-6 : 1e-3);
    EXPECT_GT(expected, 1);
  }
}
INSTANTIATE_TEST_SUITE_P(Pipelines, Slots,
                         testing::Values("[plugins.pipeline]\nsize = 2\n",
                                         "[plugins.pipeline]\nsize = 4\nschedule = \"gpipe\"\n",
                                         "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n",
                                         "[plugins.data]\nsize = 1\nzero = 0\nlayered = true\n"),
                         [](const auto& made) { return fmt::format("layout{}", made.index); });

TEST(SlotsOfALink, ThatDifferFromWhatItSaysAreNamed) {
  std::atomic<int> looked_at = 0;
  const auto said = [&](Fault fault) {
    try {
      loss_of(with("[plugins.pipeline]\nsize = 1\n", fault, looked_at), 1);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(said(Fault::one_missing), testing::HasSubstr("the embedding passes on 2 tensors: its link has 3 slots"));
  EXPECT_THAT(said(Fault::other_type), testing::HasSubstr("the embedding passes on 'minus': expected bf16 ["));
  EXPECT_THAT(said(Fault::no_gradient), testing::HasSubstr("head gets back 1 tensors: its link has 3 slots"));
}

}  // namespace
}  // namespace orthant::slots_test
