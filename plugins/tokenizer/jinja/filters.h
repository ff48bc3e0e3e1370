// Filters and tests by name.
#pragma once

#include <string>

#include "plugins/tokenizer/jinja/run.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

using Filter = Value (*)(Run& run, const Value& value, Arguments& arguments);
using Test = bool (*)(Run& run, const Value& value, Arguments& arguments);

// Null: none of this name is known here.
Filter filter_named(const std::string& name);
Test test_named(const std::string& name);

// The two halves of filter_named: of one value, and of rows of them.
Filter value_filter_named(const std::string& name);
Filter row_filter_named(const std::string& name);

}  // namespace orthant::jinja
