#include "kernels/cuda/k_linear_block.h"

namespace sluice::cuda {

template void run_k_linear<Encoding::kQ2K>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ2K>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kQ3K>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ3K>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kQ6K>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kQ6K>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kIq1>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kIq1>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

template void run_k_linear<Encoding::kIq2>(const LinearArguments&, Grid, Stream);
template void run_k_dequantise<Encoding::kIq2>(const std::byte*, const PanelShape&, int64_t,
                                               int64_t, DType, uint16_t*, int64_t, Stream);

}  // namespace sluice::cuda
