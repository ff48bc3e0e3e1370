# shellcheck shell=bash disable=SC2154
# What the parts of scripts/on_gpu.sh share. Each writes to $logs: parts.txt (a line a part), failures.txt, failed.txt (tests
# that fail alone), figures.txt (what was measured).

left() { # seconds, to the end of the part and of the run
  local end=$((part_end < run_end ? part_end : run_end))
  echo $((end - EPOCHSECONDS))
}

# within SECONDS COMMAND...: no longer than that and than what is left. 124: it was ended; 125: there was no time to begin.
within() {
  local most=$1 rest
  shift
  rest=$(left)
  ((rest < most)) && most=$rest
  ((most > 0)) || return 125
  local status=0
  { timeout -k 2 "$most" "$@" 2>&3; } 3>&2 2>/dev/null || status=$? # without bash's word of who was killed
  [[ $status -ne 137 ]] || status=124 # it took no notice of the first signal
  return "$status"
}

say() { printf '[%4ds] %s\n' $((EPOCHSECONDS - begin)) "$*"; }
figure() { say "$*"; printf '%s\n' "$*" >>"$logs/figures.txt"; }

why() { # LOG: what went wrong, in one line
  local line
  line=$(grep -m3 -aiE 'error|failure|assert|abort|terminate|cannot|not found|DIFFERS|no GPU' "$1" 2>/dev/null || tail -n 2 "$1" 2>/dev/null)
  tr -s '\n\t ' ' ' <<<"$line" | cut -c1-240
}
means() { # STATUS
  case $1 in
    124) echo "ended at its limit" ;;
    125) echo "not begun, no time left" ;;
    skipped) echo "skipped, though the device is there" ;;
    none) echo "ran no test" ;;
    *) echo "exit $1" ;;
  esac
}
fail() { # NAME STATUS LOG
  local line
  line="$1: $(means "$2"): $(why "$3")"
  say "FAIL $line"
  printf '%s\n' "$line" >>"$logs/failures.txt"
}

not_begun() { # WHAT N: one line, however many they are
  (($2 == 0)) || { say "FAIL $1: $2 not begun, no time left"; echo "$1: $2 not begun, no time left" >>"$logs/failures.txt"; }
}

step() { # NAME SECONDS COMMAND...: into a log of its own
  local step=$1 most=$2 status=0 started=$EPOCHSECONDS
  shift 2
  within "$most" "$@" >"$logs/$step.log" 2>&1 || status=$?
  if [[ $status -eq 0 ]]; then
    say "ok   $step, $((EPOCHSECONDS - started)) s"
  else
    fail "$step" "$status" "$logs/$step.log"
  fi
  return "$status"
}

# queue N FILE: every line of FILE is "NAME SECONDS COMMAND...", for bash; N at a time, the first first. Their exit codes are
# lines of "NAME STATUS" in FILE.codes.
queued() {
  local name most status=0
  read -r name most line <<<"$1"
  within "$most" bash -c "$line" >"$logs/$name.log" 2>&1 || status=$?
  echo "$name $status" >>"$codes"
}
queue() {
  export codes=$2.codes
  : >"$codes"
  # shellcheck disable=SC2016
  xargs -r -d '\n' -P "$1" -I {} bash -c 'queued "$1"' _ {} <"$2"
}
export -f left within queued
