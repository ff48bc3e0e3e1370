# Which CUDA toolkits take this code, and which GPUs each of them knows. Nothing else is here, so that `cmake -P` can run
# it: tests/launch/cuda_toolkit_test.cpp. scripts/common.sh has the oldest one too, scripts/check_cuda_versions.sh tries.
set(orthant_oldest_cuda 12.4)

# orthant_find_nvcc(NVCC RELEASE): what CMake would enable CUDA with, and its release (12.4); both empty where there is
# none, or where it is no nvcc.
function(orthant_find_nvcc nvcc release)
  set(found "${CMAKE_CUDA_COMPILER}")
  if(NOT found)
    set(found "$ENV{CUDACXX}")
  endif()
  if(NOT found)
    find_program(orthant_nvcc nvcc NO_CACHE)
    set(found "${orthant_nvcc}")
  endif()
  set(said "")
  if(found)
    execute_process(COMMAND "${found}" --version OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE ignored)
  endif()
  if(said MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${release} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    set(${nvcc} "${found}" PARENT_SCOPE)
  else()
    set(${release} "" PARENT_SCOPE)
    set(${nvcc} "" PARENT_SCOPE)
  endif()
endfunction()

# Stops where CUDA's release is too old. Asked before CMake enables the language: an old nvcc would refuse the host's
# compiler first, or C++20.
function(orthant_require_cuda nvcc release)
  if(release AND release VERSION_LESS orthant_oldest_cuda)
    message(FATAL_ERROR "${nvcc} is of CUDA ${release}, and ${orthant_oldest_cuda} or newer is needed. "
      "CUDACXX=/usr/local/cuda-13.0/bin/nvcc, say, names another one; -DORTHANT_CUDA=OFF builds without the device \"cuda\".")
  endif()
endfunction()

# orthant_all_gpus(RELEASE OUT): every GPU that a toolkit of this release makes code of its own for, as ORTHANT_GPUS has
# them. sm_80's comes with its PTX, which the driver compiles for GPUs that have nothing else. 100f: Blackwell's own
# instructions, for 10.0 and 10.3.
function(orthant_all_gpus release out)
  set(gpus 80 90a-real)
  if(release VERSION_GREATER_EQUAL 12.9)
    list(APPEND gpus 100f-real)
  endif()
  if(release VERSION_GREATER_EQUAL 12.8)
    list(APPEND gpus 120-real)
  endif()
  set(${out} "${gpus}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  orthant_find_nvcc(nvcc release)
  orthant_require_cuda("${nvcc}" "${release}")
  orthant_all_gpus("${release}" gpus)
  message("CUDA ${release}: ${gpus}")
endif()
