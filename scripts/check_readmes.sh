#!/usr/bin/env bash
# The README.md of a folder names what is there, in backquotes or as the text of a link, and names nothing else:
#
# - each header of the folder is named, by its stem or with an ending;
# - if a table of it begins with "folder" or "room", each folder in the folder is named;
# - what the first column of a table names that begins with "file", "files" or "read" is a file or folder below it;
# - the sources that it names elsewhere exist somewhere in the tree, or a source includes them as <nccl.h>.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folders=()
for folder in core apps router experts objectives parallel offload plugins bench tests configs cmake docs scripts; do
  [[ ! -d $folder ]] || folders+=("$folder")
done
mapfile -t readmes < <(find "${folders[@]}" -name README.md | sort)
found=$({
  find "${folders[@]}" -type f
  { grep -rhoE '^#include <[a-z0-9_/]+\.h>' --include='*.h' --include='*.cpp' --include='*.cu' "${folders[@]}" || true; } |
    sed 's/.*<\(.*\)>/outside \1/' | sort -u
} | awk '
  function complain(what) { print "readmes: " folder "/README.md" what }
  function finish(   list, n, i) {
    n = split(headers[folder], list, " ")
    for (i = 1; i <= n; ++i) if (!(list[i] in named)) complain(" does not name " list[i] ".h")
    n = lists_folders ? split(inside[folder], list, " ") : 0
    for (i = 1; i <= n; ++i) if (!((list[i] "/") in named)) complain(" does not name " list[i] "/")
    split("", named)
    table = lists_folders = 0
  }
  function look_at(name, entry, link,   stem) {
    sub(/\.\*$/, "", name)
    sub(/^\.\//, "", name)
    if (name ~ /^\./ && name !~ /\// || name !~ /^[a-z0-9_.\/-]+$/) return
    stem = name
    if (stem ~ /\/$/) {
      sub(/\/.*/, "/", stem)
    } else {
      sub(/.*\//, "", stem)
      sub(/\.[^.]*$/, "", stem)
    }
    named[stem]
    if (link || name ~ /^\.\.\//) return
    if (entry) {
      if (!((folder, name) in below)) complain(":" FNR ": there is no " name " below " folder "/")
    } else if (name ~ /\.(h|cuh|cpp|cu|inc|py|sh)$/ && !(name in anywhere) && !((folder, name) in below)) {
      complain(":" FNR ": there is no " name)
    }
  }
  FILENAME == "-" && $1 == "outside" { anywhere[$2]; next }
  FILENAME == "-" {  # a file of the tree: all ends of its path, below each of the folders on its way
    n = split($0, part, "/")
    above = ""
    for (i = 2; i <= n; ++i) {
      above = above (i > 2 ? "/" : "") part[i - 1]
      for (j = i; j <= n; ++j) {
        end = way = ""
        for (k = j; k <= n; ++k) {
          end = end (k > j ? "/" : "") part[k]
          if (k < n) { way = way part[k] "/"; below[above, way] }
        }
        below[above, end]
        anywhere[end]
        sub(/\.[^.\/]*$/, "", end)
        below[above, end]
      }
      if (i == n && part[n] ~ /\.(h|cuh)$/) headers[above] = headers[above] " " end
      if (i < n && !((above, part[i]) in met)) { met[above, part[i]]; inside[above] = inside[above] " " part[i] }
    }
    anywhere[$0]
    next
  }
  FNR == 1 {
    if (folder != "") finish()
    folder = FILENAME
    sub(/\/README.md$/, "", folder)
  }
  !/^\|/ { table = 0 }
  /^\|/ && !table {
    table = 1
    split($0, cell, "|")
    lists_files = cell[2] ~ /^ *(file|files|read) *$/
    if (cell[2] ~ /^ *(folder|room) *$/) lists_folders = 1
  }
  {
    end_of_entry = /^\|/ && lists_files ? index(substr($0, 2), "|") : 0
    from = 1
    while (match(substr($0, from), /`[^`]+`|\[[^]`]+\]\(/)) {
      at = from + RSTART - 1
      link = substr($0, at, 1) == "["
      name = substr($0, at + 1, RLENGTH - (link ? 3 : 2))
      look_at(name, at <= end_of_entry, link)
      from = at + RLENGTH
    }
  }
  END { finish() }' - "${readmes[@]}")
if [[ -n $found ]]; then
  printf '%s\n' "$found" >&2
  exit 1
fi
echo "readmes: ok" >&2
