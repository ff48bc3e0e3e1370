// Functions that every template can call: range, dict, namespace, raise_exception, strftime_now; and how a function
// takes its arguments.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "plugins/tokenizer/jinja/run.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

// Nothing: there is none of this name.
std::optional<Value> function_named(const std::string& name);

// The arguments in the order of `names`, however they were given; nothing where one was not. Errors: TemplateError for
// one too many, one that is not known, and one that is given twice.
std::vector<std::optional<Value>> taken(const std::string& function, const Arguments& arguments,
                                        std::initializer_list<const char*> names);

}  // namespace orthant::jinja
