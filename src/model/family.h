#pragma once
// A family of models: from config.json to shapes and weight names, and the order of a layer's
// operators. One small file each in families/ and one line in family.cc's list; nothing else knows
// any family.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/config.h"
#include "src/model/layer_ops.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// Where the inputs of linear layers can be scaled, column by column, without changing what the
/// model computes: the producer's outputs (with its bias, "ROLE.bias") are divided by the factors,
/// the consumers' columns multiplied by them.
struct ScalingPlace {
  std::string producer;                ///< role of a norm's gain or of a linear layer
  std::vector<std::string> consumers;  ///< roles of linear layers
};

/// One model of a family: immutable, thread safe.
class FamilyModel {
 public:
  virtual ~FamilyModel() = default;
  const ModelShape& shape() const noexcept { return shape_; }
  /// Computes ops.sublayer().
  virtual void run(LayerOps& ops) const = 0;
  /// In the order of the pass; none by default.
  virtual std::vector<ScalingPlace> scaling_places(const SublayerShape& sublayer) const;

 protected:
  ModelShape shape_;
};

struct Family {
  std::string_view model_type;  ///< config.json's "model_type"
  std::unique_ptr<FamilyModel> (*make)(const ModelConfig& config);
};

/// Every family there is.
const std::vector<Family>& families();

/// The model that config.json describes. Errors: kFile for an unknown model_type (names those
/// known) or bad fields.
std::unique_ptr<FamilyModel> make_family_model(const ModelConfig& config);

/// Reads "torch_dtype" or "dtype"; bf16 when neither is there.
DType config_dtype(const ModelConfig& config);

}  // namespace sluice
