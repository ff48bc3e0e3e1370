// The twin of a model in transformers: the family that computes the same, and its config.json.
#pragma once

#include <string>
#include <vector>

#include "apps/pretrained/family.h"
#include "apps/pretrained/receipt.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

struct Twin {
  FamilyPtr family;                  // null: there is none
  ConfigLink::Theirs config;         // as the family says it
  std::vector<std::string> reasons;  // why there is none, a line each
  // Where no family says the model as it stands, and one says it so: what the last matrix of each routed expert is
  // multiplied by in place of moe.weight_scale, and whether o_proj has biases, all zero.
  double expert_factor = 1;
  bool zero_output_bias = false;
};

// origin: of a run that began from a published model, whose family is then asked; null: the first of all families that
// can say it, if need be by other weights that compute the same. Where none can, the reasons are Mixtral's, or
// Mistral's for a dense model. Errors: Error for an origin of a family that is not known.
Twin twin_of(const Config& config, const Origin* origin = nullptr);

// How the experts of such an export are stored.
ExpertForm form_of(const Twin& twin, const Origin* origin);

// What is to be said of the weights that are written.
struct Written {
  bool types_kept = false;        // they have the origin's types
  DType dtype = DType::f32;       // of all weights, f32 where they have two
  SpecialTokens special = {};     // of the tokenizer that is written with them
  std::int64_t trained_with = 0;  // positions of a sequence; 0: not trained since the origin
};

// The text of config.json: the origin's own, where the model is still what it says and keeps its types; else the
// twin's; without a twin our own keys. What the origin says of its tokenizer's ids and of positions stays, but for
// positions that the run had more of.
std::string config_json(const Config& config, const Twin& twin, const Origin* origin, const Written& written);

// Whether the origin's positions stay all the same: transformers may scale by their number (YaRN).
bool positions_stay(const Settings& settings);

}  // namespace orthant
