#pragma once
// What the matrix instructions and packed halves compute, for host_grid.cc: registers of all lanes
// of a warp in, as the PTX manual says that they hold a product's fragments, registers out.
#include <array>
#include <cstdint>

#include "kernels/cuda/types.h"
#include "src/base/dtype.h"

namespace sluice::cuda::host {

/// What a lane brings to a warp operation, and what it takes away.
struct Operand {
  const void* in = nullptr;
  void* out = nullptr;
};
using Operands = std::array<Operand, kWarp>;

/// Registers of a product d += a b: `a` four, `b` two, `d` four elements.
template <class Element>
struct Fragments {
  const uint32_t* a;
  const uint32_t* b;
  Element* d;
};
/// `in` of the operands: Fragments<float>.
void multiply_f16(Operands& operands);
void multiply_bf16(Operands& operands);
/// Fragments<int>.
void multiply_s8(Operands& operands);

/// Four matrices of 8 rows of 8 elements of 16 bits, a row's address a lane.
void load_matrices(Operands& operands);
void load_transposed_matrices(Operands& operands);

/// a * b + c of pairs, each rounded once.
uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c, DType type);

}  // namespace sluice::cuda::host
