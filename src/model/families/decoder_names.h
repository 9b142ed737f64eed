#pragma once
// Small builders for the weight lists of decoder-only families.
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "src/shape/model_shape.h"

namespace sluice {

/// Weights by role, sizes and names in checkpoints.
WeightShape matrix(std::string role, int64_t rows, int64_t cols, std::vector<std::string> names);
WeightShape vector(std::string role, int64_t size, std::vector<std::string> names);
WeightShape table(std::string role, int64_t rows, int64_t cols, std::vector<std::string> names);

/// "<prefix><name>" for each prefix.
std::vector<std::string> prefixed(const std::vector<std::string>& prefixes,
                                  const std::string& name);

/// Says of a sublayer's matrices of these roles, and of their biases, how they lie one below the
/// other where a file has them in one tensor (WeightShape::fused, which names none). The matrices.
std::vector<WeightShape*> join_rows(SublayerShape& sublayer,
                                    std::initializer_list<std::string_view> roles);

}  // namespace sluice
