#!/usr/bin/env bash
# Installs what building needs, from the distribution: Debian 12 and later, Ubuntu 22.04 and later. Does nothing (and asks
# for no password) where everything is there. On Fedora and Arch it says what to install. --fuzz: what scripts/fuzz.sh needs
# as well; --python: what the Python module and its tests need; --page: what scripts/check_page.py needs.
set -euo pipefail
packages=(g++ make cmake ninja-build pkg-config ccache git python3
  liburing-dev libdnnl-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libfmt-dev libcpp-httplib-dev libboost-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev libedit-dev libglpk-dev zlib1g-dev libopenmpi-dev openmpi-bin)
optional=(clang-format)  # installed with the others, but nothing stops without them
case "${1:-}" in
  "") ;;
  --fuzz) packages+=(clang libomp-dev); optional+=(libclang-rt-dev) ;;  # the run time is a package of its own on some
  --python) packages+=(python3-dev pybind11-dev python3-pytest python3-numpy) ;;
  --page) packages+=(chromium chromium-driver python3-selenium python3-pil) ;;
  *) echo "usage: scripts/setup.sh [--fuzz | --python | --page]" >&2; exit 2 ;;
esac

# Elsewhere the names are another distribution's, and what is missing is said rather than installed. The lists were read off
# the distributions' indices, but for those of --page, which nobody has looked up; sluice has not been built there.
need_cmake() {
  local version
  version=$(cmake --version | head -1 | awk '{print $3}')
  if [ "$(printf '%s\n' 3.22 "$version" | sort -V | head -1)" != 3.22 ]; then
    echo "setup: cmake $version is too old, 3.22 is needed" >&2
    exit 1
  fi
  echo "setup: everything is installed"
}
# elsewhere SYSTEM COMMAND MISSING...: says what to install there, if anything.
elsewhere() {
  local system=$1 command=$2
  shift 2
  if [ $# -eq 0 ]; then need_cmake; exit 0; fi
  echo "setup: this is $system, where this script installs nothing itself. Run" >&2
  echo "  $command $*" >&2
  echo "setup: and start it again. Where a name is unknown, look for what Debian calls libNAME-dev." >&2
  exit 1
}
fedora=(gcc-c++ make cmake ninja-build pkgconf-pkg-config ccache git python3 liburing-devel onednn-devel cli11-devel gtest-devel
  gmock-devel google-benchmark-devel json-devel fmt-devel cpp-httplib-devel boost-devel pcre2-devel utf8proc-devel
  sentencepiece-devel libedit-devel glpk-devel zlib-devel openmpi-devel)
arch=(gcc make cmake ninja pkgconf ccache git python liburing onednn cli11 gtest benchmark nlohmann-json fmt cpp-httplib boost pcre2
  libutf8proc sentencepiece libedit glpk zlib openmpi)
case "${1:-}" in
  --fuzz) fedora+=(clang compiler-rt libomp-devel); arch+=(clang compiler-rt openmp) ;;
  --python) fedora+=(python3-devel pybind11-devel python3-pytest python3-numpy); arch+=(pybind11 python-pytest python-numpy) ;;
  --page) fedora+=(chromium chromedriver python3-selenium python3-pillow); arch+=(chromium python-selenium python-pillow) ;;
esac
# SLUICE_OS_RELEASE: another file in the place of the system's own, for trying this.
system=$(. "${SLUICE_OS_RELEASE:-/etc/os-release}" 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") || system=
case " $system " in
  *" debian "* | *" ubuntu "*) ;;
  *" fedora "*)
    missing=()
    for package in "${fedora[@]}"; do rpm -q --quiet --whatprovides "$package" 2>/dev/null || missing+=("$package"); done
    elsewhere "Fedora, or made from it" "sudo dnf install" "${missing[@]}" ;;
  *" arch "*)
    missing=("${arch[@]}")
    if command -v pacman >/dev/null; then mapfile -t missing < <(pacman -T "${arch[@]}"); fi  # those that nothing provides
    elsewhere "Arch Linux, or made from it" "sudo pacman -S --needed" "${missing[@]}" ;;
esac
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not Debian, Ubuntu, Fedora or Arch; install what these packages of Debian's hold, then run" >&2
  echo "cmake --preset release:" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
missing=()
for package in "${packages[@]}"; do is_installed "$package" || missing+=("$package"); done
absent=()
for package in "${optional[@]}"; do is_installed "$package" || absent+=("$package"); done

if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: run as root, or have root install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  echo "setup: installing ${missing[*]}"
  "${apt[@]}" update -qq
  unknown=()
  for package in "${missing[@]}"; do
    [ -n "$(apt-cache policy "$package" | grep -v 'Candidate: (none)' | grep 'Candidate:')" ] || unknown+=("$package")
  done
  if [ ${#unknown[@]} -gt 0 ]; then
    echo "setup: apt does not know ${unknown[*]}" >&2
    echo "setup: on Ubuntu enable \"universe\" (sudo add-apt-repository universe); older releases than 22.04 lack some" >&2
    exit 1
  fi
  for package in "${absent[@]}"; do
    if apt-cache policy "$package" | grep 'Candidate:' | grep -qv '(none)'; then missing+=("$package"); fi
  done
  "${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
elif [ "${1:-}" = "--fuzz" ] && [ ${#absent[@]} -gt 0 ] && [ "$(id -u)" -eq 0 ]; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${absent[@]}" >/dev/null || true
fi

need_cmake
