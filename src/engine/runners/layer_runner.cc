#include "src/engine/runners/layer_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/attention_order.h"
#include "kernels/delta_rule.h"
#include "kernels/elementwise.h"
#include "kernels/low_rank.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/route.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/team.h"

namespace sluice {

namespace {
// `rows` rows of `bytes` bytes, each `*_stride` bytes apart, by all threads.
void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t bytes,
               int64_t rows) {
  constexpr int64_t kShareBytes = 1 << 18;
  deal_each(rows, kShareBytes / std::max<int64_t>(bytes, 1), [&](int64_t row) {
    std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                static_cast<const std::byte*>(from) + row * from_stride,
                static_cast<size_t>(bytes));
  });
}
}  // namespace

namespace {
// Additions and rotations gain nothing from being joined here (docs/perf-notes.md).
RunnerFusing fusing_of(const RunnerParts& parts) {
  RunnerFusing fusing;
  fusing.input_of = [parts](const WeightFormat& format, bool has_own_rows) {
    const bool is_narrow =
        parts.compute.compute == kernels::Compute::kBF16 && !parts.takes_f32(format);
    return ProductInput{is_narrow ? ProductInput::Narrow::kBF16 : ProductInput::Narrow::kNone,
                        has_own_rows};
  };
  fusing.writes_narrow = [](Operator::Kind, const WeightShape&) { return false; };
  fusing.writes_codes = [parts](Operator::Kind writer, const WeightShape& weight) {
    return writer == Operator::Kind::kNormHidden &&
           kernels::RowPreparer::is_for(weight.quantised, 1, parts.compute);
  };
  return fusing;
}
}  // namespace

LayerRunner::LayerRunner(const RunnerParts& parts, EmulatedDevice* device,
                         std::span<std::byte> workspace, std::span<std::byte> host_workspace)
    : OperatorRunner(parts, fusing_of(parts)),
      device_(device),
      areas_(split_workspace(need_of(parts), workspace)),
      host_(parts, host_workspace),
      watch_(parts.tally, parts.compute) {
  SLUICE_ASSERT(!areas_.rows.empty(), "the plan sizes the workspace");
}

void LayerRunner::run(const Task& task, const MicroBatch& batch, size_t batch_index,
                      LogitsConsumer& consumer) {
  const Link::Clock::time_point started = Link::Clock::now();
  if (task.compute().step == ComputeStep::kHostAttention)
    return host_.attention(task, batch, sublayer_of(task).state, attention_shape(task));
  begin(task, batch, batch_index, consumer);
  if (rows_ > 0) compute(areas_.rows, kernels::padded_rows(rows_));
  if (device_) device_->finish_compute(started, std::exchange(device_flops_, 0.0));
}

void LayerRunner::gather(const Operator& op, std::span<const int32_t> ids, Rows out) {
  parts_.weights->gather(static_cast<size_t>(task_.sublayer), static_cast<size_t>(op.weight), ids,
                         out.data, areas_.gather);
}

void LayerRunner::gather_tokens(const Operator& op, Rows out) {
  gather(op, batch_->token_ids, out);
}

void LayerRunner::gather_positions(const Operator& op, Rows out) {
  ids_.assign(batch_->positions.begin(), batch_->positions.end());
  for (int32_t& id : ids_) id += static_cast<int32_t>(op.offset);
  gather(op, ids_, out);
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
}

void LayerRunner::apply_norm(const Operator& op, const float* x, float* y, int64_t rows,
                             int64_t cols, const kernels::AfterNorm& after) const {
  if (op.norm == NormKind::kRms)
    kernels::rms_norm(x, vector_or_null(op.weight), op.eps, y, rows, cols, after);
  else
    kernels::layer_norm(x, vector_or_null(op.weight), vector_or_null(op.bias), op.eps, y, rows,
                        cols, after);
}

std::optional<kernels::RowPreparer> LayerRunner::preparer_for(const Operator& op,
                                                              const Rows& rows) {
  if (op.codes_for < 0) return {};
  const WeightFormat& format = sublayer_->weights[static_cast<size_t>(op.codes_for)].quantised;
  if (!kernels::RowPreparer::is_for(format, rows.rows, parts_.compute)) return {};
  return kernels::RowPreparer({rows.data, nullptr, rows.rows, rows.cols, rows.stride}, format,
                              parts_.compute, areas_.linear);
}

void LayerRunner::norm_hidden(const Operator& op, Rows in, Rows out) {
  SLUICE_ASSERT(!in.data, "additions stay where they are");
  const std::optional<kernels::RowPreparer> preparer = preparer_for(op, out);
  kernels::AfterNorm after{preparer ? &*preparer : nullptr};
  float* to = out.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    apply_norm(op, piece.data, to, piece.rows, out.cols, after);
    to += piece.rows * out.cols;
    after.first_row += piece.rows;
  }
}

void LayerRunner::norm_hidden_in_place(const Operator& op) {
  for (const HiddenStore::Piece& piece : hidden_)
    apply_norm(op, piece.data, piece.data, piece.rows, parts_.model->shape().hidden_size);
}

void LayerRunner::add_to_hidden(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    kernels::add_inplace(piece.data, from, piece.rows * in.cols);
    from += piece.rows * in.cols;
  }
}

void LayerRunner::scale_hidden(const Operator& op) {
  for (const HiddenStore::Piece& piece : hidden_)
    kernels::scale_inplace(piece.data, *vector_or_null(op.weight),
                           piece.rows * parts_.model->shape().hidden_size);
}

void LayerRunner::carry(Rows in) {
  const float* from = in.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    std::memcpy(piece.carried, from, static_cast<size_t>(piece.rows * in.cols) * 4);
    from += piece.rows * in.cols;
  }
}

void LayerRunner::read_carried(const Operator& op, Rows out) {
  const int64_t stride = parts_.model->shape().carried_columns;
  float* to = out.data;
  for (const HiddenStore::Piece& piece : hidden_) {
    copy_rows(to, out.stride * 4, piece.carried + op.offset, stride * 4, out.cols * 4, piece.rows);
    to += piece.rows * out.stride;
  }
}

void LayerRunner::norm(const Operator& op, Rows in_out) {
  apply_norm(op, in_out.data, in_out.data, in_out.rows, in_out.cols);
}

void LayerRunner::add(Rows in_out, Rows in) {
  kernels::add_inplace(in_out.data, in.data, in_out.rows * in_out.cols);
}

kernels::Activations LayerRunner::activations(Rows in, const WeightFormat& format,
                                              InputCopy narrow) {
  kernels::Activations x{in.data, nullptr, in.rows, in.cols, in.stride};
  if (parts_.compute.compute != kernels::Compute::kBF16 || parts_.takes_f32(format)) return x;
  if (narrow == InputCopy::kMake) {
    SLUICE_ASSERT(in.stride == in.cols, "inputs of linear layers are whole workspace matrices");
    kernels::convert(DType::kF32, in.data, DType::kBF16, areas_.bf16.data(), in.rows * in.cols);
  }
  x.bf16 = reinterpret_cast<const uint16_t*>(areas_.bf16.data());
  return x;
}

void LayerRunner::multiply(const MatrixView& view, Rows in, InputCopy narrow, bool is_prepared,
                           const float* bias, float* y, int64_t ldy) {
  const kernels::Activations x = activations(in, view.format, narrow);
  const int64_t resident = view.resident_rows;
  Link::Clock::time_point input_arrives;
  if (view.inplace_rows > 0) {
    const int64_t bytes = x.m * x.k * (x.bf16 ? 2 : 4);
    exchanged_.down += bytes;
    input_arrives = device_->down().squeeze_in(bytes);
  }
  device_flops_ += 2.0 * static_cast<double>(x.m) * static_cast<double>(view.cols) *
                   static_cast<double>(view.rows - view.inplace_rows);
  // Parts share what the first made of their input, as neighbours do (q, k, v; gate, up).
  const auto product = [&](const std::byte* w, int64_t rows, const float* part_bias, float* to) {
    watch_.product(view.format, x.m, rows, x.k, [&] {
      multiply_rows(x, w, view.format, rows, part_bias, to, ldy, parts_.compute, areas_.linear,
                    is_prepared);
    });
    is_prepared = true;
  };
  if (resident > 0) product(view.resident, resident, bias, y);
  int64_t row = resident + view.inplace_rows;
  for (const StreamedRows& part : view.streamed) {
    product(part.data, part.rows, bias ? bias + row : nullptr, y + row);
    row += part.rows;
  }
  if (view.inplace_rows > 0)
    multiply_inplace(view, x, bias ? bias + resident : nullptr, y + resident, ldy, input_arrives);
}

// Rows at home in host memory: the input comes down while the device multiplies its own rows, the
// host multiplies, the output goes up.
void LayerRunner::multiply_inplace(const MatrixView& view, const kernels::Activations& x,
                                   const float* bias, float* y, int64_t ldy,
                                   Link::Clock::time_point input_arrives) {
  const HostCompute::Input here = host_.input(view, x.bf16 != nullptr);
  if (here.bf16)
    copy_rows(here.bf16, x.k * 2, x.bf16, x.ld * 2, x.k * 2, x.m);
  else
    copy_rows(here.f32, x.k * 4, x.f32, x.ld * 4, x.k * 4, x.m);
  wait_until(input_arrives);
  const Clock::time_point started = Clock::now();
  const float* output =
      host_.multiply(view, x.m, here, bias, sublayer_->kind == SublayerKind::kHead);
  device_->finish_on_host(started, 2.0 * static_cast<double>(x.m) * static_cast<double>(x.k) *
                                       static_cast<double>(view.inplace_rows));
  add_inplace(started);
  const int64_t bytes = x.m * view.inplace_rows * 4;
  exchanged_.up += bytes;
  const auto output_arrives = device_->up().squeeze_in(bytes);
  const int64_t row_bytes = view.inplace_rows * 4;
  copy_rows(y, ldy * 4, output, row_bytes, row_bytes, x.m);
  wait_until(output_arrives);
}

void LayerRunner::linear(const Operator& op, Rows in, Rows out) {
  const MatrixView view = matrix(op.weight);
  SLUICE_ASSERT(view.cols == in.cols && view.rows == out.cols && in.rows == out.rows,
                "a family's shapes fit together");
  // A norm has prepared them where it could (preparer_for).
  const bool is_prepared = op.codes == InputCopy::kByProduct ||
                           (op.codes == InputCopy::kByWriter &&
                            kernels::RowPreparer::is_for(view.format, in.rows, parts_.compute));
  multiply(view, in, op.narrow, is_prepared, vector_or_null(op.bias), out.data, out.stride);
  show_product(op.weight, nullptr, in, out);
}

void LayerRunner::scale(const Operator& op, Rows in_out) {
  kernels::scale_inplace(in_out.data, op.factor, in_out.rows * in_out.cols);
}

void LayerRunner::clamp(const Operator& op, Rows in_out) {
  kernels::clamp_rows(in_out.data, in_out.stride, op.factor, in_out.rows, in_out.cols);
}

void LayerRunner::scale_columns(const Operator& op, Rows in_out) {
  kernels::scale_columns(in_out.data, vector_or_null(op.weight), in_out.rows, in_out.cols);
}

void LayerRunner::scale_by_position(const Operator& op, Rows in_out) {
  std::vector<int32_t> shifted(batch_->positions.begin(), batch_->positions.end());
  for (int32_t& position : shifted) position += op.shift;
  kernels::scale_by_position(in_out.data, in_out.stride, shifted.data(), op.offset, op.factor,
                             in_out.rows, in_out.cols);
}

void LayerRunner::regroup(const Operator& op, Rows in, Rows out) {
  kernels::regroup_heads(in.data, in.stride, out.data, out.stride, in.rows,
                         {op.heads, in.cols / (op.heads * op.offset) - 2, op.offset});
}

void LayerRunner::take_heads(const Operator& op, Rows in, Rows out) {
  kernels::take_heads(in.data, in.stride, out.data, out.stride, in.rows,
                      {op.heads, out.cols / op.heads, in.cols / out.cols, op.offset});
}

void LayerRunner::absorb(const Operator& op, Rows in, Rows out) {
  const HeadWork work = absorb_work(op, in, out);
  kernels::begin_head_products(op.heads, work.moved, work.cols, work.begin);
  for (const kernels::MatrixRun& run : work.runs)
    kernels::add_transposed_head_products(work.of, run, work.products);
  device_flops_ += work.flops;
}

void LayerRunner::expand(const Operator& op, Rows in, Rows out) {
  const HeadWork work = expand_work(op, in, out);
  for (const kernels::MatrixRun& run : work.runs)
    kernels::head_products(work.of, run, work.products);
  device_flops_ += work.flops;
}

void LayerRunner::convolve(const Operator& op, Rows in, Rows out) {
  kernels::causal_conv_silu(recurrent_shape(), vector_or_null(op.weight), vector_or_null(op.bias),
                            in.data, in.stride, state_runs(), out.data, out.stride);
}

void LayerRunner::time_steps(const Operator& op, Rows in_out) {
  kernels::time_steps(in_out.data, in_out.stride, vector_or_null(op.bias), op.low, op.high,
                      in_out.rows, in_out.cols);
}

void LayerRunner::decay(const Operator& op, Rows steps, Rows out) {
  kernels::decay_gates(steps.data, steps.stride, vector_or_null(op.weight), out.data, out.stride,
                       out.rows, out.cols);
}

void LayerRunner::recurrent_rule(const Operator& op, Rows qkv, Rows learned, Rows kept, Rows out) {
  const RecurrentShape& shape = recurrent_shape();
  kernels::recurrent_rule(shape,
                          {qkv.data, qkv.stride, learned.data, learned.stride, kept.data,
                           kept.stride, vector_or_null(op.weight)},
                          state_runs(), out.data, out.stride);
  device_flops_ += static_cast<double>(out.rows) * shape.rule_flops();
}

void LayerRunner::rope(const Operator& op, Rows in_out) {
  const auto head_dim = static_cast<int>(in_out.cols / op.heads);
  kernels::rope_inplace(in_out.data, in_out.rows, in_out.stride, static_cast<int>(op.heads),
                        head_dim, static_cast<int>(2 * op.frequencies.size()),
                        batch_->positions.data(), op.frequencies.data(), op.factor, op.rope);
}

void LayerRunner::attend(const Operator& op, Rows q, Rows k, Rows v, Rows kept, Rows out) {
  SLUICE_ASSERT(op.frequencies.empty(), "rotations stay where they are");
  if (task_.compute().step == ComputeStep::kAfterAttention) {
    const AttentionExchange::Slot from = parts_.exchange->at(
        AttentionExchange::Side::kDevice, sublayer_->state.group, task_.compute().attention_slot);
    std::memcpy(out.data, from.out, static_cast<size_t>(out.rows * out.cols) * 4);
    if (kept.data)
      std::memcpy(kept.data, from.kept, static_cast<size_t>(kept.rows * kept.cols) * 4);
    return;
  }
  attend_on_device(attention_shape(task_), q, k, v, out);
  if (task_.compute().attention_slot < 0) return;
  keep_for_host(q, k, v, kept, out, [](float* to, const Rows& from, int64_t first, int64_t count) {
    for (int64_t row = 0; row < count; ++row)
      std::memcpy(to + row * from.cols, from.data + (first + row) * from.stride,
                  static_cast<size_t>(from.cols) * 4);
  });
}

// All chunks but those that the host attends.
void LayerRunner::attend_on_device(const kernels::AttentionShape& shape, Rows q, Rows k, Rows v,
                                   Rows out) {
  std::vector<kernels::AttentionSequence> sequences;
  for (const ChunkPages& attended : device_chunks(sublayer_->state)) {
    const Chunk& chunk = *attended.chunk;
    std::byte* const* pages = page_addresses_.data() + attended.first_page;
    if (k.data)
      kernels::kv_write(shape, k.data + chunk.row_begin * k.stride,
                        v.data + chunk.row_begin * v.stride, k.stride, chunk.first_position,
                        chunk.count, pages);
    sequences.push_back(attended_sequence(chunk, pages, q.data, q.stride, out.data, out.stride));
    const double pairs = (static_cast<double>(chunk.first_position) + (chunk.count + 1) / 2.0) *
                         static_cast<double>(chunk.count);
    device_flops_ += 4 * pairs * static_cast<double>(q.cols);
  }
  if (sequences.empty()) return;
  if (parts_.recent_kv->is_used()) return attend_with_recent_kv(shape, sequences, k, v);
  watch_.attention(shape, sequences, [&] {
    kernels::attention(shape, sequences, reinterpret_cast<float*>(areas_.attention.data()),
                       static_cast<int64_t>(areas_.attention.size()) / 4, parts_.compute.order);
  });
}

// Where the newest tokens are kept in 16 bits no chunk is the host's.
void LayerRunner::attend_with_recent_kv(const kernels::AttentionShape& shape,
                                        std::span<const kernels::AttentionSequence> sequences,
                                        Rows k, Rows v) {
  const RecentKv& recent = *parts_.recent_kv;
  std::vector<std::byte*> addresses;
  std::vector<size_t> first_page;
  for (const Chunk& chunk : batch_->chunks) {
    first_page.push_back(addresses.size());
    recent.page_addresses(sublayer_->state, chunk.sequence->recent_slot,
                          int64_t{chunk.first_position} + chunk.count, addresses);
  }
  std::vector<RecentSequence> all;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t row = batch_->chunks[i].row_begin;
    all.push_back({sequences[i], addresses.data() + first_page[i],
                   k.data ? k.data + row * k.stride : nullptr,
                   v.data ? v.data + row * v.stride : nullptr, k.stride});
  }
  const auto floats = [](std::span<std::byte> area) {
    return std::span<float>(reinterpret_cast<float*>(area.data()), area.size() / 4);
  };
  const auto group = static_cast<size_t>(sublayer_->state.group);
  attend_with_recent(shape, recent.shapes()[group], recent.tokens(), all, floats(areas_.attention),
                     floats(areas_.recent));
}

void LayerRunner::add_weighted(Rows in_out, Rows in, Rows by) {
  kernels::add_weighted_rows(in.data, in.stride, nullptr, by.data, by.stride, in_out.data,
                             in_out.stride, in.rows, in.cols);
}

void LayerRunner::clear(const Rows& out) { std::fill_n(out.data, out.rows * out.cols, 0.0f); }

void LayerRunner::gather_routed(const Rows& in, const int32_t* ids, const Rows& out) {
  kernels::gather_rows(in.data, DType::kF32, in.cols, ids, out.rows, out.data);
}

void LayerRunner::keep_answer(const Rows& y, float* to) {
  std::copy_n(y.data, y.rows * y.cols, to);
}

void LayerRunner::multiply_expert(const MatrixView& matrix, const Rows& in, const float* bias,
                                  const Rows& out) {
  multiply(matrix, in, InputCopy::kMake, false, bias, out.data, out.stride);
}

void LayerRunner::gate_clamped(const ClampedGate& clamp, const float* biases, const Rows& gate,
                               const Rows& up) {
  kernels::clamped_gate({clamp.limit, clamp.alpha, biases}, gate.data, gate.stride, up.data,
                        up.stride, gate.data, gate.stride, gate.rows, gate.cols);
}

void LayerRunner::add_routed(const Rows& in, const RoutedLists& to, const Rows& out) {
  kernels::add_weighted_rows(in.data, in.stride, to.rows, to.weights, 1, out.data, out.stride,
                             in.rows, in.cols);
}

void LayerRunner::begin_down(const Rows& in, float* to) {
  const int64_t row_bytes = in.cols * 4;
  down_arrives_ = device_->down().squeeze_in(in.rows * row_bytes);
  copy_rows(to, row_bytes, in.data, in.stride * 4, row_bytes, in.rows);
}

void LayerRunner::bring_up(const Rows& from, float* to) {
  const int64_t row_bytes = from.cols * 4;
  const auto arrives = device_->up().squeeze_in(from.rows * row_bytes);
  copy_rows(to, row_bytes, from.data, from.stride * 4, row_bytes, from.rows);
  wait_until(arrives);
}

void LayerRunner::end_host_experts(Clock::time_point begin, double flops) {
  device_->finish_on_host(begin, flops);
}

void LayerRunner::add_changes_of(int32_t weight, int64_t begin, const int32_t* ids, Rows in,
                                 Rows out, const float* bias) {
  const std::span<const kernels::LowRankRun> changes = changes_of(weight, begin, out.rows);
  if (changes.empty()) return;
  kernels::add_low_rank(changes,
                        {in.data, in.stride, in.cols, ids, out.data, out.stride, out.cols, bias},
                        reinterpret_cast<float*>(areas_.low_rank.data()));
  for (const kernels::LowRankRun& change : changes)
    device_flops_ += 2 * static_cast<double>(change.rows * change.of->rank * (in.cols + out.cols));
}

void LayerRunner::add_low_rank(const Operator& op, Rows in, Rows out) {
  add_changes_of(op.weight, 0, in.data ? nullptr : batch_->token_ids.data(), in, out,
                 in.data ? vector_or_null(op.bias) : nullptr);
}

void LayerRunner::activate(const Operator& op, Rows in_out) {
  kernels::activate(op.activation, in_out.data, in_out.rows * in_out.cols);
}

void LayerRunner::gate(const Operator& op, Rows gate, Rows up, Rows out) {
  kernels::gated(op.activation, gate.data, gate.stride, up.data, up.stride, out.data, out.stride,
                 gate.rows, gate.cols);
}

void LayerRunner::logits(const Operator& op, Rows in) {
  const MatrixView view = matrix(op.weight);
  auto* out = reinterpret_cast<float*>(areas_.logits.data());
  for (int64_t begin = 0; begin < in.rows; begin += kLogitRows) {
    const Rows part{in.data + begin * in.stride, std::min(kLogitRows, in.rows - begin), in.cols,
                    in.stride};
    const int64_t wanted_hidden = this->wanted_hidden(begin, part.rows);
    if (wanted_hidden > 0) give_hidden(part, begin);
    if (wanted_hidden == part.rows) continue;
    multiply(view, part, InputCopy::kMake, false, vector_or_null(op.bias), out, view.rows);
    if (!sublayer_->weights[static_cast<size_t>(op.weight)].shares_table)
      show_product(op.weight, batch_->needed_rows.data() + begin, part,
                   {out, part.rows, view.rows, view.rows});
    if (!adapters_.runs.empty())
      add_changes_of(op.weight, begin, nullptr, part, {out, part.rows, view.rows, view.rows},
                     vector_or_null(op.bias));
    if (op.factor > 0) kernels::soft_cap(out, op.factor, part.rows * view.rows);
    for (int64_t i = 0; i < part.rows; ++i)
      if (!wants_hidden(begin + i))
        consumer_->take_logits(*batch_, static_cast<size_t>(begin + i),
                               {out + i * view.rows, static_cast<size_t>(view.rows)});
  }
}

}  // namespace sluice
