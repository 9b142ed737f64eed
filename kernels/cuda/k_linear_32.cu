#include "kernels/cuda/k_linear_block.h"

namespace sluice::cuda {

template void run_k_linear<Encoding::kQ4K>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ4K>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kQ5K>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ5K>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kQ4_1>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ4_1>(const std::byte*, const PanelShape&, int64_t,
                                                int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kQ5_1>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ5_1>(const std::byte*, const PanelShape&, int64_t,
                                                int64_t, DType, uint16_t*, int64_t, Stream);

}  // namespace sluice::cuda
