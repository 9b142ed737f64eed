#pragma once
// oneDNN's matmul for y = x W^T, x and W bf16, y f32. Primitives are made once per shape and number
// of threads, and kept. The first use lowers oneDNN's own instruction set to active_isa():
// it can't be changed later.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::kernels {

struct MatmulKey {
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
/// The implementation that oneDNN picks, "brg:avx512_core_amx_bf16".
std::string onednn_implementation();

}  // namespace sluice::kernels
