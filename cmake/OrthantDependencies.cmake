# What the library is built with. Everything comes from the distribution's packages (see ./launch --help).
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_path(ORTHANT_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(ORTHANT_TOMLPP_INCLUDE toml++/toml.h REQUIRED)

option(ORTHANT_ONEDNN "Use oneDNN for matrix products where it is found" ON)
if(ORTHANT_ONEDNN)
  # Found by hand: the distribution's dnnl-config.cmake insists on OpenCL, which a CPU build does not need.
  find_path(ORTHANT_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)
  find_library(ORTHANT_DNNL_LIBRARY dnnl)
endif()

add_library(orthant_private_dependencies INTERFACE)
target_include_directories(orthant_private_dependencies SYSTEM INTERFACE ${ORTHANT_XXHASH_INCLUDE} ${ORTHANT_TOMLPP_INCLUDE})
target_compile_definitions(orthant_private_dependencies INTERFACE XXH_INLINE_ALL)
target_link_libraries(orthant_private_dependencies INTERFACE
  Threads::Threads OpenMP::OpenMP_CXX nlohmann_json::nlohmann_json CLI11::CLI11 OpenSSL::Crypto ${CMAKE_DL_LIBS})
if(ORTHANT_ONEDNN AND ORTHANT_DNNL_INCLUDE AND ORTHANT_DNNL_LIBRARY)
  target_link_libraries(orthant_private_dependencies INTERFACE ${ORTHANT_DNNL_LIBRARY})
  target_compile_definitions(orthant_private_dependencies INTERFACE ORTHANT_HAVE_ONEDNN=1)
  set(ORTHANT_GEMM "oneDNN (${ORTHANT_DNNL_LIBRARY})")
else()
  set(ORTHANT_GEMM "built-in (oneDNN not found: slower; install libdnnl-dev)")
endif()

# Tokenizers: regular expressions, Unicode's normal forms, SentencePiece models.
find_path(ORTHANT_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(ORTHANT_PCRE2_LIBRARY pcre2-8 REQUIRED)
find_path(ORTHANT_UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(ORTHANT_UTF8PROC_LIBRARY utf8proc REQUIRED)
find_path(ORTHANT_SENTENCEPIECE_INCLUDE sentencepiece_trainer.h REQUIRED)
find_library(ORTHANT_SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
find_library(ORTHANT_SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
add_library(orthant_tokenizer_dependencies INTERFACE)
target_include_directories(orthant_tokenizer_dependencies SYSTEM INTERFACE
  ${ORTHANT_PCRE2_INCLUDE} ${ORTHANT_UTF8PROC_INCLUDE} ${ORTHANT_SENTENCEPIECE_INCLUDE})
target_link_libraries(orthant_tokenizer_dependencies INTERFACE ${ORTHANT_PCRE2_LIBRARY} ${ORTHANT_UTF8PROC_LIBRARY}
  ${ORTHANT_SENTENCEPIECE_TRAIN_LIBRARY} ${ORTHANT_SENTENCEPIECE_LIBRARY})

# HTTP, for `orthant serve`. The header must see the options that the library was built with, and no other source need.
find_package(PkgConfig REQUIRED)
pkg_check_modules(ORTHANT_HTTPLIB REQUIRED cpp-httplib)
set_source_files_properties(core/serve/http_server.cpp PROPERTIES
  COMPILE_OPTIONS "${ORTHANT_HTTPLIB_CFLAGS}" SKIP_PRECOMPILE_HEADERS ON)

function(orthant_print_summary)
  message(STATUS "")
  message(STATUS "Orthant ${PROJECT_VERSION}")
  message(STATUS "  compiler      ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}, native ${ORTHANT_NATIVE}")
  message(STATUS "  matrix products ${ORTHANT_GEMM}")
  message(STATUS "  sanitizers    ${ORTHANT_SANITIZE}")
  get_property(lines GLOBAL PROPERTY ORTHANT_SUMMARY)
  foreach(line IN LISTS lines)
    message(STATUS "  ${line}")
  endforeach()
  message(STATUS "")
endfunction()
