// A gate with mistakes that the conformance suite must notice. [plugins.rude_gate] fault:
//   none        right: the expert of a token's index
//   range       an expert that there is not
//   twice       an expert twice
//   padding     an expert for padding
//   weight      a weight where there is no expert
//   counts      chosen counts nothing
//   unwritten   its operation leaves the last choice unwritten
//   gradient    twice the gradient
//   state       an update that depends on how often it was called
//   nan         an update of a step that is not finite
//   undeclared  its operation reads a tensor that it did not declare
//   host        reads its choices on the host, which a dry run has not
#include <orthant/gate.h>
#include <orthant/plugin.h>

#include <atomic>

namespace {

using namespace orthant;

class RudeGate final : public Gate {
 public:
  explicit RudeGate(std::string fault) : fault_(std::move(fault)) {}

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.apply({.name = "rude_gate/choose",
             .inputs = {from.index, from.valid},
             .outputs = {to.expert},
             .host = [fault = fault_, spied = from.logits, experts = config.experts,
                      k_count = config.top_k](const HostArguments& a) {
               const auto index = a.input<std::int64_t>(0);
               const auto valid = a.input<std::uint8_t>(1);
               const auto expert = a.output<std::int32_t>(0);
               const std::size_t last = fault == "unwritten" ? 1 : 0;
               for (std::size_t i = 0; i + last < expert.size(); ++i) {
                 const std::size_t t = i / static_cast<std::size_t>(k_count);
                 const auto choice = static_cast<std::int64_t>(i) % k_count;
                 expert[i] = valid[t] == 0 && fault != "padding"
                                 ? -1
                                 : static_cast<std::int32_t>((index[t] + (fault == "twice" ? 0 : choice)) % experts);
               }
               if (fault == "range") {
                 expert[0] = -2;
               }
               if (fault == "undeclared") {
                 const volatile float first = *spied.as<float>();
                 (void)first;
               }
             }});
    if (fault_ == "range") {  // the next operation would refuse it first
      s.fill(to.weight, 0);
      s.fill(to.lse, 0);
      s.fill(to.chosen, 0);
      s.fill(to.share, 0);
    } else {
      s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
    }
    if (fault_ == "weight") {
      s.fill(to.weight, 0.5);
    }
    if (fault_ == "counts") {
      s.fill(to.chosen, 0);
    }
    if (fault_ == "host") {
      std::vector<float> read(from.logits.elements() * 100);
      s.download(read.data(), s.device().empty(DType::f32, {from.logits.elements() * 100}));
    }
  }

  void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                float aux_scale, float z_scale, const GateConfig& config, Stream& s) const override {
    Gate::backward(dlogits, dweight, made, from, aux_scale, z_scale, config, s);
    if (fault_ == "gradient") {
      s.scale(dlogits, 2);
    }
  }

  bool keeps_state(const MoeSettings&) const override { return true; }
  void update(const GateUpdate& of, const Settings&, Stream& s) const override {
    static std::atomic<int> calls = 0;
    s.balance_bias(of.state, of.load(), of.factor, 0.1f);
    if (fault_ == "state") {
      s.scale(of.state, static_cast<float>(++calls));
    }
    if (fault_ == "nan") {
      s.scale(of.state, 2);
    }
  }

 private:
  std::string fault_;
};

class RudeGatePlugin final : public Plugin {
  std::vector<KeySpec> keys() const override {
    return {{.name = "fault", .default_value = std::string("none"), .help = "What is wrong."}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<Gate>("rude", "Wrong in one way.", std::make_shared<RudeGate>(config.text("fault")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("rude_gate", RudeGatePlugin)
