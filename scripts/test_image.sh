#!/usr/bin/env bash
# The image as a stranger meets it, without Docker's daemon and without a registry: buildah builds Dockerfile on a bare
# root, and `sluice` inside says what it is for, plans, and runs the small trained model as the image's own user.
# As root; needs buildah, and apt's way to the distribution's archive.
#
#   scripts/test_image.sh ROOT [ARGUMENTS OF buildah bud...]
#
# ROOT: a folder or .tar with a bare Debian 12, as scripts/test_packages.sh keeps them in build/roots. It stands for
# debian:12 and for debian:12-slim. --volume "$HOME/.cache/ccache:/root/.cache/ccache" saves most of the compiling.
# DOCKERFILE: another file in Dockerfile's place.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fixtures.py unpack >/dev/null
if [ $# -lt 1 ] || [ ! -e "$1" ]; then sed -n 6p "$0" >&2; exit 2; fi
bare=$1
shift
command -v buildah >/dev/null || { echo "test_image: install buildah" >&2; exit 2; }
model=$PWD/tests/fixtures/models/stories260k
golden() { python3 -c "import json; print(json.load(open('$model/goldens.json'))['cases'][0]['$1'])"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BUILDAH_ISOLATION=chroot
image() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

container=$(image from scratch)
image add -q "$container" "$bare" / >/dev/null
image config --env PATH=/usr/sbin:/usr/bin:/sbin:/bin --env LANG=C.UTF-8 "$container"
image commit -q --rm "$container" localhost/bare:12 >/dev/null
image bud -q --layers=false -f "${DOCKERFILE:-Dockerfile}" --build-arg BUILD=localhost/bare:12 \
  --build-arg RUN=localhost/bare:12 -t localhost/sluice "$@" . >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
echo "image: $(image images --format '{{.Size}}' localhost/sluice), the root it stands on $(image images --format '{{.Size}}' \
  localhost/bare:12)"
container=$(image from localhost/sluice)
# shown COMMAND...: in a container of the image, by its user and from its folder, as `docker run` would.
shown() {
  printf '    $'; printf ' %q' "$@"; echo
  image run -v "$model:/models/stories260k:ro" "$container" -- "$@" >"$work/out" 2>"$work/err" ||
    { cat "$work/out" "$work/err"; echo "image: WRONG: $*"; exit 1; }
  sed 's/^/    /; s/ *$//' "$work/out"
}
shown id
shown sluice --help
shown sluice plan opt-30b --hardware t4
shown sluice run /models/stories260k -p "$(golden prompt)" -n 64 --cpu-mem 900KiB
[ "$(golden prompt)$(cat "$work/out")" = "$(golden text)" ] || { echo "image: WRONG: not the golden's text"; exit 1; }
echo "image: good"
