#!/bin/sh
# Reads and checks every C++ source by one compiler, warnings as errors, and makes no code: scripts/check_sources.sh clang++
# A fifth of the time of a build. What a compiler finds only while it optimises is not found.
set -eu
cd "$(dirname "$0")/.."
compiler=${1:?a compiler}
folder=build/sources-$(basename "$compiler")
mkdir -p "$folder"
generator=$(command -v ninja >/dev/null && echo -GNinja || echo "-GUnix Makefiles")
# Headers that are precompiled elsewhere are read as text: they would be made by a build alone.
cmake -S . -B "$folder" "$generator" -DCMAKE_CXX_COMPILER="$compiler" -DORTHANT_CUDA=OFF -DORTHANT_CCACHE=OFF \
  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >"$folder/configure.log" 2>&1 ||
  { cat "$folder/configure.log" >&2; exit 1; }
cd "$folder"
sed -n 's/^  "command": "\(.*\)",*$/\1/p' compile_commands.json | grep -v -e '\.c$' -e c++-header -e emit-pch | sed 's/\\\(["\\]\)/\1/g; s/-Xclang -include-pch -Xclang [^ ]* //; s/$/ -fsyntax-only/' |
  xargs -d '\n' -n 1 -P "$(nproc)" sh -c
