#!/usr/bin/env bash
# No require(...) looks at errno. The arguments of a call are made before it, and g++ makes the reason before the system
# call of the condition: require(pipe(ends) == 0, "...: {}", strerror(errno)) tells the reason of an earlier failure, or
# "Success". Write: if (pipe(ends) != 0) { fail("...: {}", strerror(errno)); }
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folders=()
for folder in core apps router experts objectives parallel offload plugins bench tests; do
  [[ ! -d $folder ]] || folders+=("$folder")
done
found=$(find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -print0 | sort -z | xargs -0 -r awk '
  FNR == 1 { inside = 0 }
  { code = $0; sub(/^[[:space:]]*\/\/.*/, "", code) }
  !inside && code ~ /(^|[^_a-zA-Z])require\(/ { inside = 1; line = FNR }
  inside && code ~ /(^|[^_a-zA-Z])errno([^_a-zA-Z]|$)/ { print "errno: " FILENAME ":" line ": require(...) with errno: write if (...) { fail(...); }"; inside = 0 }
  inside && code ~ /;[[:space:]]*(\/\/.*)?$/ { inside = 0 }')
if [[ -n $found ]]; then
  printf '%s\n' "$found" >&2
  exit 1
fi
echo "errno: ok" >&2
