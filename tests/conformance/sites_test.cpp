// The table of sites (orthant/seams.h): what it says of each is what a step does, a boundary that is no pair is found
// at each, and the guide prints it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "apps/check/adjoints.h"
#include "core/arch/links.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::sites_test {
namespace {

using test::error_of;
using test::experiment;
using testing::HasSubstr;

// Forward and backward differ by a factor.
struct NoPair final : Boundary {
  Tensor forward(Tensor x, Stream&) override { return x; }
  Tensor backward(Tensor dy, Stream& s) override {
    s.scale(dy, 1.25f);
    return dy;
  }
};

TEST(Sites, AWrongAdjointIsFoundAtEach) {
  const Config config = experiment();
  {
    test::OneRank rank(config);
    InnerProducts products;
    add_boundaries(products, rank->session().plan(), rank->stream());
    EXPECT_EQ(products.first_wrong(), "");
  }
  for (const SiteInfo& info : sites()) {
    test::OneRank rank(config);
    Plan& plan = rank->session().plan();
    plan.bind(info.site, std::make_unique<NoPair>(), Dim::batch);
    InnerProducts products;
    add_boundaries(products, plan, rank->stream());
    EXPECT_THAT(products.first_wrong(), HasSubstr(name_of(info.site) + ": <f(x), y> ="));
  }
}

struct Crossings {
  int forward = 0, backward = 0;
  std::vector<std::pair<DType, Shape>> seen;
};
struct Counting final : Boundary {
  explicit Counting(Crossings& c) : crossings(c) {}
  Tensor forward(Tensor x, Stream&) override {
    ++crossings.forward;
    crossings.seen.emplace_back(x.dtype(), x.shape());
    return x;
  }
  Tensor backward(Tensor dy, Stream&) override {
    ++crossings.backward;
    crossings.seen.emplace_back(dy.dtype(), dy.shape());
    return dy;
  }
  Crossings& crossings;
};

TEST(Sites, AreCrossedAsOftenAndByWhatTheTableSays) {
  for (const char* recompute : {"none", "full"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const Config config =
          experiment({"model.layers=3", "moe.every=2", "moe.shared_experts=1", "batch.micro_batch=2",
                      fmt::format("memory.recompute=\"{}\"", recompute), fmt::format("run.dtype=\"{}\"", dtype)});
      test::OneRank rank(config);
      std::map<std::string, Crossings> crossings;
      for (const SiteInfo& info : sites()) {
        rank->session().plan().bind(info.site, std::make_unique<Counting>(crossings[name_of(info.site)]), Dim::batch);
      }
      rank->trainer().gradients(0);
      const int routed = routed_in(rank->session().plan().links());
      ASSERT_GT(routed, 0);
      ASSERT_LT(routed, 3);
      const int micro_batches = static_cast<int>(config.settings.batch.sequences) / 2;
      for (const SiteInfo& info : sites()) {
        SCOPED_TRACE(fmt::format("{}, {}, recompute {}", name_of(info.site), dtype, recompute));
        const std::string layers = info.layers;
        const bool once = layers == "the embedding" || layers == "the head";
        const int here = once                     ? 1
                         : layers == "each block" ? 3
                         : layers == "each block with experts"
                             ? routed
                             : 3;  // dense blocks, and the shared experts of the others
        const bool again =
            std::string(recompute) == "full" && !once && !(info.site == Site{Region::router, Side::leave});
        const Crossings& c = crossings[name_of(info.site)];
        EXPECT_EQ(c.forward, info.times * here * micro_batches * (again ? 2 : 1));
        EXPECT_EQ(c.backward, info.times * here * micro_batches);
        const std::int64_t columns =
            info.columns == SiteInfo::Columns::choices ? config.settings.moe.top_k : config.settings.model.d_model;
        for (const auto& [type, shape] : c.seen) {
          EXPECT_EQ(type, info.compute_dtype && std::string(dtype) == "bf16" ? DType::bf16 : DType::f32);
          EXPECT_EQ(shape, (Shape{2 * config.settings.data.sequence_length, columns}));
        }
      }
    }
  }
}

TEST(Sites, WhereNothingCrossesNothingIsBound) {
  test::OneRank rank(experiment());
  Plan& plan = rank->session().plan();
  plan.set_current_plugin("mine");
  int refused = 0;
  for (const Region region : {Region::embedding, Region::norm, Region::attention, Region::attention_core, Region::ffn,
                              Region::router, Region::experts, Region::head}) {
    for (const Side side : {Side::enter, Side::leave}) {
      const Site site{region, side};
      const bool known = std::any_of(sites().begin(), sites().end(), [&](const SiteInfo& i) { return i.site == site; });
      const auto bind = [&] { plan.bind(site, std::make_unique<NoPair>(), Dim::batch); };
      if (known) {
        EXPECT_NO_THROW(bind());
      } else {
        ++refused;
        EXPECT_THAT(error_of<ConfigError>(bind),
                    testing::AllOf(HasSubstr("plugin 'mine'"), HasSubstr(name_of(site)), HasSubstr("nothing crosses")));
      }
    }
  }
  EXPECT_EQ(refused, 4);
}

// docs/guides/plugins.md has a line for each.
TEST(Sites, TheGuidePrintsTheTable) {
  const std::string guide = launch_test::read_file(paths::source("docs/guides/plugins.md"));
  const auto held = [](const Sharing& sharing) {
    return sharing.own ? fmt::format("{}, {}", name_of(sharing.tokens), name_of(*sharing.own))
                       : name_of(sharing.tokens);
  };
  for (const SiteInfo& info : sites()) {
    const std::string line = fmt::format("| `{{{}, {}}}` | {} | `{}` | {} | {} | {} | {} -> {} |\n",
                                         name_of(info.site.region), info.site.side == Side::enter ? "enter" : "leave",
                                         info.tensor, info.shape, info.compute_dtype ? "compute" : "f32", info.times,
                                         info.layers, held(info.before), held(info.after));
    EXPECT_NE(guide.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace orthant::sites_test
