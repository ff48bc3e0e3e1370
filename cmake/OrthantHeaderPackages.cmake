# Headers of NVIDIA's that the CUDA code is compiled with and no distribution packages: taken from the wheels on PyPI,
# pinned by version and SHA-256. Only headers are unpacked, into a folder that build trees share. Nothing is fetched
# twice, nothing is fetched without ORTHANT_CUDA, and where nothing can be fetched the build goes on without them.
#
#   orthant_cutlass          CUTLASS and CuTe: Hopper's grouped matrix products (experts/cuda)
#   orthant_cudnn_frontend   cuDNN's C++ front end: fused attention (core/device/cuda)
#
# Each is an interface target that exists only if its headers do.
if(DEFINED ENV{XDG_CACHE_HOME})
  set(cache_root "$ENV{XDG_CACHE_HOME}/orthant")
elseif(DEFINED ENV{HOME})
  set(cache_root "$ENV{HOME}/.cache/orthant")
else()
  set(cache_root "${CMAKE_BINARY_DIR}/packages")
endif()
set(ORTHANT_PACKAGE_CACHE "${cache_root}" CACHE PATH "Where the headers from PyPI are kept; a wheel put here by hand is used")
option(ORTHANT_FETCH "Fetch the headers that the CUDA code wants (pinned wheels from PyPI)" ON)

# orthant_header_package(TARGET title file url-folder sha256 inside probe): unpacks `inside` of the wheel `file` and
# defines TARGET with it as include folder. probe: a header that must be there. Sets TARGET_problem where it cannot.
function(orthant_header_package target title file url sha256 inside probe)
  set(${target}_problem "" PARENT_SCOPE)
  string(REGEX REPLACE "^([^-]+-[^-]+)-.*" "\\1" stem "${file}")
  string(SUBSTRING "${sha256}" 0 8 short_hash)
  set(folder "${ORTHANT_PACKAGE_CACHE}/${stem}-${short_hash}")
  if(NOT EXISTS "${folder}/${inside}/${probe}")
    string(RANDOM LENGTH 8 suffix)  # other build trees may be at the same: a folder of its own, then one rename
    set(work "${folder}.${suffix}")
    set(wheel "${ORTHANT_PACKAGE_CACHE}/${file}")
    set(problem "")
    execute_process(COMMAND ${CMAKE_COMMAND} -E make_directory "${work}" RESULT_VARIABLE code ERROR_QUIET)
    if(NOT code EQUAL 0)
      set(problem "the folder cannot be written")
    elseif(NOT EXISTS "${wheel}" AND NOT ORTHANT_FETCH)
      set(problem "not there, and ORTHANT_FETCH is off")
    elseif(NOT EXISTS "${wheel}")
      message(STATUS "fetching ${url}/${file}")
      set(wheel "${work}/${file}")
      file(DOWNLOAD "${url}/${file}" "${wheel}" STATUS status TIMEOUT 300 INACTIVITY_TIMEOUT 20)
      list(GET status 0 code)
      if(NOT code EQUAL 0)
        list(GET status 1 words)
        string(REPLACE "\"" "" words "${words}")
        set(problem "not fetched: ${words}")
      endif()
    endif()
    if(problem STREQUAL "")
      file(SHA256 "${wheel}" found)
      if(found STREQUAL sha256)
        file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${work}/unpacked" PATTERNS "${inside}/*" "*.dist-info/*LICENSE*")
        file(RENAME "${work}/unpacked" "${folder}" RESULT ignored)  # fails where another was faster: the same files
      else()
        set(problem "refused, its SHA-256 is ${found} and not ${sha256}")
      endif()
    endif()
    if(IS_DIRECTORY "${work}")
      file(REMOVE_RECURSE "${work}")
    endif()
    if(NOT problem STREQUAL "")
      message(STATUS "${title}: ${problem}. To build with it, put the file of ${url}/${file} into ${ORTHANT_PACKAGE_CACHE} and configure again.")
      set(${target}_problem "${problem}" PARENT_SCOPE)
      return()
    endif()
  endif()
  if(NOT EXISTS "${folder}/${inside}/${probe}")
    message(FATAL_ERROR "${folder} has no ${inside}/${probe}. Remove the folder and configure again.")
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE "${folder}/${inside}")
endfunction()

set(pypi https://files.pythonhosted.org/packages)
orthant_header_package(orthant_cutlass "CUTLASS 4.2.0" nvidia_cutlass-4.2.0.0-py3-none-any.whl
  ${pypi}/21/6b/e86fc2fd536dd4b8bd2209aa31d7002610c501b0802337787eac9c9b328c
  f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6
  cutlass_library/source/include cutlass/cutlass.h)
# The wheels of the front end differ only in their Python modules, which stay packed.
orthant_header_package(orthant_cudnn_frontend "cuDNN front end 1.32.0"
  nvidia_cudnn_frontend-1.32.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl
  ${pypi}/11/02/660e2dd9f9d9f940e1641443771730612c3aadaafbc5ef7a93cc313d519d
  c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
  include cudnn_frontend.h)

if(TARGET orthant_cutlass)
  set_property(GLOBAL APPEND PROPERTY ORTHANT_SUMMARY "expert GEMM on Hopper: CUTLASS 4.2.0")
else()
  set_property(GLOBAL APPEND PROPERTY ORTHANT_SUMMARY "expert GEMM on Hopper: built-in, fused (CUTLASS: ${orthant_cutlass_problem})")
endif()
