// Encoder-decoders: ModelKind "t5" (chain.h), and the sources "spans" and "rewriting" (sources.h). It claims no axis
// and binds no seam.
//
//   [data]
//   source = "spans"
//   [model]
//   kind = "t5"
//   source_length = 256
//   [plugins.encoder_decoder]
#include <orthant/plugin.h>

#include "chain.h"
#include "sources.h"

namespace {

using namespace orthant;

class EncoderDecoder final : public Plugin {
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<ModelKind>("t5", "An encoder and a decoder with relative positions (Raffel et al., 2020).",
                             encoder_decoder::make_t5());
    catalogue.add<Source>("spans", "A text with runs of tokens left out, which are the target (Raffel et al., 2020).",
                          encoder_decoder::make_span_source());
    catalogue.add<Source>("rewriting", "Words of random letters, and each backwards with its vowels as capitals.",
                          encoder_decoder::make_rewriting_source());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("encoder_decoder", EncoderDecoder)
