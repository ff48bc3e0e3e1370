# shellcheck shell=bash disable=SC2034,SC2154
# Shared by ./launch, ./runtests and .ci/run: what is missing is installed, what has changed is built.
# Sourced, never run. Messages go to the standard error.

# A stream that is closed would fail every command that writes to it, and files would be opened in its place.
[[ -e /dev/fd/0 ]] || exec 0</dev/null
[[ -e /dev/fd/1 ]] || exec 1>/dev/null
[[ -e /dev/fd/2 && ! /dev/fd/2 -ef $0 ]] || exec 2>/dev/null # bash may have put the script itself there

say() { printf '%s: %s\n' "${ORTHANT_SCRIPT:-orthant}" "$*" >&2; }
die() { say "$*"; exit 1; }

# Command or package name, for a build.
build_packages=(g++ cmake libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev libssl-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev)
# Nice to have: a build works without them, and the configure summary says what it does without.
build_optional=(ninja-build libdnnl-dev libopenmpi-dev openmpi-bin ccache pkg-config liburing-dev libpng-dev libjpeg-dev)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev python3 curl zsh)
test_optional=(clang-format)
# A Slurm for tests/hosts: daemons, so only where these tests are asked for by name, or ORTHANT_SLURM is set.
slurm_packages=(slurmctld slurmd slurm-client munge)

# The arguments that are not installed, one a line. A tool counts as there whoever installed it.
missing_packages() {
  local package installed
  installed=" $(dpkg-query -W -f='${Package}:${db:Status-Status} ' "$@" 2>/dev/null || true) "
  for package in "$@"; do
    case $package in
      g++) command -v "${CXX:-g++}" >/dev/null && continue ;;
      cmake | ccache | clang-format | python3 | curl) command -v "$package" >/dev/null && continue ;;
      pkg-config) command -v pkg-config >/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
      openmpi-bin) command -v mpirun >/dev/null && continue ;;
    esac
    [[ $installed == *" $package:installed "* ]] || printf '%s\n' "$package"
  done
}

# Installs what is missing of the required packages, and tries the optional ones once.
# $1: a name for this set; then the required packages, --, the optional ones.
install_packages() {
  local name=$1 required=() optional=() missing=() wanted=() run=() package
  shift
  while [[ $# -gt 0 && $1 != -- ]]; do required+=("$1"); shift; done
  [[ $# -gt 0 ]] && shift
  optional=("$@")
  [[ -n ${ORTHANT_NO_INSTALL:-} ]] && return 0
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    return 0 # not Debian or Ubuntu: the configuration says what it does not find
  fi
  mapfile -t missing < <(missing_packages "${required[@]}")
  # Optional ones that could not be had are not asked for at every start.
  local tried="$root/build/.optional_$name"
  if [[ ! -e $tried || ${#missing[@]} -gt 0 ]]; then
    mapfile -t wanted < <(missing_packages "${optional[@]}")
  fi
  if [[ ${#missing[@]} -eq 0 && ${#wanted[@]} -eq 0 ]]; then
    [[ -e $tried ]] || { mkdir -p "$root/build" && : >"$tried"; }
    return 0
  fi

  if [[ $(id -u) -eq 0 ]]; then
    run=(env DEBIAN_FRONTEND=noninteractive)
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    run=(sudo -n env DEBIAN_FRONTEND=noninteractive)
  else
    # An optional package that apt does not know would make the line below fail.
    mapfile -t wanted < <(for package in "${wanted[@]}"; do apt-cache show "$package" >/dev/null 2>&1 && echo "$package"; done)
    if [[ ${#missing[@]} -gt 0 ]]; then
      say "missing: ${missing[*]}"
      say "install with:"
      printf '  sudo apt-get update && sudo apt-get install -y %s\n' "${missing[*]}${wanted[*]:+ ${wanted[*]}}" >&2
      exit 1
    fi
    [[ ${#wanted[@]} -eq 0 ]] || say "optional, not installed: sudo apt-get install -y ${wanted[*]}"
    mkdir -p "$root/build" && : >"$tried"
    return 0
  fi

  local log="$root/build/apt.log"
  mkdir -p "$root/build" && : >"$log"
  [[ ${#missing[@]} -eq 0 ]] || say "about to install with apt: ${missing[*]}"
  [[ ${#wanted[@]} -eq 0 ]] || say "about to install with apt, optional: ${wanted[*]}"
  say "this may take a minute or two (log: build/apt.log)"
  # Package lists may be absent (a container) or older than the archive.
  "${run[@]}" apt-get update -qq >>"$log" 2>&1 || say "apt-get update failed; trying with the package lists that are there"
  # Together, as one run of apt is much faster; each by itself where one of the optional ones cannot be had.
  local install=("${run[@]}" apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends)
  if ! "${install[@]}" "${missing[@]}" "${wanted[@]}" >>"$log" 2>&1; then
    if [[ ${#missing[@]} -gt 0 ]] && ! "${install[@]}" "${missing[@]}" >>"$log" 2>&1; then
      tail -n 20 "$log" >&2
      die "apt could not install them; try by hand: apt-get install ${missing[*]}"
    fi
    for package in "${wanted[@]}"; do
      "${install[@]}" "$package" >>"$log" 2>&1 ||
        say "$package is optional and could not be installed; going on without it"
    done
  fi
  mkdir -p "$root/build" && : >"$tried"
}

check_cmake() {
  command -v cmake >/dev/null || die "cmake is not installed: it must be 3.25 or newer"
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  if [[ $(printf '%s\n3.25\n' "$version" | sort -V | head -n1) != 3.25 ]]; then
    say "cmake $version is too old: 3.25 or newer is needed. A newer one, for this user:"
    printf '  python3 -m pip install --user "cmake>=3.25" ninja && export PATH="$HOME/.local/bin:$PATH"\n' >&2
    exit 1
  fi
}

# at_least VERSION OLDEST
at_least() { [[ -n $1 && $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1) == "$2" ]]; }
# cuda_release NVCC: 12.4, say; nothing where it is no nvcc.
cuda_release() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p'; }

# cuda_settings CACHE: the option that compiles the CUDA code too; nothing where CACHE has it already, where there is no
# toolkit that can, or where ORTHANT_NO_CUDA is set. It needs no GPU: jobs for other machines are started here as well.
oldest_cuda=12.4
cuda_settings() {
  local version
  if [[ -n ${ORTHANT_NO_CUDA:-} ]] || ! command -v nvcc >/dev/null || grep -qs '^ORTHANT_CUDA:BOOL=ON' "$1"; then
    return 0
  fi
  version=$(cuda_release nvcc)
  if at_least "$version" "$oldest_cuda"; then
    printf '%s\n' -DORTHANT_CUDA=ON
  elif [[ ! -e $1 ]]; then
    say "nvcc is of CUDA ${version:-unknown}, $oldest_cuda or newer is needed: building without the device \"cuda\""
  fi
}

# What is shipped has code for all GPUs that the toolkit knows (cmake/OrthantCudaToolkit.cmake). Tests need one of them:
# compiled twice is minutes, and a kernel for both is the same source.
# gpus_of_tests CACHE: the options that leave it at the GPU of this machine, or at Hopper and a sample of the kernels where
# there is none (ORTHANT_KERNELS=all: all of them). Nothing where CACHE is there: ./launch may have asked for all.
gpus_of_tests() {
  local capability=
  [[ ! -e $1 ]] || return 0
  if command -v nvidia-smi >/dev/null; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n1 | tr -dc '0-9' || true)
  fi
  case $capability in
    '')
      capability=90a
      printf '%s\n' "-DORTHANT_KERNELS=${ORTHANT_KERNELS:-sample}"
      ;;
    90) capability=90a ;;
    100 | 103) # Blackwell's own instructions, where nvcc has them
      if at_least "$(cuda_release nvcc)" 12.9; then capability=100f; fi
      ;;
  esac
  printf '%s\n' "-DORTHANT_GPUS=$capability-real"
}
# all_gpus_again CACHE: the options that make a build of ./runtests whole; nothing where it is.
all_gpus_again() {
  if grep -qs '^ORTHANT_GPUS:' "$1" && ! grep -qsx 'ORTHANT_GPUS:[A-Z]*=all' "$1"; then
    printf '%s\n' -DORTHANT_GPUS=all
  fi
  if grep -qs '^ORTHANT_KERNELS:STRING=sample' "$1"; then
    printf '%s\n' -DORTHANT_KERNELS=all
  fi
}

# names_cuda ARGUMENT...: whether an argument, a configuration among them or one that it extends names what needs the CUDA
# code. What is no more than mentioned counts too.
names_cuda() {
  local argument base
  for argument in "$@"; do
    if [[ $argument == *cuda* || $argument == *nccl* ]]; then
      return 0
    elif [[ $argument == *.toml && -f $argument ]]; then
      grep -qE "[\"'](cuda|nccl)[\"']" "$argument" && return 0
      while read -r base; do
        names_cuda "$(dirname "$argument")/$base" && return 0
      done < <(sed -n '/^ *extends *=/,/]/p' "$argument" | grep -oE "[\"'][^\"']+[\"']" | tr -d "\"'")
    fi
  done
  return 1
}

# configure PRESET [cmake options]: once; later changes of CMake files are noticed by the build itself.
configure() {
  local preset=$1 directory="$root/build/$1" generator=()
  shift
  if [[ $# -eq 0 && -e $directory/CMakeCache.txt && (-e $directory/build.ninja || -e $directory/Makefile) ]]; then
    return 0
  fi
  check_cmake
  if [[ ! -e $directory/CMakeCache.txt ]] && ! command -v ninja >/dev/null; then
    generator=(-G "Unix Makefiles")
  fi
  mkdir -p "$directory"
  say "configuring build/$preset (log: build/$preset/configure.log)"
  if ! (cd "$root" && cmake --preset "$preset" "${generator[@]}" "$@") >"$directory/configure.log" 2>&1; then
    cat "$directory/configure.log" >&2
    die "the configuration of build/$preset failed; after installing what is missing, run this again"
  fi
  sed -n '/^-- Orthant/,$ s/^-- /  /p' "$directory/configure.log" | sed '/Configuring done/,$d' >&2
}

# build PRESET [target...]: prints only when there is something to build. build_limit: a command before the compiler's
# ("timeout 60"); what it ends is no failure of the build, and exits with 124.
build_limit=()
build() {
  local preset=$1 directory="$root/build/$1" jobs status=0
  shift
  jobs=${ORTHANT_JOBS:-$(nproc)}
  if [[ -e $directory/build.ninja ]]; then
    if [[ -t 2 ]]; then
      "${build_limit[@]}" ninja -C "$directory" -j "$jobs" "$@" >&2
    else
      # Lines, not a terminal's one line that changes: the idle ones say nothing.
      "${build_limit[@]}" ninja -C "$directory" -j "$jobs" "$@" 2>&1 |
        sed -u -e '/^ninja: no work to do/d' -e '/^ninja: Entering directory/d' -e '/Re-checking globbed/d' >&2
    fi
  else
    "${build_limit[@]}" make -C "$directory" --no-print-directory -s -j "$jobs" "$@" >&2
  fi || status=$?
  if [[ $status -eq 124 && ${#build_limit[@]} -gt 0 ]]; then
    say "the time is over before build/$preset was built"
    exit 124
  fi
  [[ $status -eq 0 ]] || die "the build in build/$preset failed"
}

# Whether this user may write in build/.
can_build() {
  if [[ -e $root/build ]]; then
    [[ -w $root/build && (! -e $root/build/.lock || -w $root/build/.lock) ]]
  else
    [[ -w $root ]]
  fi
}
cannot_build() {
  local owner
  owner=$(stat -c %U "$(test -e "$root/build" && echo "$root/build" || echo "$root")" 2>/dev/null || echo somebody)
  echo "$root/build belongs to $owner, $(id -un) cannot build there: let $owner run './launch --dry-run CONFIG' once, or use a checkout of your own"
}

# finished_build PRESET: for a user who cannot build: waits for a build that is under way; true where there is a program.
finished_build() {
  if [[ -r $root/build/.lock ]] && command -v flock >/dev/null; then
    exec 9<"$root/build/.lock"
    flock -n 9 || { say "waiting for another build in this folder"; flock 9; }
    exec 9<&-
  fi
  [[ -x $root/build/$1/bin/orthant ]]
}

# Several ranks of mpirun or srun may come here together: one of them builds, the others wait for it. Of those on one
# machine the first speaks for all.
lock_build() {
  can_build || die "$(cannot_build)"
  mkdir -p "$root/build"
  exec 9>"$root/build/.lock"
  if command -v flock >/dev/null && ! flock -n 9; then
    case ${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${MPI_LOCALRANKID:-${LOCAL_RANK:-0}}}} in
      0) say "waiting for another build in this folder" ;;
    esac
    flock 9
  fi
}
unlock_build() { exec 9>&-; }
