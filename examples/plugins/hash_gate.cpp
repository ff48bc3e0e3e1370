// A gate of one's own, with an operation of its own: experts by the token's id (Roller et al., "Hash Layers For Large
// Sparse Models", 2021). No router is learned for the choice, and every expert has equally many ids of the vocabulary.
//
//   [moe]
//   router = "hash"
//   [plugins.hash_gate]
//   seed = 1
#include <orthant/gate.h>
#include <orthant/plugin.h>

using namespace orthant;

namespace {

// Each run of E consecutive ids is dealt out to all E experts, from a place that depends on the run and the seed.
std::int32_t expert_of(std::int32_t token, std::int64_t choice, std::int64_t experts, std::uint64_t seed) {
  std::uint64_t h = (static_cast<std::uint64_t>(token / experts) + seed) * 0x9E3779B97F4A7C15u;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9u;
  h ^= h >> 32;
  const auto e = static_cast<std::uint64_t>(experts);
  return static_cast<std::int32_t>((h % e + static_cast<std::uint64_t>(token % experts + choice)) % e);
}

class HashGate final : public Gate {
 public:
  explicit HashGate(std::uint64_t seed) : seed_(seed) {}

  std::int64_t implied_top_k(const MoeSettings&) const override { return 1; }
  bool reads_tokens(const MoeSettings&) const override { return true; }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.apply({.name = "hash_gate/choose",
             .inputs = {from.token, from.valid},
             .outputs = {to.expert},
             .host = [experts = config.experts, k_count = config.top_k, seed = seed_](const HostArguments& a) {
               const auto token = a.input<std::int32_t>(0);
               const auto valid = a.input<std::uint8_t>(1);
               const auto expert = a.output<std::int32_t>(0);
               for (std::size_t i = 0; i < expert.size(); ++i) {
                 const std::size_t t = i / static_cast<std::size_t>(k_count);
                 const auto choice = static_cast<std::int64_t>(i) % k_count;
                 expert[i] = valid[t] == 0 ? -1 : expert_of(token[t], choice, experts, seed);
               }
             }});
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    if (read_keys<ChoiceKeys>(kind_values(settings, "moe")).expert_groups == 1) {
      return {};
    }
    return {{{"moe.expert_groups"}, "[moe] expert_groups: the hash gate knows no groups of experts", "write 1"}};
  }

 private:
  std::uint64_t seed_;
};

class HashGatePlugin final : public Plugin {
  std::vector<KeySpec> keys() const override {
    return {{.name = "seed", .default_value = std::int64_t{1}, .help = "Which hash.", .minimum = 0}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<Gate>("hash", "Experts by the token's id (Roller et al., \"Hash Layers\", 2021).",
                        std::make_shared<HashGate>(static_cast<std::uint64_t>(config.integer("seed"))));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("hash_gate", HashGatePlugin)
