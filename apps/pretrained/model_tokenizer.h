// The tokenizer that a model is used with.
#pragma once

#include <memory>
#include <string>

#include "apps/pretrained/opened_model.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// given: a file, a folder or "bytes"; empty: the one that lies with the model, or bytes where its ids are those.
// Errors: ConfigError where the model has other ids than bytes and none is given; for a tokenizer with more ids than
// the model; those of load_tokenizer.
std::shared_ptr<const Tokenizer> tokenizer_of(const OpenedModel& model, const std::string& given);

}  // namespace orthant
