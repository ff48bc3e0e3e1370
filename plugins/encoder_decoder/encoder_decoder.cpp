// Encoder-decoders: ModelKind "t5" (chain.h), how it answers (stepwise.h), the published models that it can be
// (families.h), and sources of pairs (sources.h). It claims no axis and binds no seam.
//
//   [data]
//   source = "spans"
//   [model]
//   kind = "t5"
//   source_length = 256
//   [plugins.encoder_decoder]
#include <orthant/plugin.h>

#include "chain.h"
#include "families.h"
#include "sources.h"
#include "stepwise.h"

namespace {

using namespace orthant;

class EncoderDecoder final : public Plugin {
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<ModelKind>("t5", "An encoder and a decoder with relative positions (Raffel et al., 2020).",
                             encoder_decoder::make_t5());
    catalogue.add<Source>("spans", "A text with runs of tokens left out, which are the target (Raffel et al., 2020).",
                          encoder_decoder::make_span_source());
    catalogue.add<Source>("prefix", "A text's beginning, and the rest as the target (Raffel et al., 2020).",
                          encoder_decoder::make_prefix_source());
    catalogue.add<Source>("translation", "Pairs of texts in JSON lines.", encoder_decoder::make_translation_source());
    catalogue.add<Source>("rewriting", "Words of random letters, and each backwards with its vowels as capitals.",
                          encoder_decoder::make_rewriting_source());
    catalogue.add<Stepwise>("t5", "The encoder once for a source, the decoder token by token.",
                            encoder_decoder::make_t5_stepwise());
    catalogue.add<PublishedFamily>("t5", "T5, T5 1.1, FLAN-T5 (Raffel et al., 2020).",
                                   encoder_decoder::make_t5_family());
    catalogue.add<PublishedFamily>("mt5", "mT5 (Xue et al., 2021).", encoder_decoder::make_mt5_family());
    catalogue.add<PublishedFamily>("switch_transformers", "Switch Transformers (Fedus et al., 2021).",
                                   encoder_decoder::make_switch_family());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("encoder_decoder", EncoderDecoder)
