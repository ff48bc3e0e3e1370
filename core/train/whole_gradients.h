// Gradients of a layout's ranks, put together on the host by their names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/layers/owned_pieces.h"
#include "core/train/trainer.h"

namespace orthant {

// Row-major elements of each parameter's global tensor.
using WholeTensors = std::map<std::string, std::vector<float>>;

// A tensor's elements as f32 on the host. Waits for the stream.
std::vector<float> to_host(Tensor values, Stream& stream);

// Puts the part of a 1-D or 2-D parameter that a rank owns at its place in the global tensor.
void place_piece(std::vector<float>& global, const Shape& shape, const OwnedPiece& piece,
                 const std::vector<float>& part);

// Adds the parts that this rank has to give: between Trainer::gradients and Trainer::apply of the step. Each rank calls
// it, one at a time where `to` is shared. first_worker: this rank is of the worker whose gradients are wanted.
void add_gradients(Trainer& trainer, KeeperChain& keepers, Stream& stream, std::int64_t step, bool first_worker,
                   WholeTensors& to);

}  // namespace orthant
