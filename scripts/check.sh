#!/usr/bin/env bash
# What needs no build: layers, file sizes, formatting, an opening comment in every header.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 scripts/check_layers.py
status=0
while read -r file; do
  lines=$(wc -l <"$file")
  if [ "$lines" -gt 800 ]; then echo "size: $file has $lines lines; split it"; status=1; fi
done < <(git ls-files '*.cc' '*.h' '*.inc' '*.py' '*.sh')
while read -r header; do
  sed -n 2p "$header" | grep -q '^//' || { echo "comment: $header does not say what it is"; status=1; }
done < <(git ls-files '*.h')
if command -v clang-format >/dev/null; then
  # Versions differ in details; the pinned one is the law, others are not asked.
  if clang-format --version | grep -q 'version 14\.'; then
    git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror 2>/dev/null || { echo "format: run scripts/format.sh"; status=1; }
  fi
fi
[ $status -eq 0 ] && echo "check: good"
exit $status
