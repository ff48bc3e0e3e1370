# Completion of `orthant` for bash: commands as --help lists them, options as a command's own --help has them, files.
_orthant() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} words
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    words=$("$program" --help 2>/dev/null | awk '/^  [a-z][a-z0-9_-]*( |$)/ { print $1 }')
    mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$word")
  elif [[ $word == -* ]]; then
    words=$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o bashdefault -o default -F _orthant orthant
