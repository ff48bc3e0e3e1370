# What plugins are compared by: a hash of each group of the public headers, as generated public headers.
include(OrthantHeaderGroups)
set(ORTHANT_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")
orthant_header_groups("${CMAKE_CURRENT_SOURCE_DIR}/core/include" "${ORTHANT_GENERATED_DIR}")
