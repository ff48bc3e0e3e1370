# Compiler options shared by every target of the project, as one interface target.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Asserts of libraries stay off, our own checks (require) are always on; -O2 everywhere, kernels ask for more.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(ORTHANT_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")  # a third of the time to compile, and truer stacks
endif()

find_program(ORTHANT_CCACHE ccache)
if(ORTHANT_CCACHE)
  # A precompiled header needs the two sloppinesses: it is compared by its content.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${ORTHANT_CCACHE}")
endif()

# Warnings are errors where CMAKE_COMPILE_WARNING_AS_ERROR says so: for whoever develops (the preset develop) and for CI,
# never for who installs, with a compiler that knows others, nor under a sanitizer.
# Files of a folder are compiled together, and Clang's -Wshadow sees the names of each in the others.
add_library(orthant_options INTERFACE)
target_compile_options(orthant_options INTERFACE
  -Wall -Wextra -Wpedantic $<$<CXX_COMPILER_ID:GNU>:-Wshadow> -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough)
# GCC 12 warns of its own AVX-512 intrinsics (GCC bug 105593) and of sums of its own strings (105651), mended in 13.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(orthant_options INTERFACE
    -Wno-uninitialized -Wno-maybe-uninitialized -Wno-array-bounds -Wno-restrict)
endif()
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # for ccache
if(ORTHANT_NATIVE)
  target_compile_options(orthant_options INTERFACE -march=native)
endif()
if(ORTHANT_SANITIZE)
  target_compile_options(orthant_options INTERFACE -fsanitize=${ORTHANT_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(orthant_options INTERFACE -fsanitize=${ORTHANT_SANITIZE})
  # The checks that a sanitizer adds make GCC warn of code that nobody wrote, another each on another processor; its
  # manual advises against warnings as errors here. The build without sanitizers reads the same sources.
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
endif()

# Programs, libraries and plugins find each other: build/bin, build/lib, build/lib/orthant/plugins.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}")

# Compiles the sources of each folder of a target together. A file of its own costs two seconds before its first line of
# code: the precompiled header is read, and what all files use of the standard library is made again.
option(ORTHANT_UNITY "Compile the sources of a folder together: a whole build takes half the time. OFF: each alone" ON)
function(orthant_compile_by_folder target)
  if(NOT ORTHANT_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" ABSOLUTE)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
    get_filename_component(folder "${folder}" DIRECTORY)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${folder}")  # those with options of their own stay alone
  endforeach()
endfunction()
