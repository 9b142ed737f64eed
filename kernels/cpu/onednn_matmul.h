#pragma once
// oneDNN's matmul for y = x W^T on plain or blocked weights. Primitives are made once per shape and
// number of threads, and kept. The first use lowers oneDNN's own instruction set to active_isa():
// it can't be changed later.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "src/base/dtype.h"

namespace sluice::kernels {

enum class WeightLayout : uint8_t { kPlain, kBlocked };

struct MatmulKey {
  DType dtype;  ///< of x and w: bf16 or f32
  WeightLayout layout;
  int64_t m, n, k, ldx, ldy;
  bool has_bias;
  bool operator==(const MatmulKey&) const = default;
};

/// Runs it; x and y have key.m rows. `scratch`: at least onednn_scratch_bytes. Errors: kDevice from
/// oneDNN.
void onednn_matmul(const MatmulKey& key, const void* x, const void* w, const float* bias, float* y,
                   std::span<std::byte> scratch);
/// Scratch that a shape asks for on as many threads as OpenMP has now (strides change nothing).
/// Makes no primitive.
int64_t onednn_scratch_bytes(const MatmulKey& key);
/// Bytes of [n, k] weights in the blocked layout.
int64_t onednn_blocked_bytes(DType dtype, int64_t n, int64_t k);
/// Packs rows [begin, begin + count) of n.
void onednn_pack_rows(DType dtype, const void* rows, int64_t begin, int64_t count, int64_t n,
                      int64_t k, std::byte* packed);
/// The implementation that oneDNN picks for bf16, "brg:avx512_core_amx_bf16".
std::string onednn_implementation(WeightLayout layout);

}  // namespace sluice::kernels
