#!/bin/sh
# A compiler launcher: runs the compiler and fails where ptxas says, as a mere remark, that it has taken the speed out
# of Hopper's matrix instructions: C7508 (setmaxnreg ignored) and C7510 (wgmma serialised).
log=$(mktemp) || exit 1
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if [ "$status" -eq 0 ] && grep -qE 'C75(08|10)' "$log"; then
  echo "error: ptxas C7508 or C7510 (above): the kernel would run, but slowly" >&2
  status=1
  # What has been written must not look up to date.
  while [ $# -gt 1 ]; do
    [ "$1" = -o ] && rm -f "$2"
    shift
  done
fi
rm -f "$log"
exit "$status"
