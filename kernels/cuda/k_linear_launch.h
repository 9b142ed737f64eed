#pragma once
// Products with panels of GGUF's K types and their like, and making them plain: what the sources of
// some types each (k_linear_16.cu, k_linear_32.cu, by the columns of a part) offer to
// quantised_linear.cu.
#include "kernels/cuda/quantised_linear_launch.h"

namespace sluice::cuda {

/// Starts the product; splits are whole groups.
template <Encoding kEncoding>
void run_k_linear(const LinearArguments& arguments, Grid grid, Stream stream);
/// Rows [0, n) of panels to `type`, row stride ld elements.
template <Encoding kEncoding>
void run_k_dequantise(const std::byte* w, const PanelShape& shape, int64_t n, int64_t k, DType type,
                      uint16_t* out, int64_t ld, Stream stream);

}  // namespace sluice::cuda
