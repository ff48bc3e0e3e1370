#!/usr/bin/env bash
# Builds the program of the image, for any machine of the architecture, with the CUDA code where nvcc is.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
ORTHANT_SCRIPT=build.sh
source "$root/scripts/common.sh"
cd "$root"
install_packages build "${build_packages[@]}" -- "${build_optional[@]}"
mapfile -t settings < <(cuda_settings build/cpu/CMakeCache.txt)
configure cpu -DORTHANT_NATIVE=OFF -DORTHANT_TESTS=OFF -DORTHANT_BENCH=OFF "${settings[@]}"
build cpu orthant_run orthant_modules orthant_apps
ln -sf "$root/build/cpu/bin/orthant" /usr/local/bin/orthant
