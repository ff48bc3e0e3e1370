// What the core's own blocks are made of beside attention and FFN (orthant/part.h): norms, and experts in the place of
// an FFN. For kinds of models (orthant/model.h) whose blocks are others than the decoder's.
//
// Thread safety: as for parts; a layer belongs to one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <orthant/abi/model.h>
#include <orthant/model.h>
#include <orthant/part.h>

namespace orthant {

// A norm as model.norm says: `stem`.weight [d], and of LayerNorm `stem`.bias.
std::vector<ParamSpec> norm_parameters(const Settings& settings, const std::string& stem);
// forward: the norm of x [T, d]. backward: dx in memory of its own.
std::unique_ptr<PartLayer> make_norm(const std::string& stem, const Parameters& parameters, const Plan& plan);

// Experts as [moe] says, in the place of a block's FFN: link.router becomes `stem`, and link.parameters gets
// `stem`.gate, `stem`.experts.N and `stem`.shared_experts, the router's and the shared ones in the first LayerSpecs.
// link.flops grows. Tokens are those of link.space. REQUIRES: link.block >= 0; link.parameters is not empty.
void add_experts(Link& link, const Settings& settings, const std::string& stem);
// The layer of such a link. Collective over the world the first time.
std::unique_ptr<PartLayer> make_experts(const Link& link, const Parameters& parameters, Plan& plan);

// The layer of a block, with memory.recompute = "full": forward keeps what entered and what experts (make_experts) have
// decided, backward first runs `block` forward once more. With other values it is as `block`. For every block of a kind
// that does not refuse the value; where Link::again_full is 0 a token costs its block's forward pass again. REQUIRES:
// no objective in it, one router at most, and a forward pass that is the same each time: random numbers by RandomKey.
std::unique_ptr<Layer> recomputed(std::unique_ptr<Layer> block);

// Drops elements of y [T, d] with the probability model.dropout, in place, in training; its own adjoint. site: another
// one for each place of the model, from 1 on; 0 is the embedding's.
Tensor branch_dropout(const StepContext& ctx, Tensor y, std::uint32_t site);

}  // namespace orthant
