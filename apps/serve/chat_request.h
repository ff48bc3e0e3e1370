// The body of POST /v1/chat/completions, read without trust: the model's own template makes a prompt of it.
#pragma once

#include <string>

#include "apps/serve/answer_fields.h"

namespace orthant {

// Errors: ApiError of status 400 or 404; of status 400 where the model has no template, too.
CompletionRequest read_chat(const std::string& body, const CompletionLimits& limits);

}  // namespace orthant
