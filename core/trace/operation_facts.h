// What an operation of a stream is, by its name and its tensors.
#pragma once

#include <orthant/tensor.h>

#include <initializer_list>
#include <string_view>

#include "core/trace/trace.h"

namespace orthant {

// transfer for uploads and downloads, else compute.
SpanKind kind_of_operation(std::string_view name);

// Matrix products of routed experts whose fourth tensor says which rows are whose.
bool is_grouped_product(std::string_view name);

// tensors: the operation's, in the order of ops.h. Rows of experts' buffers count whether a token lies in them or not.
SpanFacts facts_of_operation(std::string_view name, std::initializer_list<Tensor> tensors);

}  // namespace orthant
