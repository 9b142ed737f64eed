#pragma once
// Passes over a program that join operators where a runner has one for both, and say ahead which
// copies of rows are made by whom: so that a runner executes a list and remembers nothing. Families
// know none of this.
#include <functional>
#include <vector>

#include "src/layer/layer_program.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// What a product makes of its input rows before it multiplies, beside the f32 rows themselves:
/// each kind in a place of its own that holds one copy at a time.
struct ProductInput {
  enum class Narrow : uint8_t { kNone, kF16, kBF16, kFp8 };
  Narrow narrow = Narrow::kNone;  ///< kFp8: of values rounded as its format says
  bool codes = false;             ///< as its format takes them
};

/// What a runner can do, of one sublayer.
struct Fusing {
  bool has_rotating_attention = false;
  /// What the product with a matrix (an index) makes.
  std::function<ProductInput(int32_t weight)> input_of;
  /// Whether an operator of that kind, while it writes the rows that this product takes, makes
  /// their copies too; narrow ones are of kF16 or kBF16.
  std::function<bool(Operator::Kind writer, int32_t weight)> writes_narrow;
  std::function<bool(Operator::Kind writer, int32_t weight)> writes_codes;
};

/// Rotations of q and k that only attention reads become its own (Operator::frequencies), copies
/// are made by who writes the rows (narrow_for, codes_for) or once for neighbours (narrow, codes).
/// Computes what `program` does.
LayerProgram fused(LayerProgram program, const SublayerShape& sublayer, const Fusing& fusing);

/// The programs of a pass in its order, with the last addition of one left to the first norm of the
/// next: for passes of one micro-batch, whose rows of work space nothing writes in between.
std::vector<LayerProgram> with_additions_put_off(std::vector<LayerProgram> programs,
                                                 int64_t hidden_size);

}  // namespace sluice
