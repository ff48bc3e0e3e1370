# What plugins are compared by: a hash of each group of the public headers, as generated public headers.
include(OrthantHeaderGroups)
set(ORTHANT_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")
orthant_header_groups("${CMAKE_CURRENT_SOURCE_DIR}/core/include" "${ORTHANT_GENERATED_DIR}")

# The hash of all headers of the tree, made again when one of them changes (OrthantTreeHash.cmake says what for).
file(GLOB_RECURSE ORTHANT_TREE_HEADERS CONFIGURE_DEPENDS core/*.h router/*.h experts/*.h objectives/*.h parallel/*.h)
add_custom_command(OUTPUT "${ORTHANT_GENERATED_DIR}/orthant_build.h"
  COMMAND "${CMAKE_COMMAND}" -D "ROOT=${CMAKE_CURRENT_SOURCE_DIR}" -D "TO=${ORTHANT_GENERATED_DIR}/orthant_build.h"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/OrthantTreeHash.cmake"
  DEPENDS ${ORTHANT_TREE_HEADERS} "${CMAKE_CURRENT_SOURCE_DIR}/cmake/OrthantTreeHash.cmake" VERBATIM)
# For whoever reads the sources and builds nothing (scripts/check_sources.sh).
if(NOT EXISTS "${ORTHANT_GENERATED_DIR}/orthant_build.h")
  execute_process(COMMAND "${CMAKE_COMMAND}" -D "ROOT=${CMAKE_CURRENT_SOURCE_DIR}" -D "TO=${ORTHANT_GENERATED_DIR}/orthant_build.h"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/OrthantTreeHash.cmake" COMMAND_ERROR_IS_FATAL ANY)
endif()
