#pragma once
// A family of models: from config.json or a GGUF file's keys to shapes and weight names, the
// programs of its layers, and the models that are known by name. One small file each in families/
// and one line in families/list.inc; nothing else knows any family.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/layer/layer_builder.h"
#include "src/model/config.h"
#include "src/shape/model_shape.h"

namespace sluice {

class GgufKeys;

/// One model of a family: immutable, thread safe.
class FamilyModel {
 public:
  virtual ~FamilyModel() = default;
  const ModelShape& shape() const noexcept { return shape_; }
  /// What sublayer `index` computes.
  const LayerProgram& program(size_t index) const { return programs_[program_of_[index]]; }
  /// Has the family write every sublayer's program, once; the widest says how many columns of work
  /// space a row takes, and each what its rows cost. make_family_model() calls it.
  void write_programs();

 protected:
  /// Each writes what a sublayer of its kind computes.
  virtual void embed(LayerBuilder& layer) const = 0;
  virtual void attention(LayerBuilder& layer) const = 0;
  virtual void mlp(LayerBuilder& layer) const = 0;
  virtual void head(LayerBuilder& layer) const = 0;

  ModelShape shape_;

 private:
  void write(SublayerKind kind, LayerBuilder& layer) const;

  std::vector<LayerProgram> programs_;  // those that differ
  std::vector<size_t> program_of_;      // [sublayer]
};

/// A model that people ask for by name: "opt-30b".
struct KnownModel {
  std::string name;
  std::string config;  ///< config.json's text
};

/// How GGUF files have a family; tensors are named by WeightShape::gguf.
struct GgufForm {
  std::string_view architecture;  ///< "general.architecture"; empty: no such files are read
  /// The config.json that Hugging Face would have. Errors: kFile for what is not read.
  std::string (*config)(const GgufKeys& keys) = nullptr;
  std::vector<std::string_view> also = {};  ///< architectures that are read likewise
};

struct Family {
  std::string_view model_type;  ///< config.json's "model_type"
  std::unique_ptr<FamilyModel> (*make)(const ModelConfig& config);
  std::vector<KnownModel> (*presets)();  ///< smallest first; null: none are known by name
  GgufForm gguf;
  /// Other model types that are computed alike: text parts of models that see, and copies.
  std::vector<std::string_view> also;
};

/// Every family there is.
const std::vector<Family>& families();

/// The model that config.json describes, of one that sees its text part. Errors: kFile for an
/// unknown model_type (names those known) or bad fields.
std::unique_ptr<FamilyModel> make_family_model(const ModelConfig& config);

/// Reads "torch_dtype" or "dtype"; bf16 when neither is there.
DType config_dtype(const ModelConfig& config);

}  // namespace sluice
