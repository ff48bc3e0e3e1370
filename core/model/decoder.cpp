#include "core/model/decoder.h"

#include "core/arch/decoder.h"
#include "core/layers/embedding.h"
#include "core/layers/head.h"
#include "core/model/block.h"
#include "core/model/mtp.h"

namespace orthant {
namespace {

// Of models of all kinds.
struct StartKeys {
  std::vector<std::string> anew;
  static const Keys<StartKeys>& keys() {
    static const auto all =
        Keys<StartKeys>()
            .add("anew", &StartKeys::anew,
                 "from: parameters, by name as in freeze, that begin anew where it has none of their name and shape, "
                 "and that stay behind where the model has none: a new head.")
            .in("train")
            .after("from");
    return all;
  }
};

class Decoder final : public ModelKind {
 public:
  std::vector<KindKey> keys() const override { return StartKeys::keys().declared(); }
  std::vector<Link> links(const Settings& settings) const override { return decoder_links(settings); }

  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    const auto& store = static_cast<const ParamStore&>(parameters);  // there are no others
    if (link.block >= 0 && !link.objective) {
      return recomputed(std::make_unique<Block>(store, plan, link));
    }
    if (link.block >= 0) {
      return std::make_unique<MtpLayer>(store, plan, link);
    }
    if (link.objective) {
      return std::make_unique<HeadLayer>(store, plan, link);
    }
    return std::make_unique<EmbeddingLayer>(store, plan.settings());
  }
};

}  // namespace

void add_model_kinds(Catalogue& catalogue) {
  catalogue.add<ModelKind>(decoder_kind, "A causal transformer: embedding, blocks, head (Radford et al., 2018).",
                           std::make_shared<Decoder>());
}

}  // namespace orthant
