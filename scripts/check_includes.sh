#!/usr/bin/env bash
# The arrows of the design: a room includes only rooms below it (scripts/rooms.txt), plugins see the public headers only,
# and the core names no axis.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0

python3 -B scripts/check_includes.py || failed=1

sources() { find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) 2>/dev/null | sort; }

complain() {
  echo "includes: $1" >&2
  failed=1
}

# A string that is a plugin's name, or its table's, outside of comments. Names are those that the plugins export. "data" and
# "expert" are also tables, dims and arguments: what may stand is listed as FILE NAME, with the reason.
allowed=scripts/axis_names_allowed.txt
names=$(sources plugins offload | xargs -r sed -nE 's/^ORTHANT_PLUGIN\("([a-z_]+)".*/\1/p' | sort -u | paste -sd '|')
literal="\"($names)\"|\"\[?plugins\.($names)[]\".]"
while IFS=: read -r file line text; do
  code=$(sed -E 's%(^|[[:space:]])//.*%%' <<<"$text")
  while read -r name; do
    grep -qE "^$file $name([[:space:]]|$)" "$allowed" ||
      complain "$file:$line: names an axis: $(sed 's/^ *//' <<<"$text"); the core names no axis (or list '$file $name' in $allowed with the reason)"
  done < <(grep -oE "$literal" <<<"$code" | sed -E 's/["[]*(plugins\.)?//; s/[]".]$//' | sort -u)
done < <([[ -z $names ]] || sources core apps router experts objectives parallel | xargs -r grep -nHE "$literal" || true)

[[ $failed -eq 0 ]] && echo "includes: ok" >&2
exit "$failed"
