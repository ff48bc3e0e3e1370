// What is looked at in each kind that a plugin adds to the catalogue.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/check/conformance.h"
#include "apps/check/experiment.h"

namespace orthant {

// The key that names a kind of the noun, "model.ffn"; empty: no key does.
std::string key_of(const std::string& noun);

struct KindUnderTest {
  PluginUnderTest plugin;
  std::string noun, name;  // "ffn", "gated_unit"

  // The experiment in which it is chosen, on one rank. `overrides`: further ones. Errors: ConfigError.
  Config experiment(const std::vector<std::string>& overrides = {}) const;
};

// Each check throws what training throws.
struct KindCheck {
  const char* noun;  // of this noun alone; empty: of each that a key of the configuration chooses
  const char* name;
  Finding (*run)(const KindUnderTest& kind);
};

// --- of every noun that a key chooses
// As orthant verify, above each axis of this Orthant; a layout may be refused before it starts.
Finding check_kind_parity(const KindUnderTest& kind);
// Nothing but operations touches memory, and two runs agree in every bit.
Finding check_kind_guarded(const KindUnderTest& kind);

// --- of gates and of optimizers: gate_checks.h, optimizer_checks.h
Finding check_gate_contract(const KindUnderTest& kind);
Finding check_optimizer_contract(const KindUnderTest& kind);

// --- of parts (attention, ffn)
// A pure function, names below the stem and each its own, sizes and costs that make sense.
Finding check_part_parameters(const KindUnderTest& kind);
// A block that is computed again gives the same bits; of models too.
Finding check_part_recompute(const KindUnderTest& kind);

// --- of parts, objectives and models: every gradient of the model is the derivative of its loss.
Finding check_gradients(const KindUnderTest& kind);

// --- of objectives: a step and a validation can be written and told.
Finding check_objective_figures(const KindUnderTest& kind);

// --- of sources: sequence i is the same whoever asks, in any order; ids and lengths are in range.
Finding check_source_sequences(const KindUnderTest& kind);

// --- of hooks: the same on every rank; as if it had never stopped after a restore.
Finding check_hook_ranks(const KindUnderTest& kind);
Finding check_hook_restore(const KindUnderTest& kind);

std::span<const KindCheck> kind_checks();

}  // namespace orthant
