#include "kernels/cuda/shim/host_matrix.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

namespace sluice::cuda::host {

namespace {
float element(uint32_t pair, int index, DType type) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * index));
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Of its group (lane / 4) and its place in it (lane % 4), each register of a lane holds `depth / 8`
// neighbouring elements (mma.m16n8k16 and m16n8k32).
template <DType kType>
void multiply_16_bit(Operands& operands) {
  using Part = Fragments<float>;
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& part = *static_cast<const Part*>(operands[static_cast<size_t>(lane)].in);
    const int group = lane / 4;
    const int place = lane % 4;
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 2; ++i)
        a[group + r % 2 * 8][place * 2 + i + r / 2 * 8] = element(part.a[r], i, kType);
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < 2; ++i) b[place * 2 + i + r * 8][group] = element(part.b[r], i, kType);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& part = *static_cast<const Part*>(operands[static_cast<size_t>(lane)].in);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r / 2 * 8;
      const int col = lane % 4 * 2 + r % 2;
      float sum = part.d[r];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][col];
      part.d[r] = sum;
    }
  }
}

void load_four(Operands& operands, bool is_transposed) {
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* out = static_cast<uint32_t*>(operands[static_cast<size_t>(lane)].out);
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = is_transposed ? lane % 4 * 2 + i : lane / 4;
        const int col = is_transposed ? lane / 4 : lane % 4 * 2 + i;
        const void* from = operands[static_cast<size_t>(matrix * 8 + row)].in;
        std::memcpy(&pair[i], static_cast<const std::byte*>(from) + col * 2, 2);
      }
      out[matrix] = pair[0] | (uint32_t{pair[1]} << 16);
    }
  }
}
}  // namespace

void multiply_f16(Operands& operands) { multiply_16_bit<DType::kF16>(operands); }
void multiply_bf16(Operands& operands) { multiply_16_bit<DType::kBF16>(operands); }

void multiply_s8(Operands& operands) {
  using Part = Fragments<int>;
  int a[16][32], b[32][8];
  const auto byte = [](uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); };
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& part = *static_cast<const Part*>(operands[static_cast<size_t>(lane)].in);
    const int group = lane / 4;
    const int place = lane % 4;
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 4; ++i)
        a[group + r % 2 * 8][place * 4 + i + r / 2 * 16] = byte(part.a[r], i);
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < 4; ++i) b[place * 4 + i + r * 16][group] = byte(part.b[r], i);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& part = *static_cast<const Part*>(operands[static_cast<size_t>(lane)].in);
    for (int r = 0; r < 4; ++r)
      for (int k = 0; k < 32; ++k)
        part.d[r] += a[lane / 4 + r / 2 * 8][k] * b[k][lane % 4 * 2 + r % 2];
  }
}

void load_matrices(Operands& operands) { load_four(operands, false); }
void load_transposed_matrices(Operands& operands) { load_four(operands, true); }

// A double holds the product of two 16-bit floats exactly, and their sum with a third to within
// what matters for one rounding to 16 bits.
uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c, DType type) {
  uint32_t out = 0;
  for (int i = 0; i < 2; ++i) {
    const double sum =
        double{element(a, i, type)} * double{element(b, i, type)} + double{element(c, i, type)};
    // To f32 rounding to odd: then the second rounding is the only one that counts.
    auto narrow = static_cast<float>(sum);
    if (std::isfinite(narrow) && static_cast<double>(narrow) != sum) {
      auto bits = std::bit_cast<uint32_t>(narrow);
      const bool is_above = std::fabs(static_cast<double>(narrow)) > std::fabs(sum);
      if (is_above) --bits;
      narrow = std::bit_cast<float>(bits | 1u);
    }
    const uint16_t bits = type == DType::kF16 ? f32_to_f16(narrow) : f32_to_bf16(narrow);
    out |= uint32_t{bits} << (16 * i);
  }
  return out;
}

}  // namespace sluice::cuda::host
