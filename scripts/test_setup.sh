#!/usr/bin/env bash
# What scripts/setup.sh says on systems that it does not install for, played by files in the place of /etc/os-release and by
# stand-ins of rpm and pacman. Installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
# tool NAME SCRIPT: a stand-in.
tool() { printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
# on "ID LINES" ARGUMENTS...: what it says there; its exit code in $code.
on() {
  printf '%b' "$1" >"$work/os-release"
  shift
  code=0
  said=$(PATH="$work/bin:$PATH" SLUICE_OS_RELEASE=$work/os-release scripts/setup.sh "$@" 2>&1) || code=$?
}
# expect CODE WORDS...: each of them said, and not one that begins with "!".
expect() {
  local word wrong=''
  [ "$code" -eq "$1" ] || wrong="exit code $code instead of $1"
  shift
  for word in "$@"; do
    if [[ $word == !* ]]; then [[ $said != *"${word#!}"* ]] || wrong="says ${word#!}"; continue; fi
    [[ $said == *"$word"* ]] || wrong="does not say $word"
  done
  [ -z "$wrong" ] || { echo "setup: WRONG on $(head -1 "$work/os-release"): $wrong; it said: $said"; exit 1; }
}

tool rpm 'exit 1'
on 'ID=fedora\nVERSION_ID=43\n'
expect 1 Fedora "sudo dnf install" onednn-devel cli11-devel sentencepiece-devel !pybind11
on 'ID="rocky"\nID_LIKE="rhel centos fedora"\n' --python
expect 1 "sudo dnf install" onednn-devel pybind11-devel
tool rpm 'case "$*" in *glpk-devel*) exit 1 ;; esac'
on 'ID=fedora\n'
expect 1 "sudo dnf install glpk-devel" !onednn
tool rpm 'exit 0'
on 'ID=fedora\n' --fuzz
expect 0 "everything is installed"

tool pacman 'shift; printf "%s\n" "$@"; exit 127'
on 'ID=arch\n'
expect 1 Arch "sudo pacman -S --needed" onednn libutf8proc !-devel
on 'ID=manjaro\nID_LIKE=arch\n' --fuzz
expect 1 "sudo pacman -S --needed" onednn clang openmp
tool pacman 'echo glpk; exit 127'
on 'ID=arch\n'
expect 1 "sudo pacman -S --needed glpk" !onednn
tool pacman 'exit 0'
on 'ID=arch\n'
expect 0 "everything is installed"

on 'ID=fedora\n' --bogus
expect 2 usage
echo "setup: what it says elsewhere is good"
