#!/usr/bin/env bash
# The sizes of all files that git tracks and of the files named, together; fails where they exceed MIB mebibytes:
#   scripts/tree_size.sh MIB [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
most_mib=$1
shift
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  echo "tree_size: no git here, nothing was measured"
  exit 0
fi
tree=$(git ls-files -z | xargs -0 stat -c %s 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }')
sum=$tree
line="tree_size: tracked files $(awk -v n="$tree" 'BEGIN { printf "%.1f", n / 1048576 }') MiB"
for file in "$@"; do
  bytes=$(stat -c %s "$file")
  sum=$((sum + bytes))
  line+=", $(basename "$file") $(awk -v n="$bytes" 'BEGIN { printf "%.1f", n / 1048576 }') MiB"
done
echo "$line; at most $most_mib MiB"
if [ "$sum" -gt $((most_mib * 1048576)) ]; then
  echo "tree_size: more than that; the largest files:" >&2
  git ls-files -z | xargs -0 stat -c '%s %n' 2>/dev/null | sort -rn | sed -n 1,8p >&2
  exit 1
fi
