#pragma once
// A checkpoint and the family model that its config.json names, with every weight found, its shape
// checked. Reads no tensor data. Immutable; thread safe; owns the checkpoint.
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "src/base/synthetic_routing.h"
#include "src/model/family.h"
#include "src/model/foreign/foreign.h"
#include "src/model/positions.h"

namespace sluice {

class BoundModel {
 public:
  /// Opens `path` and binds. Errors: kFile naming what is missing or has the wrong shape or element
  /// type; kUser for positions that the model can't have.
  static BoundModel open(const std::filesystem::path& path, KTypes k_types = KTypes::kKept,
                         const PositionWishes& positions = {});
  /// The same of a checkpoint that is open already; `name` stands in errors.
  static BoundModel bind(io::Checkpoint checkpoint, const std::string& name,
                         KTypes k_types = KTypes::kKept, const PositionWishes& positions = {});

  const FamilyModel& family() const noexcept { return *family_; }
  /// The family's shape with the element types that the checkpoint's matrices really have.
  const ModelShape& shape() const noexcept { return shape_; }
  const io::Checkpoint& checkpoint() const noexcept { return checkpoint_; }
  /// Tensor of sublayers[sublayer].weights[weight], of experts' one expert's; valid as long as this
  /// object.
  const io::TensorEntry& tensor(size_t sublayer, size_t weight, size_t expert = 0) const {
    return *tensors_[sublayer][weight][expert];
  }
  /// How the weight lies in a checkpoint that other tools have quantised or packed, or null: then
  /// tensor() only says what it becomes, and convert makes that.
  const ForeignMatrix* foreign(size_t sublayer, size_t weight, size_t expert = 0) const;
  /// What was opened.
  const std::filesystem::path& path() const noexcept { return path_; }
  /// "GPTQ", "GGUF", ..., or empty: whether any weight is foreign.
  const std::string& foreign_method() const noexcept { return foreign_method_; }
  /// What was wanted of its positions.
  const PositionWishes& positions() const noexcept { return positions_; }
  /// config.json's text; of a GGUF file what it would be.
  const std::string& config_text() const noexcept { return config_text_; }
  /// Errors: kUser when the experts of a layer have several element types: convert mends that.
  void require_one_type() const;
  /// Errors: kUser saying how to convert what does not run as it is.
  void require_runnable() const;
  /// Token ids that end a sequence, from generation_config.json or config.json; may be empty.
  const std::vector<int32_t>& eos_token_ids() const noexcept { return eos_token_ids_; }
  /// What a user should be told of this checkpoint (tensors that are not used, say); may be empty.
  const std::vector<std::string>& notes() const noexcept { return notes_; }
  /// How tokens are routed where weights are made up (config.json's "sluice_router"); else nothing:
  /// its own routers choose.
  const std::optional<SyntheticRouting>& synthetic_routing() const noexcept {
    return synthetic_routing_;
  }

 private:
  explicit BoundModel(io::Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void read_synthetic_routing();
  io::Checkpoint checkpoint_;
  std::filesystem::path path_;
  PositionWishes positions_;
  std::unique_ptr<FamilyModel> family_;
  ModelShape shape_;
  std::vector<std::vector<std::vector<const io::TensorEntry*>>> tensors_;  // [..][..][expert]
  std::map<const io::TensorEntry*, ForeignMatrix> foreign_;                // by what tensor() gives
  std::deque<io::TensorEntry> made_;  // tensors that convert would make
  std::map<const io::TensorEntry*, const io::TensorEntry*> made_by_source_;
  std::string foreign_method_;
  std::string config_text_;
  std::string mixed_types_;
  std::vector<int32_t> eos_token_ids_;
  std::vector<std::string> notes_;
  std::optional<SyntheticRouting> synthetic_routing_;
};

/// The tensor of a store for a weight that is made from others.
io::TensorEntry made_tensor(const std::string& name, const WeightShape& weight,
                            const WeightFormat& format);

}  // namespace sluice
