// Gates that route as their name says, whatever the tokens are: for measuring memory (bench/memory_promise.py).
//
//   [moe]
//   router = "adversary"
//   [plugins.adversary]
//   pattern = "one_rank"
//   together = 2        # experts that one rank holds: E experts make E / together ranks
#include <orthant/gate.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include <algorithm>

using namespace orthant;

namespace {

enum class Pattern { balanced, one_expert, one_rank, rotating, oscillating };

// The experts of a token: choice k is expert first + (turn + k) mod span while k < span, and then those behind.
struct Target {
  std::int64_t first = 0, span = 1;
  bool by_token = true;  // turn is the token's number, else 0
};

Target target_of(Pattern pattern, std::int64_t together, std::int64_t experts, const RandomKey& key) {
  const std::int64_t ranks = experts / together;
  switch (pattern) {
    case Pattern::balanced: break;
    case Pattern::one_expert: return {0, experts, false};
    case Pattern::one_rank: return {experts - together, together};
    case Pattern::rotating: return {static_cast<std::int64_t>(key.step + key.site) % ranks * together, together};
    case Pattern::oscillating:
      if (key.step % 2 == 1) {
        return {0, together};
      }
      break;
  }
  return {0, experts};
}

class Adversary final : public Gate {
 public:
  Adversary(Pattern pattern, std::int64_t together) : pattern_(pattern), together_(together) {}

  std::vector<Refusal> refusals(const Settings& settings) const override {
    if (settings.moe.experts % together_ == 0) {
      return {};
    }
    return {
        {{"moe.experts"},
         fmt::format("[moe] experts: {} do not divide into ranks of together = {}", settings.moe.experts, together_),
         "write plugins.adversary.together = moe.experts / plugins.expert.size"}};
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    const Target target = target_of(pattern_, together_, config.experts, from.key);
    s.apply({.name = "adversary/choose",
             .inputs = {from.index, from.valid},
             .outputs = {to.expert},
             .host = [target, experts = config.experts, choices = config.top_k](const HostArguments& a) {
               const auto index = a.input<std::int64_t>(0);
               const auto valid = a.input<std::uint8_t>(1);
               const auto expert = a.output<std::int32_t>(0);
               for (std::size_t i = 0; i < expert.size(); ++i) {
                 const std::size_t t = i / static_cast<std::size_t>(choices);
                 const std::int64_t k = static_cast<std::int64_t>(i) % choices;
                 const std::int64_t turn = target.by_token ? index[t] * std::min(choices, target.span) : 0;
                 const std::int64_t within = k < target.span ? (turn + k) % target.span : k;
                 expert[i] = valid[t] == 0 ? -1 : static_cast<std::int32_t>((target.first + within) % experts);
               }
             }});
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }

 private:
  Pattern pattern_;
  std::int64_t together_;
};

class AdversaryPlugin final : public Plugin {
  std::vector<KeySpec> keys() const override {
    return {
        {.name = "pattern",
         .default_value = std::string("balanced"),
         .help = "Where tokens go: to all experts equally often; to the first experts; to those of the last rank; "
                 "to those of another rank in each step and layer; in turns to all and to those of the first rank.",
         .choices = {"balanced", "one_expert", "one_rank", "rotating", "oscillating"}},
        {.name = "together", .default_value = std::int64_t{1}, .help = "Experts that one rank holds.", .minimum = 1}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    const std::vector<std::string> names = keys().front().choices;
    const auto at = std::find(names.begin(), names.end(), config.text("pattern")) - names.begin();
    catalogue.add<Gate>("adversary", "Routes as plugins.adversary.pattern says, whatever the tokens are.",
                        std::make_shared<Adversary>(static_cast<Pattern>(at), config.integer("together")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("adversary", AdversaryPlugin)
