#!/usr/bin/env bash
# A text that every Debian or Ubuntu machine on which this project builds has: the sources and documentation of Perl's modules
# (package perl-modules-5.*) and CMake's manual (package cmake-data), about 12 MB. One file after another, in the order of
# their names' hashes: equal packages give equal bytes, and the end, which is held out, is a sample of all. The hash is printed.
#   bench/debian_text.sh OUT
set -euo pipefail
[[ $# -eq 1 ]] || { echo "usage: bench/debian_text.sh OUT" >&2; exit 78; }
out=$1
export LC_ALL=C
# Tables of characters are no text: unicore and Unicode/Collate stay out.
mapfile -t perl < <(find -L /usr/share/perl -mindepth 2 -type f \( -name '*.pm' -o -name '*.pod' -o -name '*.pl' \) \
  -path '/usr/share/perl/5*.*.*/*' -not -path '*/unicore/*' -not -path '*/Collate/*' 2>/dev/null | sort)
mapfile -t cmake < <(find /usr/share/cmake-*/Help -type f -name '*.rst' 2>/dev/null | sort)
[[ ${#perl[@]} -gt 0 ]] || { echo "debian_text: no files below /usr/share/perl: apt-get install perl-modules-5.36 (or the 5.* of this system)" >&2; exit 1; }
[[ ${#cmake[@]} -gt 0 ]] || { echo "debian_text: no files below /usr/share/cmake-*/Help: apt-get install cmake-data" >&2; exit 1; }
mkdir -p "$(dirname "$out")"
# In an order that has nothing to do with what is in the files.
printf '%s\n' "${perl[@]}" "${cmake[@]}" | while read -r file; do
  printf '%s %s\n' "$(md5sum <<<"${file##*/usr/share/}" | cut -c 1-32)" "$file"
done | sort | cut -d " " -f 2- | xargs -d '\n' cat >"$out.tmp"
mv "$out.tmp" "$out"
package() { dpkg-query -W -f '${Package} ${Version}' "$(dpkg-query -S "$(readlink -f "$1")" 2>/dev/null | head -n 1 | cut -d : -f 1)" 2>/dev/null || echo "no package"; }
echo "$out: $(stat -c %s "$out") bytes, sha256 $(sha256sum "$out" | cut -c 1-16)...: ${#perl[@]} files of $(package "${perl[0]}"), ${#cmake[@]} of $(package "${cmake[0]}")"
