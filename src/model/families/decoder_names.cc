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

}  // namespace sluice
