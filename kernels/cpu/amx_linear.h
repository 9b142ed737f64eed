#pragma once
// y = x W^T in bf16 on AMX tiles, for batches of a few dozen rows: W goes into the tiles as a
// checkpoint stores it, so that streamed and resident weights run alike and each byte of W is read
// once. Only x is rearranged, into the scratch.
#include <cstddef>
#include <cstdint>

namespace sluice::kernels {

constexpr int64_t kAmxTileBytes = 1024;
/// Bytes of scratch for m rows of k: x in the order of the tiles.
int64_t amx_scratch_bytes(int64_t m, int64_t k) noexcept;
/// Makes tiles [begin, end) of x [m, k] (row stride ld); there are amx_scratch_bytes /
/// kAmxTileBytes.
void amx_arrange(const uint16_t* x, int64_t m, int64_t k, int64_t ld, int64_t begin, int64_t end,
                 std::byte* scratch) noexcept;
/// y[i, row] for rows [row_begin, row_end) of w [n, k], all i < m.
void amx_linear_rows(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                     const std::byte* arranged, int64_t m, const float* bias, float* y,
                     int64_t ldy) noexcept;

/// Rows of W that amx_linear_rows takes at a time: the best size of a thread's share is a multiple.
constexpr int64_t kAmxRowBlock = 64;

}  // namespace sluice::kernels
