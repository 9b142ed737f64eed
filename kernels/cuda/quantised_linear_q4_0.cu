#include "kernels/cuda/quantised_linear_block.h"

namespace sluice::cuda {

template int64_t linear_shared_bytes<Encoding::kQ4_0>(const PanelShape&, int64_t);
template void run_linear<Encoding::kQ4_0>(const LinearArguments&, Grid, Stream);
template void run_dequantise<Encoding::kQ4_0>(const std::byte*, const PanelShape&, int64_t, int64_t,
                                              DType, uint16_t*, int64_t, Stream);

}  // namespace sluice::cuda
