#include "src/engine/layer_runner.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int64_t kLine = 64;
// Matrices a sublayer asks for, at most: each may lose a cache line to alignment.
constexpr int64_t kMatrices = 8;

struct Areas {
  int64_t rows, bf16, linear, attention, logits, gather;
  int64_t total() const { return rows + bf16 + linear + attention + logits + gather; }
};

Areas areas_for(const ModelShape& model, kernels::Compute compute,
                const kernels::AttentionShape& attention, int64_t tokens, int threads) {
  const int64_t rows = kernels::padded_rows(std::max<int64_t>(tokens, 1));
  const int64_t logit_rows = kernels::padded_rows(std::min(LayerRunner::kLogitRows, rows));
  int64_t widest = 0;
  int64_t scratch = 0;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.kind != WeightKind::kMatrix) continue;
      widest = std::max(widest, weight.cols);
      scratch = std::max(scratch, kernels::linear_scratch_bytes(model.weight_dtype, rows,
                                                                weight.rows, weight.cols, compute));
    }
  Areas areas{};
  areas.rows = round_up(rows * model.workspace_columns * 4, kLine) + kMatrices * kLine;
  areas.bf16 = compute == kernels::Compute::kBF16 ? round_up(rows * widest * 2, kLine) : 0;
  areas.linear = round_up(scratch, kLine);
  areas.attention = round_up(kernels::attention_scratch_floats(attention, threads) * 4, kLine);
  areas.logits = round_up(logit_rows * model.vocab_size * 4, kLine);
  areas.gather = WeightStore::gather_staging_bytes(model);
  return areas;
}
}  // namespace

int64_t LayerRunner::workspace_bytes(const ModelShape& model, kernels::Compute compute,
                                     const kernels::AttentionShape& attention, int64_t tokens,
                                     int threads) {
  return areas_for(model, compute, attention, tokens, threads).total();
}

LayerRunner::LayerRunner(const Parts& parts, std::span<std::byte> workspace) : parts_(parts) {
  const Areas areas = areas_for(parts.model->shape(), parts.compute, parts.attention,
                                parts.micro_batch_tokens, parts.threads);
  SLUICE_ASSERT(areas.total() <= static_cast<int64_t>(workspace.size()),
                "the plan sizes the workspace");
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    const auto area = workspace.subspan(static_cast<size_t>(used), static_cast<size_t>(bytes));
    used += bytes;
    return area;
  };
  gather_area_ = take(areas.gather);  // first: its reads want 4096-aligned memory
  rows_area_ = take(areas.rows);
  bf16_area_ = take(areas.bf16);
  linear_scratch_ = take(areas.linear);
  attention_scratch_ = take(areas.attention);
  logits_area_ = take(areas.logits);
}

void LayerRunner::run(const Task& task, const MicroBatch& batch, size_t batch_index,
                      const LogitsConsumer& consumer) {
  task_ = task;
  batch_ = &batch;
  consumer_ = &consumer;
  sublayer_ = &parts_.model->shape().sublayers[static_cast<size_t>(task.sublayer)];
  hidden_ = parts_.hidden->pieces(batch_index, task.activation_slot);
  rows_ = sublayer_->kind == SublayerKind::kHead ? static_cast<int64_t>(batch.needed_rows.size())
                                                 : batch.rows();
  rows_used_ = 0;
  bf16_source_ = nullptr;
  if (rows_ > 0) parts_.model->family().run(*this);
}

Rows LayerRunner::workspace(int64_t cols) {
  const int64_t bytes = round_up(kernels::padded_rows(rows_) * cols * 4, kLine);
  SLUICE_ASSERT(rows_used_ + bytes <= static_cast<int64_t>(rows_area_.size()),
                "the family says its workspace columns");
  Rows rows{reinterpret_cast<float*>(rows_area_.data() + rows_used_), rows_, cols, cols};
  rows_used_ += bytes;
  return rows;
}

size_t LayerRunner::weight_index(std::string_view role) const {
  for (size_t i = 0; i < sublayer_->weights.size(); ++i)
    if (sublayer_->weights[i].role == role) return i;
  SLUICE_ASSERT(false, "a family asks only for weights it has listed");
  return 0;
}

const float* LayerRunner::vector_or_null(std::string_view role) const {
  return role.empty()
             ? nullptr
             : parts_.weights->vector(static_cast<size_t>(task_.sublayer), weight_index(role));
}

void LayerRunner::written(const Rows& rows) {
  if (!bf16_source_) return;
  const float* end = rows.data + (rows.rows - 1) * rows.stride + rows.cols;
  if (rows.data < bf16_source_ + bf16_elements_ && bf16_source_ < end) bf16_source_ = nullptr;
}

void LayerRunner::gather_tokens(std::string_view role, Rows out) {
  parts_.weights->gather(static_cast<size_t>(task_.sublayer), weight_index(role), batch_->token_ids,
                         out.data, gather_area_);
  written(out);
}

void LayerRunner::gather_positions(std::string_view role, int64_t offset, Rows out) {
  ids_.assign(batch_->positions.begin(), batch_->positions.end());
  for (int32_t& id : ids_) id += static_cast<int32_t>(offset);
  parts_.weights->gather(static_cast<size_t>(task_.sublayer), weight_index(role), ids_, out.data,
                         gather_area_);
  written(out);
}

void LayerRunner::set_hidden(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    std::memcpy(piece.data, from, static_cast<size_t>(piece.rows * in.cols) * 4);
    from += piece.rows * in.cols;
  }
}

void LayerRunner::read_hidden(Rows out) {
  float* to = out.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    std::memcpy(to, piece.data, static_cast<size_t>(piece.rows * out.cols) * 4);
    to += piece.rows * out.cols;
  }
  written(out);
}

void LayerRunner::read_needed_hidden(Rows out) {
  for (size_t i = 0; i < batch_->needed_rows.size(); ++i) {
    int64_t row = batch_->needed_rows[i];
    for (const HiddenStore::Piece& piece : hidden_) {
      if (row < piece.rows) {
        std::memcpy(out.data + static_cast<int64_t>(i) * out.cols, piece.data + row * out.cols,
                    static_cast<size_t>(out.cols) * 4);
        break;
      }
      row -= piece.rows;
    }
  }
  written(out);
}

void LayerRunner::apply_norm(const NormSpec& norm, const float* x, float* y, int64_t rows,
                             int64_t cols) const {
  if (norm.kind == NormSpec::Kind::kRms)
    kernels::rms_norm(x, vector_or_null(norm.gain), norm.eps, y, rows, cols);
  else
    kernels::layer_norm(x, vector_or_null(norm.gain), vector_or_null(norm.bias), norm.eps, y, rows,
                        cols);
}

void LayerRunner::norm_hidden(const NormSpec& norm, Rows out) {
  float* to = out.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    apply_norm(norm, piece.data, to, piece.rows, out.cols);
    to += piece.rows * out.cols;
  }
  written(out);
}

void LayerRunner::norm_hidden_in_place(const NormSpec& norm) {
  for (const HiddenStore::Piece& piece : hidden_)
    apply_norm(norm, piece.data, piece.data, piece.rows, parts_.model->shape().hidden_size);
}

void LayerRunner::add_to_hidden(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    kernels::add_inplace(piece.data, from, piece.rows * in.cols);
    from += piece.rows * in.cols;
  }
}

void LayerRunner::norm(const NormSpec& norm, Rows in_out) {
  apply_norm(norm, in_out.data, in_out.data, in_out.rows, in_out.cols);
  written(in_out);
}

void LayerRunner::add(Rows in_out, Rows in) {
  kernels::add_inplace(in_out.data, in.data, in_out.rows * in_out.cols);
  written(in_out);
}

kernels::Activations LayerRunner::activations(Rows in) {
  kernels::Activations x{in.data, nullptr, in.rows, in.cols, in.stride};
  if (parts_.compute != kernels::Compute::kBF16) return x;
  if (bf16_source_ != in.data) {
    SLUICE_ASSERT(in.stride == in.cols, "inputs of linear layers are whole workspace matrices");
    kernels::convert(DType::kF32, in.data, DType::kBF16, bf16_area_.data(), in.rows * in.cols);
    bf16_source_ = in.data;
    bf16_elements_ = in.rows * in.cols;
  }
  x.bf16 = reinterpret_cast<const uint16_t*>(bf16_area_.data());
  return x;
}

void LayerRunner::multiply(const MatrixView& view, const kernels::Activations& x, const float* bias,
                           float* y, int64_t ldy) {
  const int64_t resident = view.resident_rows;
  if (view.packed)
    kernels::linear_packed(x, view.packed, view.dtype, resident, view.cols, bias, y, ldy,
                           parts_.compute, linear_scratch_);
  else if (view.resident)
    kernels::linear_plain(x, view.resident, view.dtype, resident, view.cols, bias, y, ldy,
                          parts_.compute, linear_scratch_);
  int64_t row = resident;
  for (const PlainRows& part : view.streamed) {
    kernels::linear_plain(x, part.data, view.dtype, part.rows, view.cols,
                          bias ? bias + row : nullptr, y + row, ldy, parts_.compute,
                          linear_scratch_);
    row += part.rows;
  }
}

void LayerRunner::linear(std::string_view role, std::string_view bias, Rows in, Rows out) {
  const MatrixView view = parts_.weights->matrix(static_cast<size_t>(task_.sublayer),
                                                 weight_index(role), task_.part_offsets);
  SLUICE_ASSERT(view.cols == in.cols && view.rows == out.cols && in.rows == out.rows,
                "a family's shapes fit together");
  multiply(view, activations(in), vector_or_null(bias), out.data, out.stride);
  written(out);
}

void LayerRunner::rope(Rows in_out, int64_t heads, std::span<const float> inverse_frequencies,
                       float factor) {
  const auto head_dim = static_cast<int>(in_out.cols / heads);
  kernels::rope_inplace(in_out.data, in_out.rows, in_out.stride, static_cast<int>(heads), head_dim,
                        static_cast<int>(2 * inverse_frequencies.size()), batch_->positions.data(),
                        inverse_frequencies.data(), factor);
  written(in_out);
}

void LayerRunner::attend(Rows q, Rows k, Rows v, Rows out) {
  page_addresses_.clear();
  std::vector<size_t> first_page;
  for (const Chunk& chunk : batch_->chunks) {
    first_page.push_back(page_addresses_.size());
    parts_.kv->page_addresses(*batch_, chunk, sublayer_->layer_index, task_.slot, page_addresses_);
  }
  std::vector<kernels::AttentionSequence> sequences;
  for (size_t i = 0; i < batch_->chunks.size(); ++i) {
    const Chunk& chunk = batch_->chunks[i];
    std::byte* const* pages = page_addresses_.data() + first_page[i];
    kernels::kv_write(parts_.attention, k.data + chunk.row_begin * k.stride,
                      v.data + chunk.row_begin * v.stride, k.stride, chunk.first_position,
                      chunk.count, pages);
    kernels::AttentionSequence sequence{};
    sequence.q = q.data + chunk.row_begin * q.stride;
    sequence.q_stride = q.stride;
    sequence.first_position = chunk.first_position;
    sequence.count = chunk.count;
    sequence.pages = pages;
    sequence.out = out.data + chunk.row_begin * out.stride;
    sequence.out_stride = out.stride;
    sequences.push_back(sequence);
  }
  kernels::attention(parts_.attention, sequences,
                     reinterpret_cast<float*>(attention_scratch_.data()),
                     static_cast<int64_t>(attention_scratch_.size()) / 4);
  written(out);
}

void LayerRunner::activate(Activation activation, Rows in_out) {
  const int64_t n = in_out.rows * in_out.cols;
  switch (activation) {
    case Activation::kRelu: kernels::relu(in_out.data, n); break;
    case Activation::kGelu: kernels::gelu_erf(in_out.data, n); break;
    case Activation::kGeluTanh: kernels::gelu_tanh(in_out.data, n); break;
    case Activation::kSilu: kernels::silu(in_out.data, n); break;
  }
  written(in_out);
}

void LayerRunner::silu_mul(Rows gate, Rows up, Rows out) {
  kernels::silu_mul(gate.data, gate.stride, up.data, up.stride, out.data, out.stride, gate.rows,
                    gate.cols);
  written(out);
}

void LayerRunner::logits(std::string_view role, Rows in) {
  const MatrixView view = parts_.weights->matrix(static_cast<size_t>(task_.sublayer),
                                                 weight_index(role), task_.part_offsets);
  auto* out = reinterpret_cast<float*>(logits_area_.data());
  for (int64_t begin = 0; begin < in.rows; begin += kLogitRows) {
    const Rows part{in.data + begin * in.stride, std::min(kLogitRows, in.rows - begin), in.cols,
                    in.stride};
    bf16_source_ = nullptr;
    multiply(view, activations(part), nullptr, out, view.rows);
    for (int64_t i = 0; i < part.rows; ++i)
      (*consumer_)(*batch_, static_cast<size_t>(begin + i),
                   {out + i * view.rows, static_cast<size_t>(view.rows)});
  }
}

}  // namespace sluice
