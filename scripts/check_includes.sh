#!/usr/bin/env bash
# The arrows of the design: plugins see the core's public headers only, router and experts know nothing of ranks, and
# the core neither includes a plugin nor names an axis.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0

sources() { find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) 2>/dev/null | sort; }

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

# A string that is a plugin's name, or its table's, outside of comments. Names are those that the plugins export. "data" and
# "expert" are also tables, dims and arguments: what may stand is listed as FILE NAME, with the reason.
allowed=scripts/axis_names_allowed.txt
names=$(sources plugins | xargs -r sed -nE 's/^ORTHANT_PLUGIN\("([a-z_]+)".*/\1/p' | sort -u | paste -sd '|')
literal="\"($names)\"|\"\[?plugins\.($names)[]\".]"
while IFS=: read -r file line text; do
  code=$(sed -E 's%(^|[[:space:]])//.*%%' <<<"$text")
  while read -r name; do
    grep -qE "^$file $name([[:space:]]|$)" "$allowed" ||
      complain "$file:$line: names an axis: $(sed 's/^ *//' <<<"$text"); the core names no axis (or list '$file $name' in $allowed with the reason)"
  done < <(grep -oE "$literal" <<<"$code" | sed -E 's/["[]*(plugins\.)?//; s/[]".]$//' | sort -u)
done < <([[ -z $names ]] || sources core router experts parallel | xargs -r grep -nHE "$literal" || true)

[[ $failed -eq 0 ]] && echo "includes: ok" >&2
exit "$failed"
