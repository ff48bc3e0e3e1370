// What `orthant bench machine` measures, as numbers. Values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant::machine {

// C = A B, A [rows, inner], B [inner, columns], by one rank on a core or device of its own.
struct ProductTime {
  bool half = false;  // bf16; else f32
  std::int64_t rows = 0, inner = 0, columns = 0;
  double seconds = 0;
};

// Work that moves bytes: `bytes` read and written in `seconds`.
struct MemoryTime {
  std::string name;  // "copy", "norm", "add", "activation", "adamw"
  double bytes = 0, seconds = 0;
};

// A collective of all ranks at once. bytes: what one rank holds of the whole, as in apps/cost/collectives.h.
struct LinkTime {
  std::string call;  // "all_reduce", "all_gather", "all_to_all", "send"
  double bytes = 0, seconds = 0;
};

struct Measured {
  std::string device = "cpu", communicator = "local", processor;
  int ranks = 1, cores = 1;
  double memory_bytes = 0;  // of the whole machine, or of one device
  std::vector<ProductTime> products;
  std::vector<MemoryTime> memory;
  double attention_flops = 0, attention_seconds = 0;  // a forward pass, f32
  std::vector<double> together;                       // [k - 1]: products/s of all k ranks that compute, over one's
  std::vector<LinkTime> links;                        // empty for one rank
  double expert_seconds = 0;                          // that one expert more costs a product of several
  double launch_seconds = 0;                          // of an operation on a few numbers
  double step_seconds = 0;                            // of a training step of nearly no work
};

// Errors: Error naming the first measurement that is not above 0, not finite or absurd, with its value.
void check(const Measured& measured);

std::string to_json(const Measured& measured);
// Errors: Error for text that to_json() did not write.
Measured from_json(const std::string& text);

}  // namespace orthant::machine
