# The CUDA device: a library that the core loads at run time (core/modules/make_device.cpp), so nothing else needs CUDA.
# Kernels are compiled for each of ORTHANT_GPUS, those on one GPU's own instructions for it alone. Nothing here needs a GPU.
include(OrthantCudaToolkit)
set(ORTHANT_GPUS all CACHE STRING "CUDA architectures of the kernels, as CMake names them; all: every GPU that the toolkit knows")
orthant_find_nvcc(nvcc release)
orthant_require_cuda("${nvcc}" "${release}")
# sample: one tile of CUTLASS's kernels for each layout, also in place of the others. It computes the same, more slowly,
# and compiles in half the time: enough for tests without a GPU.
set(ORTHANT_KERNELS all CACHE STRING "Kernels with several tiles: all, or a sample")
set_property(CACHE ORTHANT_KERNELS PROPERTY STRINGS all sample)
if(NOT ORTHANT_KERNELS MATCHES "^(all|sample)$")
  message(FATAL_ERROR "ORTHANT_KERNELS is \"${ORTHANT_KERNELS}\": write all or sample")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(ORTHANT_GPUS STREQUAL "all")
  orthant_all_gpus("${CMAKE_CUDA_COMPILER_VERSION}" ORTHANT_GPUS)
endif()
# CMake 3.25 does not know that nvcc has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
if(ORTHANT_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${ORTHANT_CCACHE}")
endif()

# ptxas warns too: of serialised wgmma (C7510) and ignored setmaxnreg (C7508), and of registers spilled to memory, the last
# with the release and the GPUs that the kernels were fitted to: others allot registers in other ways, and a few
# bytes are slower, not wrong. With 13.0, sm_100f spills in 5 kernels and sm_120 in 8, 4 to 120 bytes each.
set(warn_on_spills "")
set(fitted_gpus ${ORTHANT_GPUS})
list(FILTER fitted_gpus INCLUDE REGEX "^(80|90a)(-real|-virtual)?$")
if(CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.0\\." AND "${fitted_gpus}" STREQUAL "${ORTHANT_GPUS}")
  set(warn_on_spills "-Xptxas=--warn-on-spills;")
endif()
add_library(orthant_cuda_options INTERFACE)
target_compile_options(orthant_cuda_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:${warn_on_spills}-Xcompiler=-Wall,-Wextra>")
# CMake's own option for nvcc leaves out what the host's compiler says.
if(CMAKE_COMPILE_WARNING_AS_ERROR)
  target_compile_options(orthant_cuda_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()
# fmt 9 turns constexpr off under nvcc, but only half-way.
target_compile_definitions(orthant_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)

file(GLOB_RECURSE ORTHANT_CUDA_SOURCES CONFIGURE_DEPENDS core/device/cuda/*.cu core/device/cuda/*.cpp
  router/cuda/*.cu router/cuda/*.cpp experts/cuda/*.cu experts/cuda/*.cpp)
set(own_instructions "_cutlass\\.cu$")
set(ORTHANT_HOPPER_SOURCES ${ORTHANT_CUDA_SOURCES})
list(FILTER ORTHANT_HOPPER_SOURCES INCLUDE REGEX "${own_instructions}")
list(FILTER ORTHANT_CUDA_SOURCES EXCLUDE REGEX "${own_instructions}")
if(NOT TARGET orthant_cutlass)
  list(FILTER ORTHANT_HOPPER_SOURCES EXCLUDE REGEX "_cutlass\\.cu$")
endif()
set(ORTHANT_BLACKWELL_SOURCES ${ORTHANT_HOPPER_SOURCES})
list(FILTER ORTHANT_BLACKWELL_SOURCES INCLUDE REGEX "/blackwell/")
list(FILTER ORTHANT_HOPPER_SOURCES EXCLUDE REGEX "/blackwell/")
# Blackwell's are compiled where ORTHANT_GPUS asks for its own instructions: minutes, which tests on Hopper do without.
set(ORTHANT_BLACKWELL_GPUS ${ORTHANT_GPUS})
list(FILTER ORTHANT_BLACKWELL_GPUS INCLUDE REGEX "^10[03]f-real$")

# NVTX is headers alone: names for spans of time, in core/trace, which knows nothing else of CUDA.
find_path(ORTHANT_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(ORTHANT_NVTX_INCLUDE)
if(ORTHANT_NVTX_INCLUDE)
  set_source_files_properties(core/trace/nvtx.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
    COMPILE_DEFINITIONS ORTHANT_HAS_NVTX COMPILE_OPTIONS "-isystem;${ORTHANT_NVTX_INCLUDE}")
endif()

# As orthant_compile_by_folder, for CUDA, which CMake joins from 3.29 on.
set(joined_sources "")
set(joined_folders "")
foreach(source IN LISTS ORTHANT_CUDA_SOURCES)
  if(NOT ORTHANT_UNITY OR NOT source MATCHES "\\.cu$")
    list(APPEND joined_sources "${source}")
    continue()
  endif()
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${source}")
  get_filename_component(folder "${folder}" DIRECTORY)
  string(MAKE_C_IDENTIFIER "${folder}" folder)
  list(APPEND joined_folders "${folder}")
  string(APPEND text_of_${folder} "#include \"${source}\"\n")
endforeach()
list(REMOVE_DUPLICATES joined_folders)
foreach(folder IN LISTS joined_folders)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/joined/${folder}.cu" CONTENT "${text_of_${folder}}" @ONLY)
  list(APPEND joined_sources "${CMAKE_BINARY_DIR}/joined/${folder}.cu")
endforeach()

# cuDNN's attention, through its front end: about a minute to compile, a little less with -O1, which costs nothing on the GPU.
option(ORTHANT_CUDNN "Use cuDNN for attention, where it is found" ON)
find_path(ORTHANT_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_ROOT PATH_SUFFIXES include)
find_library(ORTHANT_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} ENV CUDNN_ROOT PATH_SUFFIXES lib lib64)
mark_as_advanced(ORTHANT_CUDNN_INCLUDE ORTHANT_CUDNN_LIBRARY)
set(cudnn_problem "")
if(NOT ORTHANT_CUDNN)
  set(cudnn_problem "ORTHANT_CUDNN is off")
elseif(NOT ORTHANT_CUDNN_INCLUDE OR NOT ORTHANT_CUDNN_LIBRARY)
  set(cudnn_problem "cudnn.h or libcudnn is not found, CUDNN_ROOT says where they are")
elseif(NOT TARGET orthant_cudnn_frontend)
  set(cudnn_problem "front end: ${orthant_cudnn_frontend_problem}")
elseif(NOT TARGET CUDA::nvrtc)
  set(cudnn_problem "libnvrtc is not found")
endif()
if(cudnn_problem STREQUAL "")
  set_source_files_properties(core/device/cuda/attention_cudnn.cpp PROPERTIES COMPILE_OPTIONS "-Wall;-Wextra;-O1"
    COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB)  # graphs as JSON are not used, and take a third of its time
  set_property(GLOBAL APPEND PROPERTY ORTHANT_SUMMARY "attention on CUDA: cuDNN (${ORTHANT_CUDNN_LIBRARY})")
else()
  list(FILTER ORTHANT_CUDA_SOURCES EXCLUDE REGEX "_cudnn\\.cpp$")
  set_property(GLOBAL APPEND PROPERTY ORTHANT_SUMMARY "attention on CUDA: built-in (cuDNN: ${cudnn_problem})")
endif()

add_library(orthant_device_cuda MODULE ${joined_sources})
set_target_properties(orthant_device_cuda PROPERTIES CUDA_ARCHITECTURES "${ORTHANT_GPUS}" CUDA_VISIBILITY_PRESET hidden
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON CUDA_RUNTIME_LIBRARY Static)
target_include_directories(orthant_device_cuda PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(orthant_device_cuda PRIVATE orthant orthant_cuda_options CUDA::cudart_static CUDA::cublas)

if(ORTHANT_KERNELS STREQUAL "sample" AND ORTHANT_UNITY)
  # CUTLASS's headers take longer than a kernel.
  set(cutlass_sources ${ORTHANT_HOPPER_SOURCES})
  list(FILTER cutlass_sources INCLUDE REGEX "_cutlass\\.cu$")
  list(FILTER ORTHANT_HOPPER_SOURCES EXCLUDE REGEX "_cutlass\\.cu$")
  list(TRANSFORM cutlass_sources REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE cutlass_text)
  list(JOIN cutlass_text "" cutlass_text)
  if(cutlass_sources)
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/joined/hopper_cutlass.cu" CONTENT "${cutlass_text}" @ONLY)
    list(APPEND ORTHANT_HOPPER_SOURCES "${CMAKE_BINARY_DIR}/joined/hopper_cutlass.cu")
  endif()
endif()
# orthant_add_own(NAME GPUS SOURCE...): files on the own instructions of these GPUs, compiled for them alone. A compiler of
# such a file takes 3 to 4 GiB; and where warnings are errors, what ptxas remarks on them is one (check_ptxas.sh).
set_property(GLOBAL APPEND PROPERTY JOB_POOLS orthant_hopper=4)
function(orthant_add_own name gpus)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${gpus}" CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON JOB_POOL_COMPILE orthant_hopper)
  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    set_target_properties(${name} PROPERTIES
      CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/check_ptxas.sh;${CMAKE_CUDA_COMPILER_LAUNCHER}")
  endif()
  # NDEBUG whatever the build type: CUTLASS's asserts make ptxas serialise wgmma.
  target_compile_definitions(${name} PRIVATE NDEBUG $<$<STREQUAL:${ORTHANT_KERNELS},sample>:ORTHANT_KERNEL_SAMPLE>)
  target_compile_options(${name} PRIVATE --expt-relaxed-constexpr)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE orthant orthant_cuda_options)
  if(TARGET orthant_cutlass)
    target_link_libraries(${name} PRIVATE orthant_cutlass)
  endif()
  target_sources(orthant_device_cuda PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
if(ORTHANT_HOPPER_SOURCES)
  orthant_add_own(orthant_hopper 90a-real ${ORTHANT_HOPPER_SOURCES})
endif()
if(TARGET orthant_cutlass)
  target_compile_definitions(orthant_device_cuda PRIVATE ORTHANT_HAVE_CUTLASS)
  if(ORTHANT_BLACKWELL_GPUS)
    orthant_add_own(orthant_blackwell "${ORTHANT_BLACKWELL_GPUS}" ${ORTHANT_BLACKWELL_SOURCES})
    target_compile_definitions(orthant_device_cuda PRIVATE ORTHANT_HAVE_CUTLASS_BLACKWELL)
  endif()
endif()

if(cudnn_problem STREQUAL "")
  target_include_directories(orthant_device_cuda SYSTEM PRIVATE "${ORTHANT_CUDNN_INCLUDE}")
  target_link_libraries(orthant_device_cuda PRIVATE orthant_cudnn_frontend "${ORTHANT_CUDNN_LIBRARY}" CUDA::nvrtc)
  target_compile_definitions(orthant_device_cuda PRIVATE ORTHANT_CUDNN)
endif()
orthant_stamp(orthant_device_cuda)
install(TARGETS orthant_device_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_property(GLOBAL APPEND PROPERTY ORTHANT_PLUGIN_TARGETS orthant_device_cuda)
list(JOIN ORTHANT_GPUS ", " gpus)
set_property(GLOBAL APPEND PROPERTY ORTHANT_SUMMARY "CUDA          ${CUDAToolkit_VERSION}: device \"cuda\" for ${gpus}")
