// Encoders: ModelKind "bert" (chain.h), the sources "masked" and "labelled" (sources.h), and the objectives "masked"
// and "classes" (accuracy.h). It claims no axis and binds no seam.
//
//   [data]
//   source = "masked"
//   [model]
//   kind = "bert"
//   [plugins.encoder]
#include <orthant/plugin.h>

#include "accuracy.h"
#include "chain.h"
#include "sources.h"

namespace {

using namespace orthant;

class Encoder final : public Plugin {
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<ModelKind>("bert", "An encoder, whose tokens see their whole text (Devlin et al., \"BERT\", 2019).",
                             encoder::make_bert());
    catalogue.add<Source>("masked", "Texts with tokens hidden, which are the labels (Devlin et al., 2019).",
                          encoder::make_masked_source());
    catalogue.add<Source>("labelled", "JSON lines of texts with a class each, or one for each token.",
                          encoder::make_labelled_source());
    catalogue.add<Objective>("masked", "Cross entropy of the labels, and how many are the first guess.",
                             encoder::make_accuracy("masked_accuracy", "masked"));
    catalogue.add<Objective>("classes", "Cross entropy of classes, and how many are the first guess.",
                             encoder::make_accuracy("class_accuracy", "labelled"));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("encoder", Encoder)
