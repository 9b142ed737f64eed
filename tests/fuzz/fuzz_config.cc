// config.json: arbitrary bytes as a model's config. Refused as a file error, or a shape whose
// numbers make sense and whose sizes do not overflow.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/base/error.h"
#include "src/model/family.h"
#include "tests/fuzz/fuzzing.h"

namespace {

using sluice::fuzz::accepted;
using sluice::fuzz::require;

void check(const sluice::ModelShape& shape) {
  require(shape.num_layers > 0 && shape.hidden_size > 0 && shape.head_dim > 0 &&
          shape.vocab_size > 0);
  require(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0);
  // Attention and MLP of a layer, or both in one where they read the same norm; embed and head.
  const auto layers = static_cast<int64_t>(shape.sublayers.size()) - 2;
  require(layers == 2 * shape.num_layers || layers == shape.num_layers);
  require(shape.num_parameters() > 0 && shape.weight_bytes() > 0 && shape.workspace_columns > 0);
  require(std::isfinite(shape.matmul_flops_per_token()));
  for (const sluice::SublayerShape& sublayer : shape.sublayers)
    for (const sluice::WeightShape& weight : sublayer.weights)
      require(weight.rows > 0 && weight.cols > 0 && !weight.names.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 1 << 16) return 0;
  try {
    const sluice::ModelConfig config(std::string_view(reinterpret_cast<const char*>(data), size),
                                     "fuzz");
    check(sluice::make_family_model(config)->shape());
    accepted();
  } catch (const sluice::Error& error) {
    require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
