// The plugin "compress": sums of gradients in fewer bytes. README.md beside it has the methods.
#include <orthant/plugin.h>

#include <memory>
#include <string>

#include <orthant/catalogue.h>
#include <orthant/settings.h>

#include "coded_sums.h"
#include "low_rank_sums.h"
#include "onebit_adam.h"

namespace orthant::compress {
namespace {

class Compress final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "method",
             .default_value = std::string("signs"),
             .help = "How sums of gradients travel: signs (1 bit), int8 (8 bits), low_rank (PowerSGD).",
             .choices = {"signs", "int8", "low_rank"}},
            {.name = "warm_up",
             .default_value = std::int64_t{0},
             .help = "The first so many steps are summed whole; with onebit_adam: optimizer.freeze_after.",
             .minimum = 0},
            {.name = "block",
             .default_value = std::int64_t{256},
             .help = "int8: elements that have one scale.",
             .minimum = 1,
             .maximum = 1 << 20},
            {.name = "rank",
             .default_value = std::int64_t{4},
             .help = "low_rank: of a matrix's sum.",
             .minimum = 1,
             .maximum = 4096}};
  }

  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<Optimizer>(onebit_adam, "Tang et al., \"1-bit Adam\" (ICML 2021).", make_onebit_adam());
  }

  void claim(Mesh&, const Table& config) override {
    method_ = config.text("method");
    warm_up_ = config.integer("warm_up");
    block_ = config.integer("block");
    rank_ = config.integer("rank");
  }

  // What a rank's code loses depends on what the rank holds.
  Mathematics mathematics() const override { return Mathematics::of_ranks; }

  void plan(Plan& plan, Mesh&) override {
    const Settings& settings = plan.settings();
    const bool momentum = settings.optimizer.name == onebit_adam;
    if (momentum && method_ == "low_rank") {
      throw SettingError("plugins.compress.method",
                         "[plugins.compress] method: \"low_rank\" sums gradients, and onebit_adam needs sums of its "
                         "momentum\nwrite method = \"signs\" or \"int8\", or another optimizer.name");
    }
    if (momentum && warm_up_ > 0) {
      throw SettingError("plugins.compress.warm_up",
                         "[plugins.compress] warm_up: with onebit_adam it is optimizer.freeze_after\nleave it out");
    }
    if (method_ == "low_rank") {
      plan.chain(
          std::make_unique<LowRankSums>(LowRankOptions{.rank = rank_, .warm_up = warm_up_, .seed = settings.run.seed}));
      return;
    }
    CodedOptions options{.code = {.method = method_ == "int8" ? Method::int8 : Method::signs, .block = block_},
                         .warm_up = warm_up_,
                         .momentum = momentum};
    if (momentum) {
      const auto keys = read_keys<OnebitKeys>(kind_values(settings.optimizer));
      options.warm_up = keys.freeze_after;
      options.beta1 = keys.betas[0];
    }
    plan.chain(std::make_unique<CodedSums>(options));
  }

 private:
  std::string method_;
  std::int64_t warm_up_ = 0, block_ = 0, rank_ = 0;
};

}  // namespace
}  // namespace orthant::compress

ORTHANT_PLUGIN("compress", orthant::compress::Compress)
