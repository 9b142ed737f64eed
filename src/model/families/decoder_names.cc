#include "src/model/families/decoder_names.h"

namespace sluice {

WeightShape matrix(std::string role, int64_t rows, int64_t cols, std::vector<std::string> names) {
  return {std::move(role), WeightKind::kMatrix, rows, cols, std::move(names)};
}

WeightShape vector(std::string role, int64_t size, std::vector<std::string> names) {
  return {std::move(role), WeightKind::kVector, 1, size, std::move(names)};
}

WeightShape table(std::string role, int64_t rows, int64_t cols, std::vector<std::string> names) {
  return {std::move(role), WeightKind::kTable, rows, cols, std::move(names)};
}

std::vector<std::string> prefixed(const std::vector<std::string>& prefixes,
                                  const std::string& name) {
  std::vector<std::string> names;
  for (const std::string& prefix : prefixes) names.push_back(prefix + name);
  return names;
}

std::vector<WeightShape*> join_rows(SublayerShape& sublayer,
                                    std::initializer_list<std::string_view> roles) {
  std::vector<WeightShape*> matrices, all;
  int64_t rows = 0;
  for (const std::string_view role : roles) {
    const int64_t first = rows;
    for (WeightShape& weight : sublayer.weights) {
      if (weight.role != role && weight.role != std::string(role) + ".bias") continue;
      weight.fused.first_row = first;
      all.push_back(&weight);
      if (weight.role != role) continue;
      rows += weight.rows;
      matrices.push_back(&weight);
    }
  }
  for (WeightShape* part : all) part->fused.tensor_rows = rows;
  return matrices;
}

}  // namespace sluice
