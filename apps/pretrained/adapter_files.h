// The adapters of a run ([lora]) as peft reads them: adapter_model.safetensors and adapter_config.json.
//
// Source: peft, docs/source/developer_guides/checkpoint.md ("PEFT checkpoint format").
#pragma once

#include <string>
#include <vector>

#include "apps/pretrained/tensor_names.h"
#include "apps/pretrained/twin.h"
#include "core/config/config.h"

namespace orthant {

// Where each adapter lies in the file. form: how the model that they adapt stores its experts. Errors: ConfigError
// naming what peft cannot express: a run without adapters, a model without a twin in transformers, adapters of experts
// that are packed or of routers, and parameters that trained beside the adapters.
std::vector<TensorPlace> adapter_places(const Config& config, const Twin& twin, ExpertForm form);

// Why an export of this run with --adapter would be refused, as far as its configuration tells before it has trained;
// empty: it would not, or there are no adapters.
std::string adapter_refusal(const Config& config);

// The text of adapter_config.json. REQUIRES: adapter_places has accepted the run.
std::string adapter_config_json(const Config& config, const Twin& twin);

}  // namespace orthant
