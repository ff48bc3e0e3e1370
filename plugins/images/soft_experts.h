// Soft MoE in the place of a block's FFN (Puigcerver et al., "From Sparse to Soft Mixtures of Experts", 2023).
//
// With x [m, d] the tokens of one image, Phi [Q, d] a row for each of the Q = E p slots, and l = x Phi':
//   slots = D' x,  D = softmax of l over the tokens          y = C f(slots),  C = softmax of l over the slots
// f: slot j goes through expert j / p, which is one of moe.experts FFNs. Nothing is chosen, dropped or balanced.
//
// An image is mixed as a whole, so its tokens must be held together where experts are. Slots travel to the ranks of
// their experts by the plan's exchange. Where an axis divides the channels of experts, each rank mixes with its part of
// y alone: then what enters gets a part of its gradient, and so does Phi, which is `repeats` for that reason.
#pragma once

#include <memory>
#include <string>

#include <orthant/model.h>
#include <orthant/part.h>

namespace orthant::images {

// link.parameters gets `stem`.slots.weight and `stem`.experts.N.w1, .w2 (gated activations: .w3); link.flops grows.
void add_soft_experts(Link& link, const Settings& s, const std::string& stem);
std::unique_ptr<PartLayer> make_soft_experts(const std::string& stem, const Parameters& parameters, const Plan& plan);

// Errors: ConfigError naming an axis that divides images where experts are.
void require_whole_images(const Plan& plan);

// logits f32 [images m, Q] -> dispatch, the softmax over each image's tokens, and combine, that over the slots.
void soft_weights(const Tensor& dispatch, const Tensor& combine, const Tensor& logits, std::int64_t tokens, Stream& s);
// dlogits of both.
void soft_weights_backward(const Tensor& dlogits, const Tensor& ddispatch, const Tensor& dcombine,
                           const Tensor& dispatch, const Tensor& combine, std::int64_t tokens, Stream& s);

}  // namespace orthant::images
