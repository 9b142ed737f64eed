#!/usr/bin/env bash
# Makes the packages of this version: the program with its manual pages and completions (sluice), and the library for
# those who write programs (libsluice-dev), each as .deb and as .tar.gz, in FOLDER (default: build/packages).
#
#   scripts/package.sh [-o FOLDER] [-DOPTION=VALUE...]
#
# The program's packages hold every library that it loads but glibc's and the compiler's, so they run on this
# distribution and on later ones, other ones too; build them on the oldest that you want to serve. Without MPI, which
# can't be packed up. -DSLUICE_BUNDLE=OFF makes a .deb that depends on this distribution's own libraries instead (and
# takes MPI where it is). GLPK is under the GPL 3: whoever passes a package on that holds it does so under its terms
# (docs/packages.md).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/packages
if [ "${1:-}" = -o ]; then
  [ $# -ge 2 ] || { sed -n '2,6p' "$0" >&2; exit 2; }
  folder=$2
  shift 2
fi
options=(-DSLUICE_BUNDLE=ON -DSLUICE_MPI=OFF)
for option in "$@"; do
  case $option in
    -DSLUICE_BUNDLE=OFF) options=("$option") ;;
    -D*) options+=("$option") ;;
    *) sed -n '2,6p' "$0" >&2; exit 2 ;;
  esac
done
command -v dpkg-deb >/dev/null || { echo "package: no dpkg-deb here; packages are made on Debian or Ubuntu" >&2; exit 1; }
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

build=build/package
cmake --preset release -B "$build" -DSLUICE_TESTS=OFF -DSLUICE_PYTHON=OFF -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON \
  -DCMAKE_INSTALL_PREFIX=/usr "${options[@]}" >/dev/null
cmake --build "$build" --target sluice_tool sluice_archive sluice_pages -- -j"${SLUICE_BUILD_JOBS:-$(nproc)}"
mkdir -p "$folder"
cpack --config "$build/CPackConfig.cmake" -B "$folder" >"$build/cpack.log" 2>&1 || { cat "$build/cpack.log"; exit 1; }
rm -rf "$folder/_CPack_Packages"
ls -l "$folder" | awk 'NR > 1 { printf "package: %s, %.1f MB\n", $9, $5 / 1e6 }'
