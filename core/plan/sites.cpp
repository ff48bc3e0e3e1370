// The table of sites, and their names.
#include <orthant/seams.h>

namespace orthant {
namespace {

using enum SiteInfo::Columns;

constexpr const char* embedding = "the embedding";
constexpr const char* block = "each block";
constexpr const char* ffn = "each dense FFN, and the shared experts";
constexpr const char* routed = "each block with experts";
constexpr const char* head = "the head";

constexpr Sharing residual{Region::norm};
constexpr Sharing vocabulary{Region::embedding, Dim::vocab}, logits{Region::head, Dim::vocab};
constexpr Sharing heads_of_attention{Region::attention, Dim::head}, heads_of_core{Region::attention_core, Dim::head};
constexpr Sharing channels{Region::ffn, Dim::ffn}, channels_of_experts{Region::experts, Dim::ffn};
constexpr Sharing routing{Region::router}, choices_alike{Region::experts};

constexpr Site entering(Region region) {
  return {region, Side::enter};
}
constexpr Site leaving(Region region) {
  return {region, Side::leave};
}

constexpr SiteInfo table[] = {
    {leaving(Region::embedding), "rows of the embedding", "[T, d]", width, true, 1, embedding, vocabulary, residual},
    {entering(Region::attention), "normed activations", "[T, d]", width, true, 1, block, residual, heads_of_attention},
    {entering(Region::attention_core), "queries; keys; values", "[T, h c]", heads, true, 3, block, heads_of_attention,
     heads_of_core},
    {leaving(Region::attention_core), "the core's output", "[T, h c]", heads, true, 1, block, heads_of_core,
     heads_of_attention},
    {leaving(Region::attention), "attention's output", "[T, d]", width, true, 1, block, heads_of_attention, residual},
    {entering(Region::ffn), "normed activations", "[T, d]", width, true, 1, ffn, residual, channels},
    {leaving(Region::ffn), "the FFN's output", "[T, d]", width, true, 1, ffn, channels, residual},
    {entering(Region::router), "normed activations", "[T, d]", width, true, 1, routed, residual, routing},
    {leaving(Region::router), "weights of the choices", "[T, K]", choices, false, 1, routed, choices_alike,
     channels_of_experts},
    {entering(Region::experts), "normed activations", "[T, d]", width, true, 1, routed, residual, channels_of_experts},
    {leaving(Region::experts), "the experts' output", "[T, d]", width, true, 1, routed, channels_of_experts, residual},
    {entering(Region::head), "normed activations", "[T, d]", width, true, 1, head, residual, logits},
};

}  // namespace

std::span<const SiteInfo> sites() {
  return table;
}

std::string name_of(const Site& site) {
  return fmt::format("{} {}", site.side == Side::enter ? "entering" : "leaving", name_of(site.region));
}

}  // namespace orthant
