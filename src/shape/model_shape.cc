#include "src/shape/model_shape.h"

namespace sluice {

const WeightShape* SublayerShape::find(std::string_view role) const noexcept {
  for (const WeightShape& weight : weights)
    if (weight.role == role) return &weight;
  return nullptr;
}

int64_t ModelShape::num_parameters() const noexcept {
  int64_t count = 0;
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (!weight.shares_table) count += weight.rows * weight.cols;
  return count;
}

int64_t ModelShape::weight_bytes() const noexcept {
  return num_parameters() * dtype_bytes(weight_dtype);
}

double ModelShape::matmul_flops_per_token() const noexcept {
  double flops = 0;
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix) {
        const double active = weight.is_routed_expert ? static_cast<double>(experts_per_token) /
                                                            static_cast<double>(num_experts)
                                                      : 1;
        flops += 2.0 * active * static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
      }
  return flops;
}

}  // namespace sluice
