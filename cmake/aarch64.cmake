# Compiles for aarch64 on another processor, by Debian's cross compiler and packages of that architecture:
# cmake --toolchain cmake/aarch64.cmake. Programs, tests among them, run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(ORTHANT_NATIVE OFF CACHE BOOL "Compile for the processor of this machine (-march=native)")
