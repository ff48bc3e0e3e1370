#!/usr/bin/env bash
# README's two commands on images as a distribution's installer would leave them: scripts/on_fresh_image.sh trixie noble
#
#   scripts/on_fresh_image.sh [options] SUITE...
#
# SUITE: a suite of Debian or Ubuntu by its name (bookworm, trixie, sid, noble). debootstrap makes its image; a clean clone
# of this checkout's last commit is put into it; there `./launch configs/quickstart.toml` and `./runtests --sample` run, in
# a namespace of mounts that goes with them. A table says what was tried, with which versions. A suite that cannot be had is
# named in it. Needs root and debootstrap; 3 GB of disk a suite.
#
# options:
#   --tests 'ARGUMENTS'   of ./runtests, in place of --sample; 'none' leaves them out
#   --sources 'CXX...'    instead: whether every source compiles without a warning by these compilers (g++; the kernels
#                         for the CPU have GCC's vectors, which clang++ does not read yet), read and checked alone, no code made: a fifth of a build
#   --arm64               instead: cross-compiled for aarch64, the tests of ops, router and experts under qemu-user
#   --minutes N           what has not begun N minutes from now is left out, and said
#   --mirror URL          the archive (default: deb.debian.org, else archive.ubuntu.com)
#   --folder DIR          where images are made (default: a folder in TMPDIR or /var/tmp); those that are there are used
#   --keep                leaves them there
# Exit codes: 0; 1 something failed; 77 nothing could be tried.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
ORTHANT_SCRIPT=on_fresh_image
source "$root/scripts/common.sh"

tests=--sample
compilers=
arm64=
mirror=
folder=
keep=
stop_at=
suites=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,/^set -/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --tests | --sources | --minutes | --mirror | --folder)
      [[ $# -gt 1 ]] || die "$1 needs a value"
      case $1 in
        --tests) tests=$2 ;;
        --sources) compilers=$2 ;;
        --minutes) [[ $2 =~ ^[0-9]+$ ]] || die "--minutes takes minutes"; stop_at=$((SECONDS + 60 * $2)) ;;
        --mirror) mirror=$2 ;;
        --folder) folder=$2 ;;
      esac
      shift
      ;;
    --arm64) arm64=1 ;;
    --keep) keep=1 ;;
    -*) die "unknown option $1" ;;
    *) suites+=("$1") ;;
  esac
  shift
done
[[ ${#suites[@]} -gt 0 ]] || die "name a suite: bookworm, trixie, noble, ... (--help)"
for name in "${suites[@]}"; do
  [[ $name =~ ^[a-z]+$ ]] || die "'$name' is no suite's name: expected bookworm, trixie, noble, ..."
done
[[ $(id -u) -eq 0 ]] || { say "skipped: images are made by root"; exit 77; }
install_packages images debootstrap wget git
command -v debootstrap >/dev/null || { say "skipped: debootstrap is not installed"; exit 77; }
unshare --mount true 2>/dev/null || { say "skipped: no namespace of mounts can be had here"; exit 77; }

if [[ -z $folder ]]; then
  folder=$(mktemp -d "${TMPDIR:-/var/tmp}/orthant-images.XXXXXX")
  [[ -n $keep ]] || trap 'rm -rf --one-file-system "$folder"' EXIT
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# Libraries for aarch64 take the places of others.
image_of() { printf '%s/%s%s' "$folder" "$1" "${arm64:+-arm64}"; }

# inside SUITE COMMAND...: in its image, as root, with a clean environment. Mounts end with it, however it ends.
inside() {
  local image
  image=$(image_of "$1")
  shift
  unshare --mount --pid --fork --kill-child --propagation private bash -c '
    image=$1; shift
    mount -t proc proc "$image/proc" && mount --rbind /sys "$image/sys" && mount --rbind /dev "$image/dev" || exit 1
    mount -t tmpfs tmpfs "$image/tmp" || exit 1
    exec chroot "$image" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      LANG=C.UTF-8 "$@"' bash "$image" "$@"
}

has_suite() { wget -q --spider --timeout=20 --tries=2 "$1/dists/$2/InRelease" 2>/dev/null; }

# make_image SUITE: sets `problem` where it cannot.
make_image() {
  local suite=$1 image archive=$mirror options=() components=main script=sid
  image=$(image_of "$suite")
  [[ ! -e $image/.made ]] || return 0
  if [[ -z $archive ]]; then
    archive=http://deb.debian.org/debian
    has_suite "$archive" "$suite" || archive=http://archive.ubuntu.com/ubuntu
  fi
  if ! has_suite "$archive" "$suite"; then
    problem="not to be had: neither Debian's nor Ubuntu's archive answers with such a suite"
    [[ -z $mirror ]] || problem="not to be had from $mirror"
    return 1
  fi
  if [[ $archive == *ubuntu* ]]; then
    components=main,universe
    script=gutsy
    if [[ ! -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]]; then
      say "$suite: the keys of Ubuntu's archive are not on this machine: its signature is not checked"
      options+=(--no-check-gpg)
    fi
  fi
  [[ ! -e /usr/share/debootstrap/scripts/$suite ]] || script=$suite
  say "making an image of $suite from $archive (log: $image.log)"
  rm -rf --one-file-system "$image"
  if ! debootstrap --variant=minbase --components="$components" "${options[@]}" "$suite" "$image" "$archive" "$script" \
    >"$image.log" 2>&1; then
    problem="debootstrap failed: $(tail -n 1 "$image.log")"
    return 1
  fi
  : >"$image/.made"
}

# clone SUITE
clone() {
  local place
  place=$(image_of "$1")/root/orthant
  rm -rf "$place"
  git clone -q --no-hardlinks "$root" "$place"
}

apt() { inside "$1" sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/tmp/apt.log || { cat /tmp/apt.log; exit 1; }' sh "${@:2}"; }

# Of what was compiled with; what is not installed (clang, where g++ alone was asked for) is left out.
versions() {
  { inside "$1" sh -c 'dpkg-query -W -f "\${Package} \${Version}\n" g++ clang cmake libdnnl-dev libopenmpi-dev libfmt-dev \
    nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libgtest-dev 2>/dev/null' || true; } | sort -u |
    awk '$2 != "" { name = $1; sub(/^lib/, "", name); sub(/-dev$/, "", name); sub(/^[0-9]+:/, "", $2); sub(/[-+~].*/, "", $2)
           printf "%s%s %s", (n++ ? ", " : ""), name, $2 }'
}

as_readme_says() {
  local suite=$1
  inside "$suite" sh -c 'cd /root/orthant && ./launch configs/quickstart.toml' || { problem="./launch configs/quickstart.toml failed"; return 1; }
  [[ $tests == none ]] && return 0
  # shellcheck disable=SC2016
  inside "$suite" sh -c 'cd /root/orthant && ./runtests '"$tests" || { problem="./runtests $tests failed"; return 1; }
}

check_sources() {
  local suite=$1 compiler packages=("${build_packages[@]}" "${build_optional[@]}" "${test_packages[@]}")
  [[ $compilers != *clang* ]] || packages+=(clang libomp-dev)
  apt "$suite" "${packages[@]}" || { problem="apt could not install what a build needs"; return 77; }
  for compiler in $compilers; do
    if [[ -n $stop_at && SECONDS -ge stop_at ]]; then
      problem="${problem:+$problem; }$compiler left out, the time is over"
      continue
    fi
    say "$suite: every source by $compiler"
    inside "$suite" sh /root/orthant/scripts/check_sources.sh "$compiler" || { problem="$compiler has errors or warnings"; return 1; }
  done
}

# of_arm64 SUITE PACKAGE...: as apt is to have them: those with an architecture of their own for that one.
of_arm64() {
  # shellcheck disable=SC2016
  inside "$1" sh -c 'for name in "$@"; do
      apt-cache show --no-all-versions "$name:arm64" 2>/dev/null | grep -qx "Architecture: arm64" && name=$name:arm64
      echo "$name"
    done' sh "${@:2}"
}

cross_compile() {
  # Without Open MPI: its package wants a compiler that runs on arm64, which takes the cross compiler's name.
  local suite=$1 name libraries=(libdnnl-dev libgtest-dev libgmock-dev) packages
  for name in "${build_packages[@]}"; do
    [[ $name == g++ || $name == cmake ]] || libraries+=("$name")
  done
  inside "$suite" dpkg --add-architecture arm64
  inside "$suite" apt-get update -qq || { problem="apt has no lists for arm64"; return 1; }
  mapfile -t packages < <(of_arm64 "$suite" "${libraries[@]}")
  apt "$suite" cmake ninja-build g++-aarch64-linux-gnu qemu-user "${packages[@]}" || { problem="apt could not install what a cross build needs"; return 1; }
  # shellcheck disable=SC2016
  inside "$suite" sh -c 'cd /root/orthant && cmake -S . -B build/aarch64 -G Ninja --toolchain cmake/aarch64.cmake -DORTHANT_BENCH=OFF &&
    ninja -C build/aarch64 ops_tests router_tests experts_tests &&
    export ORTHANT_TEST_DEVICES=cpu,guarded OMP_WAIT_POLICY=passive && for folder in ops router experts; do qemu-aarch64 build/aarch64/bin/${folder}_tests --gtest_brief=1 || exit 1; done' ||
    { problem="the cross build or its tests failed"; return 1; }
}

commit=$(git -C "$root" rev-parse --short HEAD)
[[ -z $(git -C "$root" status --porcelain) ]] || say "what is not committed is not tried: $commit is"
work=as_readme_says
[[ -z $compilers ]] || work=check_sources
[[ -z $arm64 ]] || work=cross_compile
failed=0
tried=0
table=()
for suite in "${suites[@]}"; do
  begin=$SECONDS
  problem=
  said=
  if [[ -n $stop_at && SECONDS -ge stop_at ]]; then
    table+=("$(printf '%-10s %-8s %4s  %s' "$suite" skipped - "the time is over")")
    continue
  fi
  if ! make_image "$suite"; then
    table+=("$(printf '%-10s %-8s %4s  %s' "$suite" skipped - "$problem")")
    continue
  fi
  tried=$((tried + 1))
  clone "$suite"
  result=ok
  status=0
  "$work" "$suite" || status=$?
  case $status in
    0) ;;
    77) result=skipped tried=$((tried - 1)) ;;
    *) result=failed failed=1 ;;
  esac
  said=$(versions "$suite")
  minutes=$(((SECONDS - begin + 30) / 60))
  table+=("$(printf '%-10s %-8s %4d  %s' "$suite" "$result" "$minutes" "${problem:+$problem; }$said")")
done
printf '%s of %s\n%-10s %-8s %4s  %s\n' "$commit" "$(date -u +%F)" suite result min "with"
printf '%s\n' "${table[@]}"
[[ $failed -eq 0 ]] || exit 1
[[ $tried -gt 0 ]] || exit 77
