#pragma once
// Softmax of score rows, log-softmax of one row of logits, and greedy choice. f32 rows; one call at
// a time.
#include <cstdint>

namespace sluice::kernels {

/// x [rows, cols] in place, each row e^(x - max) / sum. A row of -inf alone becomes NaN, as does a
/// row with a NaN.
void softmax(float* x, int64_t rows, int64_t cols) noexcept;
/// y = x - log(sum of e^x), n elements, the sum in f64; y equal to x or disjoint from it. Returns
/// the log of the sum.
double log_softmax(const float* x, int64_t n, float* y) noexcept;
/// Index of the largest of n > 0 elements, the lowest on ties. NaN loses against every number; NaN
/// alone gives 0.
int64_t argmax(const float* x, int64_t n) noexcept;

namespace reference {
void softmax(float* x, int64_t rows, int64_t cols);
double log_softmax(const float* x, int64_t n, float* y);
int64_t argmax(const float* x, int64_t n);
}  // namespace reference

}  // namespace sluice::kernels
