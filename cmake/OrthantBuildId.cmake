# The hash of the public headers, as a generated public header. A plugin compiled against other headers has
# another hash and is refused by name before any virtual call (core/modules/module.cpp).
set(ORTHANT_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")
file(GLOB ORTHANT_PUBLIC_HEADERS CONFIGURE_DEPENDS core/include/orthant/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ORTHANT_PUBLIC_HEADERS})
set(all_hashes "")
foreach(header IN LISTS ORTHANT_PUBLIC_HEADERS)
  file(SHA256 "${header}" header_hash)
  get_filename_component(header_name "${header}" NAME)
  string(APPEND all_hashes "${header_name}=${header_hash};")
endforeach()
string(SHA256 ORTHANT_HEADERS_HASH "${all_hashes}")
string(SUBSTRING "${ORTHANT_HEADERS_HASH}" 0 16 ORTHANT_HEADERS_HASH)
configure_file(cmake/build_id.h.in "${ORTHANT_GENERATED_DIR}/orthant/build_id.h" @ONLY)

# The hash of all headers of the tree, made again when one of them changes (OrthantTreeHash.cmake says what for).
file(GLOB_RECURSE ORTHANT_TREE_HEADERS CONFIGURE_DEPENDS core/*.h router/*.h experts/*.h parallel/*.h)
add_custom_command(OUTPUT "${ORTHANT_GENERATED_DIR}/orthant_build.h"
  COMMAND "${CMAKE_COMMAND}" -D "ROOT=${CMAKE_CURRENT_SOURCE_DIR}" -D "TO=${ORTHANT_GENERATED_DIR}/orthant_build.h"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/OrthantTreeHash.cmake"
  DEPENDS ${ORTHANT_TREE_HEADERS} "${CMAKE_CURRENT_SOURCE_DIR}/cmake/OrthantTreeHash.cmake" VERBATIM)
# For whoever reads the sources and builds nothing (scripts/check_sources.sh).
if(NOT EXISTS "${ORTHANT_GENERATED_DIR}/orthant_build.h")
  execute_process(COMMAND "${CMAKE_COMMAND}" -D "ROOT=${CMAKE_CURRENT_SOURCE_DIR}" -D "TO=${ORTHANT_GENERATED_DIR}/orthant_build.h"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/OrthantTreeHash.cmake" COMMAND_ERROR_IS_FATAL ANY)
endif()
