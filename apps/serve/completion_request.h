// The body of POST /v1/completions, read without trust: what is asked of the generator, or an ApiError that says which
// field is wrong and why. A field that would change the answer and is not done here is refused, never ignored.
#pragma once

#include <string>

#include "apps/serve/answer_fields.h"

namespace orthant {

// Errors: ApiError, of status 400 or 404.
CompletionRequest read_completion(const std::string& body, const Tokenizer& tokenizer, const CompletionLimits& limits);

}  // namespace orthant
