#!/usr/bin/env bash
# The wheel as a stranger meets it: built by pip, installed into an environment of its own, away from this folder. It holds
# every library that it loads but those of glibc and the compiler, says what the small trained model says, and its types
# are there. Needs PyPI for the build's tools and numpy.
#
#   scripts/test_wheel.sh [PIP ARGUMENTS...]     for example -Ccmake.define.SLUICE_CUDA=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fixtures.py unpack >/dev/null
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m pip wheel --quiet --no-deps -w "$work" "$@" .
wheel=$(ls "$work"/sluice-*.whl)
echo "$(basename "$wheel"): $(du -h "$wheel" | cut -f1)"
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet "$wheel"

cd "$work"
XDG_CACHE_HOME=$work/cache "$work/env/bin/python" - "$root/tests/fixtures/models/stories260k" <<'PYTHON'
import json
import pathlib
import sys

import sluice

folder = pathlib.Path(sluice.__file__).parent
assert folder.parent.name in ("site-packages", "dist-packages"), folder
case = json.loads((pathlib.Path(sys.argv[1]) / "goldens.json").read_text())["cases"][0]
with sluice.Model(sys.argv[1], cpu_mem="64MiB") as model:
    assert case["prompt"] + model.generate(case["prompt"], max_tokens=len(case["greedy_ids"])).text == case["text"]
    assert model.logits("Once").shape[1] == 512
print(sluice.plan("opt-30b", hardware="t4", sequences=16, lifts=False))
for name in ("__init__.pyi", "py.typed"):
    assert (folder / name).exists(), name

# Whatever is mapped is the wheel's, numpy's, Python's, or what every system has.
system = ("ld-linux", "libc.", "libm.", "libdl.", "librt.", "libpthread.", "libgcc_s.", "libstdc++.", "libresolv.")
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
mine = sorted(path for path in mapped if str(folder) in path)
prefix = {sys.prefix, sys.base_prefix, sys.exec_prefix}
other = sorted(path for path in mapped if str(folder) not in path and not pathlib.Path(path).name.startswith(system)
               and not any(path.startswith(one) for one in prefix))
other = [path for path in other if "/lib-dynload/" not in path and "libpython" not in path]
print(f"of the wheel: {len(mine)}: {', '.join(pathlib.Path(path).name for path in mine)}")
outside = [path for path in other if any(word in path for word in
           ("fmt", "uring", "glpk", "dnnl", "pcre2", "utf8proc", "sentencepiece", "gomp", "protobuf"))]
assert not outside, f"from the system: {outside}"
assert len(mine) > 5, mine
print(f"of the system beside Python: {', '.join(sorted(pathlib.Path(path).name for path in other)) or 'nothing'}")
PYTHON
echo "wheel: good"
