// Experts that lie whole in host memory below a device. What a layer's micro-batch wants of them
// crosses the link once each way, however many experts it goes to: the input comes down while the
// device computes its own experts, all answers go up when the last expert is done. An expert that
// exchanged its rows by itself, matrix by matrix, would wait for the link three times.
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/runners/host_compute.h"
#include "src/layer/work_space.h"

namespace sluice {

namespace {
int64_t place_of(int64_t cols) { return round_up(cols, kSlotColumns); }
}  // namespace

// The area holds a program's slots, and so the input, the work space and the output of the layer's
// operator, which live together (LayerBuilder::experts).
float* HostCompute::column(int64_t begin) const noexcept {
  return reinterpret_cast<float*>(areas_.rows.data()) +
         kernels::padded_rows(std::max<int64_t>(parts_.micro_batch_tokens, 1)) * begin;
}

// Behind everything else: the input of a matrix whose other rows the device multiplies may pass
// through the beginning while this one comes down.
float* HostCompute::expert_input(const ExpertLayer& layer) const noexcept {
  return column(parts_.model->shape().workspace_columns - place_of(layer.cols));
}

Rows HostCompute::answers(const ExpertLayer& layer, int64_t rows, bool is_apart) const noexcept {
  const int64_t outer = std::max(place_of(layer.cols), place_of(layer.out_cols));
  const int64_t begin = is_apart ? outer + 2 * place_of(layer.width) : 0;
  return {column(begin), rows, layer.out_cols, layer.out_cols};
}

Rows HostCompute::expert_sum(const ExpertLayer& layer) const noexcept {
  return answers(layer, layer.rows, true);
}

void HostCompute::multiply_expert(const MatrixView& view, const Rows& x, const float* bias,
                                  const Rows& y, bool is_prepared) {
  kernels::Activations rows{x.data, nullptr, x.rows, x.cols, x.stride};
  if (parts_.compute.compute == kernels::Compute::kBF16 && !parts_.takes_f32(view.format)) {
    if (!is_prepared)
      kernels::convert(DType::kF32, x.data, DType::kBF16, areas_.bf16.data(), x.rows * x.cols);
    rows.bf16 = reinterpret_cast<const uint16_t*>(areas_.bf16.data());
  }
  watch_.product(view.format, x.rows, view.inplace_rows, x.cols, [&] {
    multiply_rows(rows, view.inplace, view.format, view.inplace_rows, bias, y.data, y.stride,
                  parts_.compute, areas_.linear, is_prepared);
  });
}

Rows HostCompute::expert(const Operator& op, const ExpertLayer& layer, const Expert& expert,
                         const AnswerPlace& at) {
  const auto rows = static_cast<int64_t>(expert.rows.size());
  const int64_t outer = std::max(place_of(layer.cols), place_of(layer.out_cols));
  SLUICE_ASSERT(
      layer.rows <= parts_.micro_batch_tokens && !areas_.rows.empty() &&
          outer + 2 * place_of(layer.width) + place_of(layer.out_cols) + place_of(layer.cols) <=
              parts_.model->shape().workspace_columns,
      "the plan sizes the host's workspace");
  const auto area = [&](int64_t begin, int64_t cols) {
    return Rows{column(begin), rows, cols, cols};
  };
  const Rows x = area(0, layer.cols), y = answers(layer, rows, at.is_apart);
  const Rows gate = area(outer, layer.width);
  const Rows up = area(outer + place_of(layer.width), layer.width);
  kernels::gather_rows(expert_input(layer), DType::kF32, layer.cols, expert.rows.data(), rows,
                       x.data);
  if (expert.input_weights)
    for (int64_t i = 0; i < rows; ++i)
      kernels::scale_inplace(x.data + i * x.stride, expert.input_weights[i], x.cols);
  multiply_expert(expert.gate, x, nullptr, gate, false);
  // Both take what the first product has made of their input.
  multiply_expert(expert.up, x, nullptr, up, expert.up.format == expert.gate.format);
  if (op.clamp.limit > 0)
    kernels::clamped_gate({op.clamp.limit, op.clamp.alpha, expert.gate_biases}, gate.data,
                          gate.stride, up.data, up.stride, gate.data, gate.stride, rows,
                          layer.width);
  else
    kernels::gated(op.activation, gate.data, gate.stride, up.data, up.stride, gate.data,
                   gate.stride, rows, layer.width);
  at.before_write();
  multiply_expert(expert.down, gate, expert.down_bias, y, false);
  return y;
}

}  // namespace sluice
