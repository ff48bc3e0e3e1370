# Completion of `orthant` for bash: commands as --help lists them, then subcommands and options as the command's own --help
# has them, else files. Commands of PATH are asked for nothing, and nothing is built. zsh runs it too (_orthant), which has
# no mapfile.
_orthant_help() { ORTHANT_NO_BUILD=1 "$@" --help </dev/null 2>/dev/null | sed '/^Examples:/,$d'; }
_orthant() {
  local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} help known words asked
  COMPREPLY=()
  help=$(_orthant_help "$program")
  words=$(awk '/^  [A-Za-z0-9]/ { print $1 }' <<<"$help")
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "$words help --help --version" -- "$word"))
    return
  fi
  known=$(sed '/^Others that were found/,$d' <<<"$help" | awk '/^  [A-Za-z0-9]/ { print $1 }')
  grep -qxF -- "$command" <<<"$known" || return
  asked=("$program" "$command")
  [[ $COMP_CWORD -le 2 || ${COMP_WORDS[2]} != [a-z]* ]] || asked+=("${COMP_WORDS[2]}")
  help=$(_orthant_help "${asked[@]}")
  [[ -n $help ]] || help=$(_orthant_help "$program" "$command") # the word is a file's name, no subcommand
  if [[ $word == -* ]]; then
    words=$(grep -oE '^ +(-[a-zA-Z],)?--[a-z][a-z0-9-]*' <<<"$help" | grep -oE -- '--.*')
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  elif [[ $COMP_CWORD -eq 2 ]]; then
    words=$(sed -n '/^Subcommands:/,/^$/p' <<<"$help" | awk '/^  [a-z]/ { print $1 }')
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}
complete -o bashdefault -o default -F _orthant orthant
