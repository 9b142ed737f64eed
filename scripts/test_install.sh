#!/usr/bin/env bash
# The installed library as others find it: into a clean folder, the example built there by CMake's find_package and by
# pkg-config, and what it writes.
#
#   scripts/test_install.sh [BUILD]     BUILD: a configured build folder (build/release)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
build=${1:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --build "$build" --target sluice_archive -- -j"$(nproc)"
cmake --install "$build" --prefix "$work/prefix" --component library >/dev/null

# Nothing of ours but what is installed: headers that need others don't compile here.
cmake -S examples -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/build"
libdir=$(dirname "$(find "$work/prefix" -name libsluice.a)")
flags=$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs sluice)
(cd "$work" && g++ -std=c++20 -O0 "$root/examples/generate.cc" -o by_pkg_config $flags)
for header in "$work"/prefix/include/sluice/*.h; do
  (cd "$work" && echo "#include <sluice/$(basename "$header")>" | g++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only \
    -Iprefix/include -x c++ -)
done

# The small trained model's 64 likeliest tokens after its first golden prompt.
model=tests/fixtures/models/stories260k
golden() { python3 -c "import json; print(json.load(open('$model/goldens.json'))['cases'][0]['$1'])"; }
export XDG_CACHE_HOME=$work/cache
for program in "$work/build/generate" "$work/by_pkg_config"; do
  said="$(golden prompt)$("$program" "$model" "$(golden prompt)")"
  [[ $said == "$(golden text)" ]] || { echo "$program said: $said"; exit 1; }
done
if "$work/build/generate" "$work" "x" 2>"$work/errors"; then
  echo "an empty folder was a model"; exit 1
fi
grep -q "$work" "$work/errors" || { cat "$work/errors"; exit 1; }
echo "install: good"
