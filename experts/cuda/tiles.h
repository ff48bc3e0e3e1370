// The tiles of CUTLASS's kernels. Apart from the rules that choose among them (choose_tile.h): those kernels take
// minutes to compile, and a rule changes with each measurement.
#pragma once

namespace orthant::cuda {

// Hopper: two tiles make a cluster, which reads what they share once.
enum class HopperTile {
  large,       // 128 x 256 by two warp groups together, one tile below the other: the fewest bytes per product
  overlapped,  // 128 x 192, two side by side: a tile is stored while the next one is multiplied (ping-pong)
  square,      // 128 x 128, likewise: for widths that 192 pads
  small,       // 64 x 128, no clusters: few rows an expert
};

// Blackwell.
enum class BlackwellTile {
  pair,    // 256 x 256 by two multiprocessors, each of which reads half of b: the fewest bytes per product
  single,  // 128 x 128 by one: few rows an expert
};

}  // namespace orthant::cuda
