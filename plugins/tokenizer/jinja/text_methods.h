// Methods of texts.
#pragma once

#include <string>

#include "plugins/tokenizer/jinja/run.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

// Null: there is none of this name.
using TextMethod = Value (*)(Run& run, const Value& of, Arguments& arguments);
TextMethod text_method(const std::string& name);

}  // namespace orthant::jinja
