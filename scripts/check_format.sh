#!/usr/bin/env bash
# Every C++ source in git is as clang-format writes it. Files that have not changed since the last success are skipped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
version=14 # of Debian 12; other versions format some lines otherwise
if ! command -v clang-format >/dev/null; then
  echo "format: clang-format is not installed, not checked" >&2
  exit 0
fi
found=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
if [[ $found != "$version" ]]; then
  echo "format: clang-format $found found, not checked (the sources are formatted with $version)" >&2
  exit 0
fi
if ! git rev-parse --git-dir >/dev/null 2>&1; then
  echo "format: not a git checkout, not checked" >&2
  exit 0
fi
stamp=build/.formatted
mkdir -p build
now=$(mktemp build/.formatted.XXXXXX)
trap 'rm -f "$now"' EXIT
[[ -e $stamp && $stamp -nt .clang-format ]] || touch -d @0 "$stamp"
mapfile -d '' -t files < <(git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' '*.inc' |
  while IFS= read -r -d '' file; do [[ $file -nt $stamp ]] && printf '%s\0' "$file" || true; done)
if [[ ${#files[@]} -gt 0 ]]; then
  if ! printf '%s\0' "${files[@]}" | xargs -0 -n 8 -P "$(nproc)" clang-format --dry-run -Werror; then
    echo "format: run clang-format -i on the files above" >&2
    exit 1
  fi
fi
mv "$now" "$stamp"
trap - EXIT
echo "format: ok (${#files[@]} files looked at)" >&2
