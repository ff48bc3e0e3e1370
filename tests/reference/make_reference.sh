#!/usr/bin/env bash
# Makes (once) a Python environment with PyTorch and transformers, then runs a Python script in it: by default
# make_reference.py, which regenerates the .safetensors beside it. Only this folder and bench/peers need Python packages;
# neither the build nor the committed tests do.
#
#   tests/reference/make_reference.sh [SCRIPT.py ARGUMENTS...]
#
# ORTHANT_VENV names the environment's folder (default: .venv in the repository root). Where a CUDA toolkit of the
# major version that PyTorch was built for is installed, its libraries are used instead of gigabytes of wheels.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${ORTHANT_VENV:-$here/../../.venv}
cuda=${CUDA_HOME:-/usr/local/cuda}
light=false
[[ -e $cuda/lib64/libcudart.so.13 && -e $cuda/lib64/libcudnn.so.9 ]] && light=true

stamp=$venv/.reference_ready
if ! cmp -s "$here/requirements.txt" "$stamp"; then
  python3 -m venv "$venv"
  if $light; then
    # PyTorch last and without its dependencies: its CUDA wheels but these few, and triton, are not wanted.
    grep -v '^torch==' "$here/requirements.txt" >"$venv/without_torch.txt"
    "$venv/bin/pip" install --quiet -r "$venv/without_torch.txt" sympy networkx jinja2 fsspec filelock \
      typing_extensions setuptools
    "$venv/bin/pip" install --quiet --no-deps "$(grep '^torch==' "$here/requirements.txt")" nvidia-cufile \
      nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-cuda-cupti nvidia-nccl-cu13
  else
    "$venv/bin/pip" install --quiet -r "$here/requirements.txt"
  fi
  cp "$here/requirements.txt" "$stamp"
fi
if $light; then export LD_LIBRARY_PATH=$cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi

if [[ $# -eq 0 ]]; then set -- "$here/make_reference.py"; fi
exec "$venv/bin/python" "$@"
