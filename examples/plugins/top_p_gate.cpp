// A gate with a key of its own in [moe]: a token takes its likeliest experts until their probabilities sum to top_p, at
// most top_k of them. A token of which the router is sure has one expert, another has more (Huang et al., "Harder Tasks
// Need More Experts: Dynamic Routing in MoE Models", 2024).
//
//   [moe]
//   router = "top_p"
//   top_k = 4        # the most
//   top_p = 0.6
// A table [plugins.top_p_gate] loads it.
#include <orthant/gate.h>
#include <orthant/plugin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>

using namespace orthant;

namespace {

struct TopPKeys {
  double top_p = 0.6;
  static const Keys<TopPKeys>& keys() {
    static const auto all =
        Keys<TopPKeys>()
            .add("top_p", &TopPKeys::top_p, "top_p: what the probabilities of a token's experts sum to, at least.",
                 between(0.01, 1))
            .after("score");
    return all;
  }
};

class TopPGate final : public Gate {
 public:
  std::vector<KindKey> keys() const override { return TopPKeys::keys().declared(); }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    const ChoiceKeys choice = read_keys<ChoiceKeys>(kind_values(settings, "moe"));
    std::vector<Refusal> found;
    if (choice.score != ScoreKind::softmax) {
      found.push_back({{"moe.score"}, "[moe] score: the top_p gate sums probabilities", "write score = \"softmax\""});
    }
    if (choice.expert_groups != 1) {
      found.push_back({{"moe.expert_groups"}, "[moe] expert_groups: the top_p gate knows none", "leave it out"});
    }
    return found;
  }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.gate(to.expert, to.weight, to.lse, to.chosen, to.share, from.logits, from.valid, from.index, from.key, config);
    s.apply({.name = "top_p_gate/leave",
             .inputs = {from.logits, to.lse, to.expert},
             .outputs = {to.expert},
             .host = [top_p = read_keys<TopPKeys>(kind_values(*from.moe)).top_p](const HostArguments& a) {
               const auto logit = a.input<float>(0);
               const auto lse = a.input<float>(1);
               const auto expert = a.output<std::int32_t>(0);
               const std::size_t experts = logit.size() / lse.size(), most = expert.size() / lse.size();
               for (std::size_t t = 0; t < lse.size(); ++t) {
                 double sum = 0;
                 for (std::size_t k = t * most; k < (t + 1) * most; ++k) {  // the likeliest first
                   const bool taken = expert[k] >= 0 && sum < top_p;
                   sum += taken ? std::exp(logit[t * experts + static_cast<std::size_t>(expert[k])] - lse[t]) : 0.0f;
                   expert[k] = taken ? expert[k] : -1;
                 }
               }
             }});
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }
};

class TopPGatePlugin final : public Plugin {
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<Gate>("top_p",
                        "The likeliest until their probabilities sum to top_p, at most top_k (Huang et al., 2024).",
                        std::make_shared<TopPGate>());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("top_p_gate", TopPGatePlugin)
