#!/usr/bin/env bash
# The packages as a stranger meets them: installed into bare roots of Debian and Ubuntu that have no compiler, no
# build tool and none of the libraries, by the root's own apt, which is not to fetch anything. Prints what
# docs/packages.md keeps. As root; needs debootstrap and, for the first time, the distribution's archive:
#
#   scripts/test_packages.sh [--roots FOLDER] [--dev] [--unsigned] [FOLDER OF PACKAGES] [SUITE...]
#
# Suites: bookworm (Debian 12), trixie (Debian 13), noble (Ubuntu 24.04); default: bookworm noble. --roots: where bare
# roots are kept for the next time (build/roots). --dev: also installs g++ and libsluice-dev in Debian 12's root, and
# builds and runs the example there. Ubuntu's packages are checked against ubuntu-archive-keyring; where no package
# has that key, --unsigned makes such a root without the check. A suite whose archive can't be reached is said so, and
# the script fails.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fixtures.py unpack >/dev/null
roots=build/roots dev='' unsigned='' packages=build/packages suites=()
while [ $# -gt 0 ]; do
  case $1 in
    --roots) [ $# -ge 2 ] || { sed -n '6p' "$0" >&2; exit 2; }; roots=$2; shift ;;
    --dev) dev=yes ;;
    --unsigned) unsigned=yes ;;
    bookworm | trixie | noble) suites+=("$1") ;;
    *) [ -d "$1" ] || { echo "test_packages: $1 is no folder and no suite" >&2; exit 2; }; packages=$1 ;;
  esac
  shift
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm noble)
[ "$(id -u)" -eq 0 ] || { echo "test_packages: roots are made by root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "test_packages: install debootstrap" >&2; exit 2; }
version=$(sed -n 's/^project(sluice VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
model=tests/fixtures/models/stories260k
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() { echo "packages: WRONG: $*"; exit 1; }
golden() { python3 -c "import json; print(json.load(open('$model/goldens.json'))['cases'][0]['$1'])"; }

# bare SUITE: makes the root once.
bare() {
  local suite=$1 mirror=http://deb.debian.org/debian options=() script=
  [ -d "$roots/$suite" ] && return
  if [ "$suite" = noble ]; then
    mirror=http://archive.ubuntu.com/ubuntu
    # An older debootstrap does not know the name; all of Ubuntu's releases are made alike, by this one's.
    [ -e /usr/share/debootstrap/scripts/noble ] || script=gutsy
    if [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]; then
      options=(--keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg)
    elif [ -n "$unsigned" ]; then
      options=(--no-check-gpg)
    else
      wrong "no /usr/share/keyrings/ubuntu-archive-keyring.gpg to check Ubuntu's packages by (--unsigned: without)"
    fi
  fi
  mkdir -p "$roots"
  rm -rf "$roots/$suite.new"
  debootstrap --variant=minbase "${options[@]}" "$suite" "$roots/$suite.new" "$mirror" ${script:+"$script"} \
    >"$work/debootstrap.log" 2>&1 || { tail -5 "$work/debootstrap.log"; wrong "no root of $suite: is its archive within reach?"; }
  rm -f "$roots/$suite.new"/var/cache/apt/archives/*.deb
  mv "$roots/$suite.new" "$roots/$suite"
}
# inside COMMAND...: in the root, with a process table and devices, for as long as it runs.
inside() {
  unshare --mount --propagation private bash -c 'mount --bind /proc "$0/proc" && mount --rbind /dev "$0/dev" &&
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot \
    ${USER_IN:+--userspec=$USER_IN} "$0" "$@"' "$root" "$@"
}
# shown COMMAND...: likewise, with the command before what it prints.
shown() { printf '    $'; printf ' %q' "$@"; echo; inside "$@" 2>&1 | sed 's/^/    /; s/ *$//'; }
listed() { inside find /usr /etc /opt -xdev | sort; }
# speaks PROGRAM: the small trained model's text after its first golden prompt, in less memory than it has weights.
speaks() {
  local said
  said=$(inside "$1" run -m /model -p "$(golden prompt)" -n 64 --cpu-mem 900KiB 2>/dev/null) || wrong "$1 does not run"
  [ "$said" = "$(golden text)" ] || [ "$(golden prompt)$said" = "$(golden text)" ] || wrong "$1 says: $said"
}

try_suite() {
  local suite=$1 deb=sluice_${version}_amd64.deb
  bare "$suite"
  root=$work/$suite
  cp -a "$roots/$suite" "$root"
  cp -r "$model" "$root/model"
  cp "$packages/$deb" "$root/"
  echo "## $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release"), $(inside dpkg-query -W | wc -l) packages"
  for tool in cc gcc g++ clang make ninja cmake ld python3; do
    if inside sh -c "command -v $tool" >/dev/null; then wrong "$suite has $tool: that is no bare root"; fi
  done
  # Whatever it would fetch it asks an address where nobody answers.
  echo 'Acquire::http::Proxy "http://127.0.0.1:9";' >"$root/etc/apt/apt.conf.d/99nowhere"
  listed >"$work/before"
  shown apt-get install -y --no-install-recommends -qq "/$deb" >"$work/apt.log" ||
    { cat "$work/apt.log"; wrong "not installed"; }
  grep -v '^    debconf:\|^    (Reading' "$work/apt.log" || true
  inside dpkg-query -W sluice >/dev/null || wrong "sluice is not installed"
  [ "$(inside sluice --version)" = "sluice $version" ] || wrong "sluice --version"
  shown sluice --version
  shown sluice plan opt-30b --hardware t4
  shown sluice run -m /model -p "$(golden prompt)" -n 64 --cpu-mem 900KiB
  speaks sluice
  USER_IN=65534:65534 inside sluice run -m /model -p Once -n 4 --hardware none >/dev/null 2>"$work/errors" ||
    { cat "$work/errors"; wrong "only root can use it"; }
  if inside ldd /usr/bin/sluice | grep 'not found'; then wrong "a library is missing"; fi
  echo "    # libraries: $(inside ldd /usr/bin/sluice | grep -c '=> /usr/bin/../lib/sluice') of the package," \
    "$(inside ldd /usr/bin/sluice | grep '=>' | grep -v '/lib/sluice' | awk '{ print $1 }' | tr '\n' ' ')of the root"
  for page in sluice.1 sluice-run.1 sluice-bench-serve.1; do
    [ -s "$root/usr/share/man/man1/$page" ] || [ -s "$root/usr/share/man/man1/$page.gz" ] || wrong "no page $page"
  done
  inside bash -c '. /usr/share/bash-completion/completions/sluice
    COMP_WORDS=(sluice run --cpu-m); COMP_CWORD=2; _sluice
    [[ " ${COMPREPLY[*]} " == *" --cpu-mem "* ]]' || wrong "completion"
  [ "$(ls "$root"/usr/share/doc/sluice/libraries | wc -l)" -gt 5 ] || wrong "no licences of the libraries"
  inside apt-get purge -y -qq sluice >/dev/null 2>&1
  listed >"$work/after"
  diff "$work/before" "$work/after" >"$work/left" || { cat "$work/left"; wrong "removed, but not all of it"; }
  echo "    # removed: nothing is left"

  mkdir "$root/opt/a folder"
  tar -C "$root/opt/a folder" -xzf "$packages/sluice-$version-linux-x86_64.tar.gz"
  speaks "/opt/a folder/sluice-$version-linux-x86_64/bin/sluice"
  echo "    # sluice-$version-linux-x86_64.tar.gz, unpacked in a folder with a space: the same text"
}

# The library: what it says it needs is what a program that is linked with it needs.
try_dev() {
  bare bookworm
  root=$work/dev
  cp -a "$roots/bookworm" "$root"
  cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
  for file in /etc/apt/apt.conf.d/*proxy*; do [ ! -e "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"; done
  cp -r "$model" "$root/model"
  cp "$packages/libsluice-dev_${version}_amd64.deb" examples/generate.cc examples/CMakeLists.txt "$root/"
  { inside apt-get update -qq && inside apt-get install -y -qq --no-install-recommends g++ cmake make pkg-config \
      "/libsluice-dev_${version}_amd64.deb"; } >"$work/apt.log" 2>&1 || { tail "$work/apt.log"; wrong "libsluice-dev"; }
  inside sh -c 'g++ -std=c++20 /generate.cc -o /by_pkg_config $(pkg-config --cflags --libs sluice) &&
    cmake -S / -B /by_cmake >/dev/null && cmake --build /by_cmake >/dev/null' || wrong "the example does not build"
  for program in /by_pkg_config /by_cmake/generate; do
    [ "$(golden prompt)$(inside "$program" /model "$(golden prompt)")" = "$(golden text)" ] || wrong "$program"
  done
  echo "## libsluice-dev: the example, by pkg-config and by CMake: the same text"
}

for suite in "${suites[@]}"; do try_suite "$suite"; done
[ -z "$dev" ] || try_dev
echo "packages: good"
