// The operators of CudaRunner.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/head_products.h"
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/quantised_linear.h"
#include "kernels/elementwise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/cuda_runner.h"

namespace sluice {

namespace {
cuda::RowsShape shape_of(const Rows& rows) { return {rows.rows, rows.cols, rows.stride}; }

}  // namespace

cuda::Rows16 CudaRunner::narrow_area(int64_t cols, DType type) const noexcept {
  return {reinterpret_cast<uint16_t*>(areas_.narrow.data()), narrow_stride(cols), type};
}

DType CudaRunner::narrow_type(const WeightFormat& format) const noexcept {
  return narrow_type_of(format, parts_.model->shape().weight_dtype, device_.properties().has_bf16);
}

CudaRunner::Made CudaRunner::made_of(const Operator& op) const noexcept {
  const bool is_by_norm = op.narrow == InputCopy::kByWriter;
  Made made{op.narrow != InputCopy::kMake, op.codes != InputCopy::kMake, is_by_norm};
  if (is_by_norm && *scales_norms_) made.narrow = made.is_unscaled = false;
  return made;
}

bool CudaRunner::has_large_norms() {
  constexpr float kMostF16 = 65504;
  const auto& sublayers = parts_.model->shape().sublayers;
  const auto takes_f16 = [&](const WeightShape& weight) {
    const WeightFormat format = parts_.model->shape().format_of(weight);
    const bool is_narrow = format.is_quantised() || format.dtype != DType::kF32;
    return weight.kind == WeightKind::kMatrix && is_narrow && narrow_type(format) == DType::kF16;
  };
  const auto has_f16 = [&](const SublayerShape& sublayer) {
    return std::any_of(sublayer.weights.begin(), sublayer.weights.end(), takes_f16);
  };
  for (size_t i = 0; i < sublayers.size(); ++i) {
    if (!has_f16(sublayers[i])) continue;
    for (const Operator& op : parts_.model->family().program(i).operators) {
      if (op.kind != Operator::Kind::kNormHidden && op.kind != Operator::Kind::kNorm) continue;
      const auto largest = [&](int32_t weight) {
        if (weight < 0) return 0.0f;
        std::vector<float> values;
        const auto index = static_cast<size_t>(weight);
        on_host(parts_.weights->vector(i, index), sublayers[i].weights[index].cols, values);
        float most = 0;
        for (const float value : values) most = std::max(most, std::abs(value));
        return most;
      };
      const auto root = std::sqrt(static_cast<float>(op.out.cols));
      const float gain = op.weight < 0 ? 1.0f : largest(op.weight);
      if (!(gain * root + largest(op.bias) < kMostF16)) return true;
    }
  }
  return false;
}

cuda::RowCopies CudaRunner::copies_of(const Operator& op, const Rows& rows) const {
  cuda::RowCopies copies;
  if (op.narrow_for >= 0) {
    const auto weight = static_cast<size_t>(op.narrow_for);
    const ModelShape& model = parts_.model->shape();
    copies.narrow =
        narrow_area(rows.cols, narrow_type(model.format_of(sublayer_->weights[weight])));
  }
  if (op.codes_for >= 0)
    copies.int8 = cuda::int8_rows(sublayer_->weights[static_cast<size_t>(op.codes_for)].quantised,
                                  rows.rows, rows.cols, areas_.codes.data());
  return copies;
}

CudaRunner::Narrowed CudaRunner::narrowed(Rows in, const WeightFormat& format, Made& made,
                                          bool as_fp8) {
  Narrowed copy{narrow_area(in.cols, narrow_type(format))};
  // bf16 holds what was rounded to fp8 exactly, whatever its magnitude.
  if (as_fp8 && device_.properties().has_bf16) copy.rows.type = DType::kBF16;
  // f16 takes rows of any magnitude by a scale each, and so what was rounded to fp8 exactly.
  auto* const scales =
      reinterpret_cast<float*>(areas_.narrow.last(static_cast<size_t>(need_.tokens) * 4).data());
  const bool is_scaled = copy.rows.type == DType::kF16 && !made.is_unscaled;
  if (is_scaled) copy.scales = scales;
  if (std::exchange(made.narrow, true)) return copy;
  if (as_fp8)
    cuda::round_rows_to_fp8(in.data, shape_of(in), {}, copy.rows, is_scaled ? scales : nullptr,
                            stream());
  else if (is_scaled)
    cuda::copy_scaled_rows(in.data, shape_of(in), copy.rows, scales, stream());
  else
    cuda::copy_rows_for_products(in.data, shape_of(in), {copy.rows, {}}, stream());
  return copy;
}

cuda::Fp8Rows CudaRunner::fp8_codes(Rows in, const WeightFormat& format, Made& made) {
  const cuda::Fp8Rows copy = cuda::fp8_rows(format, in.rows, in.cols, areas_.codes.data());
  if (std::exchange(made.codes, true)) return copy;
  cuda::round_rows_to_fp8(in.data, shape_of(in), copy, {}, nullptr, stream());
  return copy;
}

cuda::Int8Rows CudaRunner::quantised(Rows in, const WeightFormat& format, Made& made) {
  const cuda::Int8Rows copy = cuda::int8_rows(format, in.rows, in.cols, areas_.codes.data());
  if (std::exchange(made.codes, true)) return copy;
  cuda::copy_rows_for_products(in.data, shape_of(in), {{}, copy}, stream());
  return copy;
}

void CudaRunner::gather(size_t weight, std::span<const int32_t> ids, const int32_t* on_device,
                        int32_t offset, Rows out) {
  const WeightStore::ResidentTable table =
      parts_.weights->resident_table(static_cast<size_t>(task_.sublayer), weight);
  if (table.rows < sublayer_->weights[weight].rows) return gather_below(weight, ids, offset, out);
  cuda::gather_rows(table.data, table.dtype, out.cols, on_device, offset, out.rows, out.data,
                    stream());
}

// Rows that the device has are gathered there; the others come from the host, one by one where they
// lie between.
void CudaRunner::gather_below(size_t weight, std::span<const int32_t> ids, int32_t offset,
                              Rows out) {
  const auto sublayer = static_cast<size_t>(task_.sublayer);
  const WeightStore::ResidentTable table = parts_.weights->resident_table(sublayer, weight);
  std::vector<int32_t> here, below;
  std::vector<int64_t> below_rows;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i] + offset;
    const bool is_here = id < table.rows;
    here.push_back(is_here ? id : 0);
    if (is_here) continue;
    below.push_back(id);
    below_rows.push_back(static_cast<int64_t>(i));
  }
  if (below.size() < ids.size())
    cuda::gather_rows(table.data, table.dtype, out.cols,
                      tables_.put(std::span<const int32_t>(here)), 0, out.rows, out.data, stream());
  auto* staged = reinterpret_cast<float*>(staging_.rows.data());
  if (!below.empty()) parts_.weights->gather(sublayer, weight, below, staged, staging_.gather);
  const int64_t row_bytes = out.cols * 4;
  for (size_t i = 0; i < below.size();) {
    size_t end = i + 1;
    while (end < below.size() && below_rows[end] == below_rows[end - 1] + 1) ++end;
    cuda::copy_to_device(out.data + below_rows[i] * out.cols,
                         staged + static_cast<int64_t>(i) * out.cols,
                         static_cast<int64_t>(end - i) * row_bytes, stream());
    i = end;
  }
  // Staging is used again by the next table of this task.
  if (!below.empty()) settle_stream();
}

void CudaRunner::gather_tokens(const Operator& op, Rows out) {
  gather(static_cast<size_t>(op.weight), batch_->token_ids, tables_.ids(*batch_), 0, out);
}

void CudaRunner::gather_positions(const Operator& op, Rows out) {
  gather(static_cast<size_t>(op.weight), batch_->positions, tables_.positions(*batch_),
         static_cast<int32_t>(op.offset), out);
}

void CudaRunner::set_hidden(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    cuda::copy_on_device(piece.data, from, piece.rows * in.cols * 4, stream());
    from += piece.rows * in.cols;
  }
}

void CudaRunner::read_hidden(Rows out) {
  float* to = out.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    cuda::copy_on_device(to, piece.data, piece.rows * out.cols * 4, stream());
    to += piece.rows * out.cols;
  }
}

void CudaRunner::read_needed_hidden(Rows out) {
  if (hidden_.front().rows == batch_->rows()) {
    cuda::gather_rows(hidden_.front().data, DType::kF32, out.cols, tables_.needed(*batch_), 0,
                      out.rows, out.data, stream());
    return;
  }
  int64_t first = 0;  // row of the micro-batch that the piece begins with
  int64_t done = 0;
  for (const HiddenStore::Piece& piece : hidden_) {
    std::vector<int32_t> ids;
    for (const int32_t row : batch_->needed_rows)
      if (row >= first && row < first + piece.rows)
        ids.push_back(static_cast<int32_t>(row - first));
    cuda::gather_rows(piece.data, DType::kF32, out.cols, tables_.put(std::span<const int32_t>(ids)),
                      0, static_cast<int64_t>(ids.size()), out.data + done * out.cols, stream());
    done += static_cast<int64_t>(ids.size());
    first += piece.rows;
  }
}

void CudaRunner::apply_norm(const Operator& op, const cuda::NormRows& rows) {
  if (op.norm == NormKind::kRms)
    cuda::rms_norm(rows, vector_or_null(op.weight), op.eps, stream());
  else
    cuda::layer_norm(rows, vector_or_null(op.weight), vector_or_null(op.bias), op.eps, stream());
}

void CudaRunner::norm_hidden(const Operator& op, Rows in, Rows out) {
  SLUICE_ASSERT(!in.data || hidden_.size() == 1, "additions are put off where rows are one run");
  const cuda::RowCopies all = copies_of(op, out);
  cuda::NormRows rows;
  rows.addend = in.data;
  rows.y = out.data;
  rows.copies = all;
  for (const HiddenStore::Piece& piece : hidden_) {
    rows.x = piece.data;
    rows.shape = {piece.rows, out.cols, out.cols};
    apply_norm(op, rows);
    rows.y += piece.rows * out.cols;
    if (rows.copies.narrow.data) rows.copies.narrow.data += piece.rows * all.narrow.stride;
    if (!rows.copies.int8.codes) continue;
    rows.copies.int8.codes += piece.rows * all.int8.columns;
    rows.copies.int8.scales += piece.rows;
  }
}

void CudaRunner::norm_hidden_in_place(const Operator& op) {
  const int64_t cols = parts_.model->shape().hidden_size;
  for (const HiddenStore::Piece& piece : hidden_)
    apply_norm(op, {piece.data, nullptr, piece.data, {piece.rows, cols, cols}, {}});
}

void CudaRunner::add_to_hidden(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    cuda::add_inplace(piece.data, from, piece.rows * in.cols, stream());
    from += piece.rows * in.cols;
  }
}

// The factor comes to the host before any pass is recorded as a graph.
void CudaRunner::scale_hidden(const Operator& op) {
  const float factor = *host_vector(op.weight, 1);
  const int64_t cols = parts_.model->shape().hidden_size;
  for (const HiddenStore::Piece& piece : hidden_)
    cuda::scale_rows(piece.data, {piece.rows, cols, cols}, factor, {}, stream());
}

void CudaRunner::carry(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    cuda::copy_on_device(piece.carried, from, piece.rows * in.cols * 4, stream());
    from += piece.rows * in.cols;
  }
}

void CudaRunner::read_carried(const Operator& op, Rows out) {
  const int64_t stride = parts_.model->shape().carried_columns;
  float* to = out.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    cuda::copy_rows(to, out.stride * 4, piece.carried + op.offset, stride * 4, out.cols * 4,
                    piece.rows, stream());
    to += piece.rows * out.stride;
  }
}

void CudaRunner::norm(const Operator& op, Rows in_out) {
  const cuda::RowCopies copies = copies_of(op, in_out);
  apply_norm(op, {in_out.data, nullptr, in_out.data, shape_of(in_out), copies});
}

void CudaRunner::add(Rows in_out, Rows in) {
  cuda::add_inplace(in_out.data, in.data, in_out.rows * in_out.cols, stream());
}

int64_t CudaRunner::slab_bytes() const noexcept {
  return std::min(need_.slab_bytes, static_cast<int64_t>(areas_.linear.size()));
}

void CudaRunner::multiply_rows(const MatrixView& view, Rows in, Made& made, const std::byte* w,
                               int64_t rows, const float* bias, float* y, int64_t ldy) {
  const WeightFormat& format = view.format;
  if (!format.is_quantised()) {
    if (format.dtype == DType::kF32)
      return dense_.run(DType::kF32, in.data, in.stride, in.rows, in.cols, w, rows, bias, y, ldy,
                        stream());
    const Narrowed x = narrowed(in, format, made);
    dense_.run(x.rows.type, x.rows.data, x.rows.stride, in.rows, in.cols, w, rows, bias, y, ldy,
               stream());
    return unscale(x, y, {in.rows, rows, ldy}, bias);
  }
  if (multiplies_int8(format)) return multiply_int8(format, in, made, w, rows, bias, y, ldy);
  const bool is_fp8 = multiplies_fp8(format);
  if (is_fp8 && need_.has_fp8 && cuda::is_dense_codes(format, in.rows, in.cols))
    return multiply_dense_codes(format, in, made, w, rows, bias, y, ldy);
  const Narrowed x = narrowed(in, format, made, is_fp8);
  multiply_codes(x.rows, in, format, w, rows, bias, y, ldy);
  unscale(x, y, {in.rows, rows, ldy}, bias);
}

void CudaRunner::unscale(const Narrowed& x, float* y, const cuda::RowsShape& shape,
                         const float* bias) {
  if (x.scales) cuda::unscale_products(y, shape, x.scales, bias, stream());
}

void CudaRunner::multiply_codes(const cuda::Rows16& x, const Rows& in, const WeightFormat& format,
                                const std::byte* w, int64_t rows, const float* bias, float* y,
                                int64_t ldy) {
  if (in.rows < cuda::kFewestDenseRows) {
    const cuda::LinearPlan plan =
        cuda::plan_linear_quantised(format, in.rows, rows, in.cols, need_.multiprocessors);
    SLUICE_ASSERT(plan.workspace_floats * 4 <= static_cast<int64_t>(areas_.linear.size()),
                  "the plan sizes partial sums");
    return cuda::linear_quantised(x, in.rows, in.cols, w, format, rows, bias, y, ldy, plan,
                                  split_space(), stream());
  }
  auto* slab = reinterpret_cast<uint16_t*>(areas_.linear.data());
  const int64_t step = round_down(slab_bytes() / (in.cols * 2), WeightFormat::kPanelRows);
  SLUICE_ASSERT(step > 0, "the plan sizes dequantised rows");
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    cuda::dequantise(w + format.bytes(row, in.cols), format, count, in.cols, x.type, slab, in.cols,
                     stream());
    dense_.run(x.type, x.data, x.stride, in.rows, in.cols, slab, count, bias ? bias + row : nullptr,
               y + row, ldy, stream());
  }
}

void CudaRunner::multiply_int8(const WeightFormat& format, Rows in, Made& made, const std::byte* w,
                               int64_t rows, const float* bias, float* y, int64_t ldy) {
  if (cuda::is_dense_codes(format, in.rows, in.cols))
    return multiply_dense_codes(format, in, made, w, rows, bias, y, ldy);
  const cuda::Int8LinearPlan plan =
      cuda::plan_linear_int8(format, in.rows, rows, in.cols, need_.multiprocessors);
  SLUICE_ASSERT(plan.workspace_floats * 4 <= static_cast<int64_t>(areas_.linear.size()),
                "the plan sizes partial sums");
  cuda::linear_int8(quantised(in, format, made), in.rows, in.cols, w, format, rows, bias, y, ldy,
                    plan, split_space(), stream());
}

// A slab of codes and its products at a time.
void CudaRunner::multiply_dense_codes(const WeightFormat& format, Rows in, Made& made,
                                      const std::byte* w, int64_t rows, const float* bias, float* y,
                                      int64_t ldy) {
  const int64_t columns = format.padded_columns(in.cols);
  const int64_t step = std::min(
      round_up(rows, WeightFormat::kPanelRows),
      round_down(slab_bytes() / dense_row_bytes(columns, in.rows), WeightFormat::kPanelRows));
  SLUICE_ASSERT(step > 0, "the plan sizes slabs of codes");
  std::byte* const codes = areas_.linear.data();
  std::byte* const sums = codes + step * columns;
  const auto multiply_slabs = [&](const auto& x, auto* products, const auto& product) {
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row);
      const std::byte* part = w + format.bytes(row, in.cols);
      cuda::unpack_codes(part, format, count, in.cols, codes, stream());
      product(round_up(count, WeightFormat::kPanelRows));
      cuda::scale_products(products, x.token_scales(), in.rows, in.cols, part, format, count,
                           bias ? bias + row : nullptr, y + row, ldy, stream());
    }
  };
  if (format.encoding == Encoding::kInt8) {
    const cuda::Int8Rows x = quantised(in, format, made);
    auto* products = reinterpret_cast<int32_t*>(sums);
    multiply_slabs(x, products, [&](int64_t count) {
      dense_.run_int8(x.codes, in.rows, columns, reinterpret_cast<int8_t*>(codes), count, products,
                      stream());
    });
  } else {
    const cuda::Fp8Rows x = fp8_codes(in, format, made);
    auto* products = reinterpret_cast<float*>(sums);
    multiply_slabs(x, products, [&](int64_t count) {
      dense_.run_fp8(x.codes, in.rows, columns, reinterpret_cast<uint8_t*>(codes), count, products,
                     stream());
    });
  }
}

void CudaRunner::multiply(const MatrixView& view, Rows in, Made made, const float* bias, float* y,
                          int64_t ldy) {
  const bool has_inplace = view.inplace_rows > 0;
  const bool takes_bf16 = parts_.compute.compute == kernels::Compute::kBF16;
  const HostCompute::Input below =
      has_inplace ? host_.input(view, takes_bf16) : HostCompute::Input{};
  if (has_inplace) {
    // bf16 is made where it is multiplied: the GPU's copy may be f16.
    float* arrives = below.f32 ? below.f32 : host_.input(view, false).f32;
    const int64_t bytes = in.rows * in.cols * 4;
    exchanged_.down += bytes;
    cuda::copy_rows(arrives, in.cols * 4, in.data, in.stride * 4, in.cols * 4, in.rows, stream());
    events_.input_is_down.record(stream());
  }
  if (view.resident_rows > 0)
    multiply_rows(view, in, made, view.resident, view.resident_rows, bias, y, ldy);
  int64_t row = view.resident_rows + view.inplace_rows;
  for (const StreamedRows& part : view.streamed) {
    multiply_rows(view, in, made, part.data, part.rows, bias ? bias + row : nullptr, y + row, ldy);
    row += part.rows;
  }
  if (!has_inplace) return;
  ++exchanged_.hand_overs;
  events_.input_is_down.synchronize();
  if (below.bf16)
    kernels::convert(DType::kF32, host_.input(view, false).f32, DType::kBF16, below.bf16,
                     in.rows * in.cols);
  const Clock::time_point started = Clock::now();
  const float* output =
      host_.multiply(view, in.rows, below, nullptr, sublayer_->kind == SublayerKind::kHead);
  add_inplace(started);
  const int64_t row_bytes = view.inplace_rows * 4;
  exchanged_.up += in.rows * row_bytes;
  float* to = y + view.resident_rows;
  // The host's output is used again by the next matrix, whose input comes down behind this copy.
  cuda::copy_rows(to, ldy * 4, output, row_bytes, row_bytes, in.rows, stream());
  if (bias)
    cuda::add_bias(to, bias + view.resident_rows, {in.rows, view.inplace_rows, ldy}, stream());
}

void CudaRunner::linear(const Operator& op, Rows in, Rows out) {
  const MatrixView view = matrix(op.weight);
  SLUICE_ASSERT(view.cols == in.cols && view.rows == out.cols && in.rows == out.rows,
                "a family's shapes fit together");
  multiply(view, in, made_of(op), vector_or_null(op.bias), out.data, out.stride);
}

void CudaRunner::scale(const Operator& op, Rows in_out) {
  cuda::scale_rows(in_out.data, shape_of(in_out), op.factor, {}, stream());
}

void CudaRunner::clamp(const Operator& op, Rows in_out) {
  cuda::clamp_rows(in_out.data, op.factor, shape_of(in_out), stream());
}

void CudaRunner::scale_columns(const Operator& op, Rows in_out) {
  cuda::scale_columns(in_out.data, vector_or_null(op.weight), shape_of(in_out), stream());
}

void CudaRunner::scale_by_position(const Operator& op, Rows in_out) {
  cuda::scale_rows(in_out.data, shape_of(in_out), op.factor,
                   {tables_.positions(*batch_), op.shift, op.offset}, stream());
}

void CudaRunner::regroup(const Operator& op, Rows in, Rows out) {
  cuda::regroup_heads(in.data, out.data, shape_of(in),
                      {op.heads, in.cols / (op.heads * op.offset) - 2, op.offset}, stream());
}

void CudaRunner::take_heads(const Operator& op, Rows in, Rows out) {
  cuda::take_heads(in.data, in.stride, out.data, shape_of(out),
                   {op.heads, out.cols / op.heads, in.cols / out.cols, op.offset}, stream());
}

void CudaRunner::absorb(const Operator& op, Rows in, Rows out) {
  const HeadWork work = absorb_work(op, in, out);
  cuda::begin_head_products(op.heads, work.moved, work.cols, work.begin, stream());
  for (const kernels::MatrixRun& run : work.runs)
    cuda::add_transposed_head_products(work.of, run, work.products, stream());
}

void CudaRunner::expand(const Operator& op, Rows in, Rows out) {
  const HeadWork work = expand_work(op, in, out);
  for (const kernels::MatrixRun& run : work.runs)
    cuda::head_products(work.of, run, work.products, stream());
}

void CudaRunner::convolve(const Operator& op, Rows in, Rows out) {
  cuda::causal_conv_silu(recurrent_shape(), vector_or_null(op.weight), vector_or_null(op.bias),
                         in.data, in.stride, runs_on_device(), out.data, out.stride, stream());
}

void CudaRunner::time_steps(const Operator& op, Rows in_out) {
  cuda::time_steps(in_out.data, in_out.stride, vector_or_null(op.bias), op.low, op.high,
                   in_out.rows, in_out.cols, stream());
}

void CudaRunner::decay(const Operator& op, Rows steps, Rows out) {
  cuda::decay_gates(steps.data, steps.stride, vector_or_null(op.weight), out.data, out.stride,
                    out.rows, out.cols, stream());
}

void CudaRunner::recurrent_rule(const Operator& op, Rows qkv, Rows learned, Rows kept, Rows out) {
  cuda::recurrent_rule(recurrent_shape(),
                       {qkv.data, qkv.stride, learned.data, learned.stride, kept.data, kept.stride,
                        vector_or_null(op.weight)},
                       runs_on_device(), out.data, out.stride, stream());
}

cuda::StateRuns CudaRunner::runs_on_device() {
  const std::vector<kernels::StateRun> runs = state_runs();
  return {tables_.put(std::span<const kernels::StateRun>(runs)), std::ssize(runs)};
}

void CudaRunner::rope(const Operator& op, Rows in_out) { rotate(op, in_out, op.heads); }

void CudaRunner::rotate(const Operator& op, const Rows& rows, int64_t heads) {
  cuda::rope_inplace(rows.data, shape_of(rows), static_cast<int>(heads),
                     static_cast<int>(2 * op.frequencies.size()), tables_.positions(*batch_),
                     constant(op.frequencies), op.factor, op.rope, stream());
}

void CudaRunner::attend(const Operator& op, Rows q, Rows k, Rows v, Rows kept, Rows out) {
  if (task_.compute().step == ComputeStep::kAfterAttention) {
    const AttentionExchange::Slot from = parts_.exchange->at(
        AttentionExchange::Side::kDevice, sublayer_->state.group, task_.compute().attention_slot);
    cuda::copy_on_device(out.data, from.out, out.rows * out.cols * 4, stream());
    if (kept.data) cuda::copy_on_device(kept.data, from.kept, kept.rows * kept.cols * 4, stream());
    return;
  }
  attend_on_device(op, q, k, v, out);
  if (task_.compute().attention_slot < 0) return;
  keep_sinks_for_host(op);
  keep_for_host(q, k, v, kept, out, [&](float* to, const Rows& from, int64_t first, int64_t count) {
    cuda::copy_rows(to, from.cols * 4, from.data + first * from.stride, from.stride * 4,
                    from.cols * 4, count, stream());
  });
}

// The host's lane reads them when this task is done; entries are there since the beginning.
void CudaRunner::keep_sinks_for_host(const Operator& op) {
  const float* const sinks = vector_or_null(op.weight);
  if (!sinks) return;
  std::vector<float>& room = host_vectors_.sinks.at(sinks);
  if (room.empty()) on_host(sinks, sublayer_->weights[static_cast<size_t>(op.weight)].cols, room);
}

// All chunks but those that the host attends.
void CudaRunner::attend_on_device(const Operator& op, Rows q, Rows k, Rows v, Rows out) {
  const bool is_shared = shares_pages();
  const StatePlace& at = sublayer_->state;
  kernels::AttentionShape shape = attention_shape(task_);
  std::optional<AttentionTables>& of_group = attention_[static_cast<size_t>(at.group)];
  if (!is_shared || !of_group) {
    StatePlace place = at;
    if (is_shared) place.layer = 0;
    const auto chunks = device_chunks(place);
    of_group =
        tables_.attention(shape, chunks, page_addresses_, batch_->rows(), need_.multiprocessors);
  }
  const AttentionTables& tables = *of_group;
  // The KV write turns both where it finds q beside k.
  cuda::Rotation rotation;
  if (!op.frequencies.empty()) {
    const int64_t kv_heads = k.cols / (q.cols / op.heads);
    if (tables.runs && q.stride == k.stride && op.heads == shape.num_heads &&
        kv_heads == shape.num_kv_heads) {
      rotation = {q.data,
                  tables_.positions(*batch_),
                  constant(op.frequencies),
                  static_cast<int>(2 * op.frequencies.size()),
                  op.factor,
                  op.rope};
    } else {
      rotate(op, q, op.heads);
      rotate(op, k, kv_heads);
    }
  }
  if (!tables.runs) return;
  cuda::AttentionArguments arguments;
  arguments.q = q.data;
  arguments.q_stride = q.stride;
  arguments.out = out.data;
  arguments.out_stride = out.stride;
  arguments.runs = tables.runs;
  arguments.pages = tables.pages;
  arguments.page_offset = is_shared ? at.layer * parts_.kv->layer_bytes(at.group) : 0;
  arguments.items = tables.items;
  arguments.merges = tables.merges;
  arguments.workspace = reinterpret_cast<float*>(areas_.attention.data());
  if (shape.slopes) shape.slopes = constant(op.attend.slopes);
  if (k.data)
    cuda::kv_write(shape, k.data, v.data, k.stride, tables.places, arguments.page_offset,
                   batch_->rows(), rotation, stream());
  cuda::attention(shape, tables.plan, arguments, stream());
}

void CudaRunner::add_weighted(Rows in_out, Rows in, Rows by) {
  cuda::add_weighted_rows(in.data, shape_of(in), nullptr, by.data, by.stride, in_out.data,
                          in_out.stride, stream());
}

const float* CudaRunner::host_vector(int32_t weight, int64_t count) {
  const float* there = vector_or_null(weight);
  if (!there) return nullptr;
  const auto [found, is_new] = host_vectors_.others.try_emplace(there);
  return is_new ? on_host(there, count, found->second) : found->second.data();
}

// Experts are chosen on the host, which says what is multiplied with which.
const float* CudaRunner::on_host(const float* values, int64_t count, std::vector<float>& room) {
  room.resize(static_cast<size_t>(count));
  cuda::copy_to_host(room.data(), values, count * 4, stream());
  settle_stream();
  return room.data();
}

OperatorRunner::RoutedLists CudaRunner::routed_lists(std::span<const int32_t> rows,
                                                     std::span<const float> weights) {
  return {tables_.put(rows), tables_.put(weights)};
}

void CudaRunner::clear(const Rows& out) {
  cuda::fill_zero(out.data, out.rows * out.cols * 4, stream());
}

void CudaRunner::gather_routed(const Rows& in, const int32_t* ids, const Rows& out) {
  cuda::gather_rows(in.data, DType::kF32, in.cols, ids, 0, out.rows, out.data, stream());
}

void CudaRunner::keep_answer(const Rows& y, float* to) {
  cuda::copy_rows(to, y.cols * 4, y.data, y.stride * 4, y.cols * 4, y.rows, stream());
}

void CudaRunner::multiply_expert(const MatrixView& matrix, const Rows& in, const float* bias,
                                 const Rows& out) {
  multiply(matrix, in, {}, bias, out.data, out.stride);
}

void CudaRunner::gate_clamped(const ClampedGate& clamp, const float* biases, const Rows& gate,
                              const Rows& up) {
  SLUICE_ASSERT(gate.stride == up.stride, "an expert's rows lie alike");
  cuda::clamped_gate({clamp.limit, clamp.alpha, biases}, gate.data, up.data, gate.data,
                     shape_of(gate), stream());
}

void CudaRunner::add_routed(const Rows& in, const RoutedLists& to, const Rows& out) {
  cuda::add_weighted_rows(in.data, shape_of(in), to.rows, to.weights, 1, out.data, out.stride,
                          stream());
}

void CudaRunner::begin_down(const Rows& in, float* to) {
  cuda::copy_rows(to, in.cols * 4, in.data, in.stride * 4, in.cols * 4, in.rows, stream());
  events_.input_is_down.record(stream());
}

void CudaRunner::end_down() {
  ++exchanged_.hand_overs;
  events_.input_is_down.synchronize();
}

void CudaRunner::bring_up(const Rows& from, float* to) {
  cuda::copy_rows(to, from.cols * 4, from.data, from.stride * 4, from.cols * 4, from.rows,
                  stream());
  events_.is_up.record(stream());
}

void CudaRunner::await_up() { events_.is_up.synchronize(); }

void CudaRunner::add_low_rank(const Operator& op, Rows in, Rows out) {
  add_changes_of(op, 0, in, out);
}

int64_t CudaRunner::most_rank(size_t sublayer, size_t weight) const {
  int64_t most = 0;
  for (const AdapterRun& run : adapters_.runs)
    if (const kernels::LowRank* change = run.adapter->find(sublayer, weight))
      most = std::max(most, change->rank);
  return most;
}

void CudaRunner::add_changes_of(const Operator& op, int64_t begin, Rows in, Rows out) {
  const auto sublayer = static_cast<size_t>(task_.sublayer);
  const int64_t rank = most_rank(sublayer, static_cast<size_t>(op.weight));
  if (rank == 0) return;
  const bool is_head = sublayer_->kind == SublayerKind::kHead;
  const AdapterTable table =
      tables_.adapters(is_head ? RowsOf::kNeeded : RowsOf::kAll, adapters_.runs, rows_);
  cuda::LowRankProduct product;
  product.items = table.items;
  product.count = table.count;
  product.weight = adapters_.runs.front().adapter->before[sublayer] + op.weight;
  product.most_rank = rank;
  product.first_row = begin;
  product.rows = out.rows;
  kernels::LowRankOperands operands;
  operands.x = in.data;
  operands.x_stride = in.stride;
  operands.cols = in.cols;
  operands.ids = in.data ? nullptr : tables_.ids(*batch_);
  operands.y = out.data;
  operands.y_stride = out.stride;
  operands.outputs = out.cols;
  operands.bias = in.data ? vector_or_null(op.bias) : nullptr;
  cuda::add_low_rank(product, operands, reinterpret_cast<float*>(areas_.low_rank.data()),
                     need_.multiprocessors, stream());
}

void CudaRunner::activate(const Operator& op, Rows in_out) {
  const cuda::RowCopies copies = copies_of(op, in_out);
  cuda::activate(op.activation, in_out.data, shape_of(in_out), copies, stream());
}

void CudaRunner::gate(const Operator& op, Rows gate, Rows up, Rows out) {
  SLUICE_ASSERT(gate.stride == up.stride && gate.stride == out.stride,
                "a family gates whole matrices");
  const cuda::RowCopies copies = copies_of(op, out);
  cuda::gated(op.activation, gate.data, up.data, out.data, shape_of(gate), copies, stream());
}

void CudaRunner::logits(const Operator& op, Rows in) {
  const MatrixView view = matrix(op.weight);
  SLUICE_ASSERT(view.rows == parts_.model->shape().vocab_size, "a row of logits is a vocabulary");
  auto* out = reinterpret_cast<float*>(areas_.logits.data());
  for (int64_t begin = 0; begin < in.rows; begin += logit_rows(need_)) {
    const Rows part{in.data + begin * in.stride, std::min(logit_rows(need_), in.rows - begin),
                    in.cols, in.stride};
    const int64_t wanted_hidden = this->wanted_hidden(begin, part.rows);
    if (wanted_hidden > 0) hand_hidden_over(part, begin);
    if (wanted_hidden == part.rows) continue;
    // Copies that are there are of all rows.
    multiply(view, part, part.rows == in.rows ? made_of(op) : Made{}, vector_or_null(op.bias), out,
             view.rows);
    if (!adapters_.runs.empty())
      add_changes_of(op, begin, part, {out, part.rows, view.rows, view.rows});
    if (op.factor > 0) cuda::soft_cap(out, op.factor, part.rows * view.rows, stream());
    if (step_ == PassGraphs::Step::kRecord) return;  // the only part
    hand_over(out, begin, part.rows, view.rows);
  }
}

}  // namespace sluice
