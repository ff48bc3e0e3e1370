// The layers of an encoder's links (chain.h). Each passes on {x}, x [T, d].
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <orthant/model.h>
#include <orthant/part.h>

namespace orthant::encoder {

std::unique_ptr<Layer> make_embedding(const Parameters& parameters, const Plan& plan);
std::unique_ptr<Layer> make_block(const Link& link, const Parameters& parameters, Plan& plan);
std::unique_ptr<Layer> make_final_norm(const Parameters& parameters, const Plan& plan);

// What stands between the last block and the head's norm: act(W x + b), of each token or of the mean over its text.
std::vector<ParamSpec> transform_parameters(const Settings& settings);
double transform_flops(const Settings& settings);
std::unique_ptr<Layer> make_transform(const Parameters& parameters, const Plan& plan);

// The block whose kind of attention, with the window or without, a block of the encoder has (core/layers/attention).
int attention_block(const Settings& settings, int block);

// A dense FFN of the plugin's own, for what the part "mlp" has not: biases, and the exact GELU. `stem`.gate_proj where
// it is gated, .up_proj and .down_proj.
bool has_own_ffn(const Settings& settings);
std::vector<ParamSpec> ffn_parameters(const Settings& settings, const std::string& stem);
double own_ffn_flops(const Settings& settings);
std::unique_ptr<PartLayer> make_ffn(const Settings& settings, const std::string& stem, const Parameters& parameters);

// Of dropout masks: 0 is the embedding's; two in each block.
inline std::uint32_t dropout_site(int link, int branch) {
  return static_cast<std::uint32_t>(2 * link + branch);
}

}  // namespace orthant::encoder
