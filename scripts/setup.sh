#!/usr/bin/env bash
# Installs what building needs, from the distribution: Debian 12 and later, Ubuntu 22.04 and later. Does nothing where
# everything is there. --fuzz: clang for the fuzz targets as well.
set -euo pipefail
packages=(g++ make cmake ninja-build pkg-config ccache git python3 clang-format
  liburing-dev libdnnl-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libfmt-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev zlib1g-dev)
[ "${1:-}" = "--fuzz" ] && packages+=(clang)
if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is not Debian or Ubuntu; install the equivalents of: ${packages[*]}" >&2
  exit 1
fi
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: run as root, or install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
