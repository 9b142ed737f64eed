#!/usr/bin/env bash
# Packs the GPU programs with the libraries they need for a machine that has neither packages nor a network, such as a GPU
# lent for minutes. On a machine with nvcc and scripts/setup.sh's packages; no GPU needed:
#
#   scripts/gpu_bundle.sh -o sluice-gpu.tar.xz            on the other machine, where Python or tar and xz are:
#   python3 -m tarfile -e sluice-gpu.tar.xz . && sluice-gpu/scripts/gpu-check.sh
#
# --archs LIST (default "90-real;80-virtual": Hopper's code, and PTX for any GPU from Ampere on). --stand-in: the same programs
# with the kernels on the host's stand-in instead of CUDA, to rehearse the check (gpu-check.sh --rehearse). --build DIR (default
# build/gpu-bundle). Programs find what lies in bin/lib before anything that LD_LIBRARY_PATH names (DT_RPATH: also what the
# libraries need of each other). bin/lib/glibc holds this machine's C library, for older machines: gpu-check.sh starts programs
# with its loader where they don't start by themselves. cuBLASLt (540 MB) and the driver are the other machine's own.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "gpu_bundle: $1" >&2; sed -n '2,14p' scripts/gpu_bundle.sh >&2; exit 2; }
output=sluice-gpu.tar.xz archs="90-real;80-virtual" build=build/gpu-bundle stand_in= most_mib=40
while [ $# -gt 0 ]; do
  case $1 in
    --stand-in) stand_in=yes; shift; continue ;;
    -o | --output | --archs | --build) [ $# -ge 2 ] || usage "$1 needs a value" ;;
    *) usage "unknown argument $1" ;;
  esac
  case $1 in
    -o | --output) output=$2 ;;
    --archs) archs=$2 ;;
    --build) build=$2 ;;
  esac
  shift 2
done
for tool in cmake strip ldd readelf xz tar; do
  command -v $tool >/dev/null || { echo "gpu_bundle: $tool is missing; scripts/setup.sh installs what building needs" >&2; exit 2; }
done
# Name in the bundle, target of the build, file.
if [ -n "$stand_in" ]; then
  programs=("sluice sluice_on_host bin" "cuda_kernels_gpu_test cuda_kernels_test tests" "cuda_engine_gpu_test cuda_engine_test tests"
    "sluice_cuda_bench sluice_cuda_bench_on_host bin")
  libraries=(libfake_cufile.so libfake_nvml.so)
else
  programs=("sluice sluice_tool bin" "cuda_kernels_gpu_test cuda_kernels_gpu_test tests"
    "cuda_engine_gpu_test cuda_engine_gpu_test tests" "sluice_cuda_bench sluice_cuda_bench bin")
  libraries=()
fi
# Without MPI: its libraries name folders of their own, where theirs are looked for.
cmake --preset release -B "$build" -DSLUICE_CUDA_ARCHS="$archs" -DSLUICE_BENCHMARKS=ON -DSLUICE_MPI=OFF \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags -DCMAKE_BUILD_RPATH='$ORIGIN/lib' >/dev/null
if [ -z "$stand_in" ] && ! grep -q '^CMAKE_CUDA_COMPILER:.*nvcc' "$build/CMakeCache.txt"; then
  echo "gpu_bundle: no CUDA compiler here: install the CUDA toolkit, or pack the stand-in (--stand-in)" >&2
  exit 2
fi
targets=()
for program in "${programs[@]}"; do read -r _ target _ <<<"$program"; targets+=("$target"); done
cmake --build "$build" --target "${targets[@]}" -- -j"${SLUICE_BUILD_JOBS:-$(nproc)}"

mkdir -p "$(dirname "$output")"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/sluice-gpu
mkdir -p "$root/bin/lib/glibc" "$root/scripts" "$root/tests/fixtures"
for program in "${programs[@]}"; do
  read -r name target folder <<<"$program"
  [ "$target" = sluice_tool ] && target=sluice
  strip -o "$root/bin/$name" "$build/$folder/$target"
  readelf -d "$root/bin/$name" | grep 'Library rpath: \[$ORIGIN/lib' >/dev/null ||
    { echo "gpu_bundle: $name does not look for its libraries in \$ORIGIN/lib" >&2; exit 1; }
done
for library in "${libraries[@]}"; do strip -o "$root/bin/$library" "$build/tests/$library"; done
# What they need, of the C library apart: it works only as a whole.
for program in "${programs[@]}"; do read -r name target folder <<<"$program"; ldd "$root/bin/$name"; done |
  awk '$3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }' | sort -u | while read -r library; do
    case $(basename "$library") in
      libcuda.so* | libcublas*) ;;
      libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | ld-linux*) cp -L "$library" "$root/bin/lib/glibc/" ;;
      *) cp -L "$library" "$root/bin/lib/" && strip "$root/bin/lib/$(basename "$library")" ;;
    esac
  done
for library in "$root"/bin/lib/*.so*; do
  # What a library names itself hides the program's folder from it.
  if readelf -d "$library" | grep -E '\((RUNPATH|RPATH)\)' | grep -v '\[\$ORIGIN\]' >&2; then
    echo "gpu_bundle: $(basename "$library") looks for what it needs elsewhere: build without it" >&2
    exit 1
  fi
done
# Programs load these by name: the stubs of old times, which NVIDIA's libraries still ask for.
for library in libpthread.so.0 libdl.so.2 librt.so.1; do
  found=$(ldconfig -p | awk -v name="$library" '$1 == name && !seen++ { print $NF }')
  [ -z "$found" ] || cp -nL "$found" "$root/bin/lib/glibc/"
done
if [ -z "$stand_in" ]; then
  # What the build was told: compilers cut such texts into pieces.
  sed -n 's/.*SLUICE_CUBLASLT_NAME=[^ ]*\(libcublasLt\.so\.[0-9]*\).*/\1/p' "$build/build.ninja" | sort -u >"$root/bin/lib/cublas-name"
  [ -s "$root/bin/lib/cublas-name" ] || { echo "gpu_bundle: the programs name no libcublasLt" >&2; exit 1; }
fi
cp scripts/gpu-check.sh scripts/gpu_{steps,parts,lent_parts}.sh scripts/gpu_{table,shards,same}.py scripts/lanes_svg.py \
  scripts/peer_accelerate.py "$root/scripts/"
# Of the models those that a packed test or script names: a third of them all.
mkdir "$root/tests/fixtures/models"
for model in tests/fixtures/models/*; do
  if grep -qF -e "$(basename "$model")" tests/engine/cuda/*_test.cc tests/kernels/cuda/*_test.cc "$root"/scripts/*; then
    cp -r "$model" "$root/tests/fixtures/models/"
  fi
done
cp -r tests/fixtures/foreign tests/fixtures/gguf "$root/tests/fixtures/"
echo "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)$([ -z "$stand_in" ] || echo ', stand-in'), $(date -u +%Y-%m-%d)" >"$root/VERSION"
# A window of 256 MiB, over all of it: the kernels that all programs have are kept once. Unpacking takes that much memory.
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cf - sluice-gpu |
  xz --format=xz --lzma2=preset=9,dict=256MiB >"$output.new"
mib=$(($(stat -c %s "$output.new") / 1048576 + 1))
if [ "$mib" -gt "$most_mib" ]; then
  echo "gpu_bundle: $mib MiB, more than the $most_mib that fit where it goes: fewer --archs; the largest files:" >&2
  find "$root" -type f -printf '%s %P\n' | sort -rn | head -8 >&2
  rm -f "$output.new"
  exit 1
fi
# Where it goes, the tree goes as well: 64 MiB, less what else has to fit.
scripts/tree_size.sh 60 "$output.new" || { rm -f "$output.new"; exit 1; }
mv "$output.new" "$output"
echo "gpu_bundle: $output, $mib MiB, of $(du -sm "$root" | cut -f 1) unpacked; GLIBC_$(objdump -T "$root"/bin/* 2>/dev/null |
  grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1 | cut -d_ -f2) or its own C library is needed"
