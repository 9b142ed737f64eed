#!/usr/bin/env bash
# Installs what building needs, from the distribution: Debian 12 and later, Ubuntu 22.04 and later. Does nothing (and asks
# for no password) where everything is there. --fuzz: what scripts/fuzz.sh needs as well; --python: what the Python module and
# its tests need; --page: what scripts/check_page.py needs.
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

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not Debian or Ubuntu; install what these packages hold, then run cmake --preset release:" >&2
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

version=$(cmake --version | head -1 | awk '{print $3}')
if [ "$(printf '%s\n' 3.22 "$version" | sort -V | head -1)" != 3.22 ]; then
  echo "setup: cmake $version is too old, 3.22 is needed" >&2
  exit 1
fi
echo "setup: everything is installed"
