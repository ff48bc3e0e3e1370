// Options of commands that generate: how much memory they may take beside the weights.
#pragma once

#include <cstdint>

namespace CLI {
class App;
}

namespace orthant {

// --latent-memory SIZE: EngineOptions::latent_room.
void add_latent_memory(CLI::App& command, std::int64_t& bytes);

// --prefix-memory SIZE, of serve: PrefixCache's room.
void add_prefix_memory(CLI::App& command, std::int64_t& bytes);

}  // namespace orthant
