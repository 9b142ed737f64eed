#!/usr/bin/env bash
# Builds sluice for 64-bit ARM on an x86-64 machine and runs its tests and its program under qemu-user: what is computed
# is right there; how fast, only such a machine can say.
#
#   sudo apt-get install g++-aarch64-linux-gnu qemu-user-static mmdebstrap ninja-build cmake
#   scripts/test_arm64.sh [--quick]      # --quick: without the long tests; build/arm64 has the root and the build
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fixtures.py unpack >/dev/null
quick=""
case "${1:-}" in
  "") ;;
  --quick) quick=1 ;;
  *) echo "usage: scripts/test_arm64.sh [--quick]" >&2; exit 2 ;;
esac
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static mmdebstrap ninja cmake; do
  command -v "$tool" >/dev/null || { echo "test_arm64: $tool is not here; the head of this script says what to install" >&2; exit 1; }
done
work=$PWD/build/arm64
root=${SLUICE_ARM64_ROOT:-$work/root}
# What setup.sh installs, less tools and MPI, as files of the other machine.
if [ ! -d "$root/usr/include" ]; then
  mkdir -p "$work"
  mmdebstrap --variant=extract --architectures=arm64 --include="$(tr '\n' ',' <<'PACKAGES'
libc6-dev
libstdc++-12-dev
liburing-dev
libdnnl-dev
libcli11-dev
nlohmann-json3-dev
libfmt-dev
libcpp-httplib-dev
libboost-dev
libpcre2-dev
libutf8proc-dev
libsentencepiece-dev
libedit-dev
libglpk-dev
libgtest-dev
libgmock-dev
zlib1g-dev
PACKAGES
)" bookworm "$root" >"$work.log" 2>&1 || { tail -5 "$work.log"; echo "test_arm64: no root of Debian's arm64 packages" >&2; exit 1; }
fi
mkdir -p "$work"
cat >"$work/toolchain.cmake" <<TOOLCHAIN
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT $root)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-cpu;max;-L;$root)
TOOLCHAIN
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig
cmake --preset release -B "$work/release" -DCMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" -DSLUICE_CUDA=OFF -DSLUICE_BENCHMARKS=OFF \
  >"$work/configure.log" 2>&1 || { tail -20 "$work/configure.log"; exit 1; }
tests=(base_test kernels_rows_test kernels_linear_test kernels_quantise_test kernels_attention_test kernels_delta_rule_test
  sampling_test guide_test schedule_test cache_test)
ninja -C "$work/release" bin/sluice "${tests[@]}"
emulated() { qemu-aarch64-static -cpu "${cpu:-max}" -L "$root" "$@"; }

# The long ones again and again over many shapes; one shape of each says as much here.
filter='*'
[ -z "$quick" ] || filter='-*Every*:*Random*:*Long*'
for test in "${tests[@]}"; do
  echo "== $test"
  emulated "$work/release/tests/$test" --gtest_filter="$filter" --gtest_brief=1
done

# The small trained model's text, in memory and with less than it has weights, with and without products of bf16 and of
# bytes, and on processors that have none: they must not meet an instruction that they lack.
model=tests/fixtures/models/stories260k
golden() { python3 -c "import json; print(json.load(open('$model/goldens.json'))['cases'][0]['$1'])"; }
check_text() {
  local said
  said=$(emulated "$work/release/bin/sluice" run -m "$model" -p "$(golden prompt)" -n 64 --hardware none "$@" 2>/dev/null) || true
  [ "$said" = "$(golden text)" ] || [ "$(golden prompt)$said" = "$(golden text)" ] ||
    { echo "test_arm64: FAILED, run $* says: $said" >&2; exit 1; }
  echo "same text: run $*"
}
echo "== $(emulated "$work/release/bin/sluice" --version), $(emulated "$work/release/bin/sluice" inspect --kernels | head -1)"
check_text
check_text --cpu-mem 900KiB
check_text --cpu-isa neon
check_text --cpu-isa generic
# What products of bf16 are for, beside the same in f32: the model's own text, token by token.
said_text=$work/text
{ golden prompt; golden text; } >"$said_text"
for weights in bf16 int8 int4-g32 nf4-g32; do
  store=$work/store-$weights
  emulated "$work/release/bin/sluice" convert -m "$model" -o "$store" --weights "$weights" --overwrite >/dev/null 2>&1
  evaluate() { emulated "$work/release/bin/sluice" eval -m "$store" --text "$said_text" --hardware none "$@" 2>/dev/null; }
  evaluate --compute f32 --save-logits "$work/logits.npy" >/dev/null
  apart=$(evaluate --compute bf16 --against "$work/logits.npy" | sed -n 's/.*KL divergence mean \([0-9.]*\).*/\1/p')
  awk -v apart="$apart" 'BEGIN { exit !(apart != "" && apart < 0.0002) }' ||
    { echo "test_arm64: FAILED, $weights in bf16: KL divergence ${apart:-of nothing}" >&2; exit 1; }
  echo "same tokens in bf16: $weights (KL divergence $apart)"
done
for machine in neoverse-n1:neon cortex-a72:generic; do
  cpu=${machine%:*}
  has=$(emulated "$work/release/bin/sluice" inspect --kernels | sed -n 's/.*(detected \(.*\))/\1/p')
  [ "$has" = "${machine#*:}" ] || { echo "test_arm64: FAILED, a $cpu has ${machine#*:}, not $has" >&2; exit 1; }
  echo "== a $cpu has $has, and takes:"
  check_text
done
echo "test_arm64: good"
