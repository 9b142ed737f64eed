#pragma once
// cuBLASLt for tests without a GPU: products by plain loops in the stream's order, and what a
// version may have no algorithm for.
#include <cstdint>

namespace sluice::cuda::host {

/// Products that no algorithm is found for.
struct MissingProducts {
  bool with_bias = false;  ///< added at their end
  bool all = false;
  bool says_so = false;  ///< by a status, instead of by finding none
  int refused = 0;  ///< of the three algorithms that are found, so many are refused when called
};
void set_missing_products(const MissingProducts& missing);
/// Multiplied so far.
int64_t cublas_products();
/// Algorithms asked for with a bias that is not there, since the process began.
int64_t cublas_wrong_questions();

}  // namespace sluice::cuda::host
