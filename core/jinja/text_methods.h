// Methods of texts.
#pragma once

#include <string>

#include "core/jinja/run.h"
#include "core/jinja/value.h"

namespace orthant::jinja {

// Null: there is none of this name.
using TextMethod = Value (*)(Run& run, const Value& of, Arguments& arguments);
TextMethod text_method(const std::string& name);

}  // namespace orthant::jinja
