#!/bin/sh
# Makes one self-contained folder that checks and measures Pith on a machine with a GPU and nothing
# else: the release (scripts/release.sh) with kernels for GPUs, test programs, what they read,
# run.sh, which runs all of it, and tables.sh, which makes the papers' tables. Needs nvcc, no GPU.
#   scripts/gpu/check.sh [OUT]        OUT: the folder, default build-gpu/pith-gpu
# BUILD names the build folder (default build-gpu), TARGETS the compute capabilities, separated by
# ";" (default: all), JOBS the compiler's processes. MODELS names a folder whose smollm2 and
# coder-0.5b models come along.
# PIECE=SIZE writes OUT.tar.xz in pieces of that size, too, as split(1) takes it. There:
#   cat pith-gpu.tar.xz.* | tar -xJ && pith-gpu/run.sh RESULTS
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build-gpu}
out=${1:-$build/pith-gpu}
jobs=${JOBS:-$(nproc)}
benches="bench_gpu bench_tokens bench_share"
tests="test_gpu test_gpu_attend test_gpu_wgmma test_gpu_record test_gpu_keep test_gpu_note
    test_gpu_read test_gpu_choices test_gpu_recall test_gpu_policies test_gpu_sample test_gpu_step test_gpu_swap test_gpu_victim
    test_device test_logits
    test_snapshot test_recurrent test_latent test_draft test_keep_policies test_store_policies
    test_read_model test_recall_model test_prefix_windows test_longflow test_share test_read_quoka
    test_prefix_model test_combinations test_real test_families"

BUILD=$build JOBS=$jobs scripts/release.sh "$build/out" -DPITH_CUDA=ON -DPITH_TESTS=ON -DPITH_BENCH=ON \
    -DPITH_TEST_ROOT=. '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib/pith' ${TARGETS:+"-DPITH_CUDA_TARGETS=$TARGETS"}
# shellcheck disable=SC2086
cmake --build "$build" -j "$jobs" --target $tests $benches make_model >"$build.log" 2>&1 ||
    { tail -n 5 "$build.log" >&2; exit 1; }
rm -rf "$build.log" "$out"
mkdir -p "$out/test" "$out/tests" "$out/models" "$out/docs"
cp -r "$build"/stage/pith-*/. "$out"
for program in $tests make_model; do
    cp "$build/tests/$program" "$out/test/"
done
for program in $benches; do
    cp "$build/bench/$program" "$out/test/"
done
strip "$out"/test/*
# Programs in test/ find libraries where the command's are.
ldd "$out"/test/* | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' | sort -u | while read -r library; do
    case $(basename "$library") in
    ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so*) ;;
    *) cp -Ln "$library" "$out/lib/pith/" ;;
    esac
done
cp -r tests/golden tests/vectors "$out/tests/"
cp docs/combinations.md "$out/docs/" # which a test reads
cp -r models/*.gguf models/demo "$out/models/"
if [ -n "${MODELS:-}" ]; then
    for model in "$MODELS"/smollm2-*.gguf "$MODELS"/*coder-0.5b*.gguf; do
        [ ! -e "$model" ] || cp "$model" "$out/models/"
    done
fi
cp scripts/gpu/run.sh scripts/gpu/tables.sh scripts/gpu/peer_torch.py "$out/"
git describe --always --dirty >"$out/COMMIT"
if [ -n "${PIECE:-}" ]; then
    # Test programs have much in common, which xz finds.
    tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz -T "$jobs" | split -b "$PIECE" - "$out.tar.xz."
fi
du -sh "$out"
