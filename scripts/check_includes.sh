#!/usr/bin/env bash
# The arrows of the design: plugins see the core's public headers only, router and experts know nothing of ranks, and
# the core neither includes a plugin nor names an axis.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0

sources() { find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort; }

complain() {
  echo "includes: $1" >&2
  failed=1
}

# includes FILE: lines "number bracket path", bracket being < or ".
includes() { sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*([<"])([^>"]*)[>"].*/\1 \2/; t found; d; :found; =; p' "$1" | paste -d ' ' - -; }

own_folders='core|router|experts|parallel|plugins|offload|tests|bench'

for file in $(sources plugins); do
  folder=$(echo "$file" | cut -d/ -f1-2)
  while read -r line bracket path; do
    if [[ $bracket == '"' ]]; then
      if [[ $path == plugins/* ]]; then
        [[ $path == "$folder"/* ]] || complain "$file:$line: includes \"$path\" of another plugin; a plugin names no other"
      elif [[ ! -e $(dirname "$file")/$path && ! -e $folder/$path ]]; then
        complain "$file:$line: includes \"$path\"; a plugin includes <orthant/...> and its own files only"
      fi
    elif [[ $path == orthant/* ]]; then
      [[ -e core/include/$path || $path == orthant/build_id.h ]] ||
        complain "$file:$line: includes <$path>, which is no public header of the core"
    elif [[ $path =~ ^($own_folders)/ ]]; then
      complain "$file:$line: includes <$path>; a plugin includes <orthant/...> and its own files only"
    fi
  done < <(includes "$file")
done

for file in $(sources core parallel); do
  while read -r line _ path; do
    [[ $path != plugins/* ]] || complain "$file:$line: includes $path; the core includes no plugin"
  done < <(includes "$file")
done

for file in $(sources router experts); do
  while read -r line _ path; do
    [[ $path != plugins/* && $path != parallel/* && $path != orthant/group.h && $path != orthant/mesh.h ]] ||
      complain "$file:$line: includes $path; router and experts know nothing of groups and plugins"
  done < <(includes "$file")
done

# Names of axes as strings. "data" and "expert" alone would also be tables and dims; those lines are listed with their reason.
allowed=scripts/axis_names_allowed.txt
while IFS=: read -r file line text; do
  grep -qxF -- "$file" <(sed -e 's/[[:space:]]*#.*//' -e '/^$/d' "$allowed") ||
    complain "$file:$line: names an axis: $(echo "$text" | sed 's/^ *//'); the core names no axis (or list the file in $allowed with the reason)"
done < <(sources core | xargs -r grep -nE '"(tensor|pipeline|expert|sequence)"|"plugins\.(data|tensor|pipeline|expert|sequence)' |
  grep -vE '^[^:]*:[0-9]+:.*//.*"[a-z.]*"' || true)

[[ $failed -eq 0 ]] && echo "includes: ok" >&2
exit "$failed"
