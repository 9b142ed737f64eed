#pragma once
// What an operator costs, counted from what it reads, writes and multiplies: of the rows' values,
// once for each row; of its weights, once for all rows.
#include "src/layer/layer_program.h"
#include "src/shape/model_shape.h"

namespace sluice {

struct OperatorCost {
  double flops = 0;  ///< of products, a row's: 2 a term; of attention, for each visible position
  double row_bytes = 0;  ///< read and written of slots and the residual stream (f32), and a row of
                         ///< a table
  double weight_bytes = 0;  ///< of matrices and vectors as they are stored; of experts' those that
                            ///< one row goes to
};
/// Of one operator of that sublayer.
OperatorCost operator_cost(const Operator& op, const SublayerShape& sublayer,
                           const ModelShape& model);

/// Sums up what is neither product nor attention, which are measured as a whole: what rows pass
/// through between them.
SublayerWork row_work(const LayerProgram& program, const SublayerShape& sublayer,
                      const ModelShape& model);
/// Marks the weights that the program uses only behind its cut.
void mark_weights_after_cut(const LayerProgram& program, SublayerShape& sublayer);

}  // namespace sluice
