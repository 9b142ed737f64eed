#include "src/engine/runners/operator_runner.h"

#include <algorithm>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
// Of passes of one class.
std::vector<LayerProgram> fused_programs(const RunnerParts& parts, const RunnerFusing& runner,
                                         size_t pass_class) {
  std::vector<LayerProgram> out;
  const ModelShape& shape = parts.model->shape();
  for (size_t i = 0; i < shape.sublayers.size(); ++i) {
    const SublayerShape& sublayer = shape.sublayers[i];
    const auto weight = [&](int32_t index) -> const WeightShape& {
      return sublayer.weights[static_cast<size_t>(index)];
    };
    if (!parts.fuses_operators) {
      out.push_back(parts.model->family().program(i));
      continue;
    }
    Fusing fusing;
    fusing.has_rotating_attention = runner.has_rotating_attention;
    fusing.input_of = [&](int32_t index) {
      return runner.input_of(
          shape.format_of(weight(index)),
          parts.weights->has_own_rows(pass_class, i, static_cast<size_t>(index)));
    };
    fusing.writes_narrow = [&](Operator::Kind kind, int32_t index) {
      return runner.writes_narrow(kind, weight(index));
    };
    fusing.writes_codes = [&](Operator::Kind kind, int32_t index) {
      return runner.writes_codes(kind, weight(index));
    };
    out.push_back(fused(parts.model->family().program(i), sublayer, fusing));
  }
  return out;
}
}  // namespace

OperatorRunner::Programs::Programs(std::vector<LayerProgram> all) {
  for (LayerProgram& program : all) {
    const auto found = std::find(distinct.begin(), distinct.end(), program);
    of.push_back(static_cast<size_t>(found - distinct.begin()));
    if (found == distinct.end()) distinct.push_back(std::move(program));
  }
}

OperatorRunner::OperatorRunner(const RunnerParts& parts, const RunnerFusing& fusing)
    : parts_(parts) {
  for (size_t i = 0; i < parts.weights->pass_classes(); ++i) {
    std::vector<LayerProgram> programs = fused_programs(parts, fusing, i);
    if (parts.fuses_operators && fusing.puts_off_additions && parts.hidden->stays_in_memory())
      of_one_batch_.emplace_back(
          with_additions_put_off(programs, parts.model->shape().hidden_size));
    programs_.emplace_back(std::move(programs));
  }
}

void OperatorRunner::add_inplace(Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  inplace_.seconds += std::chrono::duration<double>(end - begin).count();
  if (parts_.keeps_spans) inplace_.spans.push_back({begin, end});
}

const LayerProgram& OperatorRunner::program() const {
  const auto& all = batch_->is_alone && !of_one_batch_.empty() ? of_one_batch_ : programs_;
  const Programs& programs = all[batch_->pass_class];
  return programs.distinct[programs.of[static_cast<size_t>(task_.sublayer)]];
}

Rows OperatorRunner::rows_of(const View& view) const {
  if (view.slot < 0) return {};
  return slots_[static_cast<size_t>(view.slot)].columns(view.begin, view.cols);
}

namespace {
// A slot's rows follow each other without gaps, and so do their heads.
Rows heads_as_rows(const Rows& rows, int64_t heads) {
  return {rows.data, rows.rows * heads, rows.cols / heads, rows.cols / heads};
}
}  // namespace

void OperatorRunner::compute(std::span<std::byte> area, int64_t padded_rows) {
  const LayerProgram& program = this->program();
  slots_.clear();
  padded_rows_ = padded_rows;
  SLUICE_ASSERT(program.columns() * padded_rows * 4 <= std::ssize(area), "the plan sizes it");
  for (size_t slot = 0; slot < program.slots.size(); ++slot)
    slots_.push_back({reinterpret_cast<float*>(area.data()) + program.places[slot] * padded_rows,
                      rows_, program.slots[slot], program.slots[slot]});
  std::span<const Operator> operators = program.operators;
  if (task_.compute().step == ComputeStep::kBeforeAttention) operators = program.before_cut();
  if (task_.compute().step == ComputeStep::kAfterAttention) operators = program.after_cut();
  if (task_.compute().step == ComputeStep::kUntilRoute) operators = program.before_experts();
  if (task_.compute().step == ComputeStep::kSomeExperts) return some_experts(*program.experts());
  if (task_.compute().step == ComputeStep::kAfterRoute) {
    add_answers(*program.experts());
    operators = program.after_experts();
  }
  for (const Operator& op : operators) execute(op);
  if (task_.compute().step == ComputeStep::kUntilRoute) guess_next();
}

void OperatorRunner::execute(const Operator& op) {
  using Kind = Operator::Kind;
  const Rows out = rows_of(op.out);
  const Rows in = rows_of(op.in[0]);
  switch (op.kind) {
    case Kind::kGatherTokens: gather_tokens(op, out); return add_changes(op, in, out);
    case Kind::kGatherPositions: return gather_positions(op, out);
    case Kind::kSetHidden: return set_hidden(in);
    case Kind::kReadHidden: return read_hidden(out);
    case Kind::kReadNeededHidden: return read_needed_hidden(out);
    case Kind::kNormHidden: return norm_hidden(op, in, out);
    case Kind::kNormHiddenInPlace: return norm_hidden_in_place(op);
    case Kind::kAddToHidden: return add_to_hidden(in);
    case Kind::kScaleHidden: return scale_hidden(op);
    case Kind::kCarry: return carry(in);
    case Kind::kReadCarried: return read_carried(op, out);
    case Kind::kNorm: return norm(op, out);
    case Kind::kNormHeads: return norm(op, heads_as_rows(out, op.heads));
    case Kind::kAdd: return add(out, in);
    case Kind::kLinear: linear(op, in, out); return add_changes(op, in, out);
    case Kind::kScale: return scale(op, out);
    case Kind::kScaleByPosition: return scale_by_position(op, out);
    case Kind::kScaleColumns: return scale_columns(op, out);
    case Kind::kClamp: return clamp(op, out);
    case Kind::kRegroup: return regroup(op, in, out);
    case Kind::kTakeHeads: return take_heads(op, in, out);
    case Kind::kAbsorb: return absorb(op, in, out);
    case Kind::kExpand: return expand(op, in, out);
    case Kind::kConvolve: return convolve(op, in, out);
    case Kind::kTimeSteps: return time_steps(op, out);
    case Kind::kDecay: return decay(op, in, out);
    case Kind::kRecurrentRule:
      return recurrent_rule(op, in, rows_of(op.in[1]), rows_of(op.in[2]), out);
    case Kind::kRope: return rope(op, out);
    case Kind::kAttend:
      return attend(op, in, rows_of(op.in[1]), rows_of(op.in[2]), rows_of(op.in[3]), out);
    case Kind::kRoute: return route(op, in);
    case Kind::kExperts: return experts(op, in, rows_of(op.work), out);
    case Kind::kAddWeighted: return add_weighted(out, in, rows_of(op.in[1]));
    case Kind::kActivate: return activate(op, out);
    case Kind::kGate: return gate(op, in, rows_of(op.in[1]), out);
    case Kind::kLogits: return logits(op, in);
  }
}

// Behind every product and lookup of tokens, where it is complete: placement, quantisation and
// families know nothing of it. Logits never lie in slots: runners add to them where they are.
void OperatorRunner::add_changes(const Operator& op, Rows in, Rows out) {
  if (!adapters_.runs.empty()) add_low_rank(op, in, out);
}

void OperatorRunner::begin(const Task& task, const MicroBatch& batch, size_t batch_index,
                           LogitsConsumer& consumer) {
  task_ = task;
  batch_ = &batch;
  consumer_ = &consumer;
  sublayer_ = &sublayer_of(task);
  hidden_ = parts_.hidden->pieces(batch_index, task.compute().activation_slot);
  rows_ = sublayer_->kind == SublayerKind::kHead ? static_cast<int64_t>(batch.needed_rows.size())
                                                 : batch.rows();
  if (parts_.adapter_rank > 0)
    adapters_.runs =
        sublayer_->kind == SublayerKind::kHead ? needed_adapter_runs(batch) : adapter_runs(batch);
}

std::span<const kernels::LowRankRun> OperatorRunner::changes_of(int32_t weight, int64_t begin,
                                                                int64_t rows) {
  low_rank_runs(adapters_.runs, static_cast<size_t>(task_.sublayer), static_cast<size_t>(weight),
                begin, rows, adapters_.changes);
  return adapters_.changes;
}

kernels::AttentionShape OperatorRunner::attention_shape(const Task& task) const {
  const LayerProgram& program = parts_.model->family().program(static_cast<size_t>(task.sublayer));
  const AttendSpec& how = program.operators[static_cast<size_t>(program.cut)].attend;
  kernels::AttentionShape shape = parts_.attention_of(sublayer_of(task).state);
  if (how.scale > 0) shape.scale = how.scale;
  shape.soft_cap = how.soft_cap;
  shape.slopes = how.slopes.empty() ? nullptr : how.slopes.data();
  const int32_t sinks = program.operators[static_cast<size_t>(program.cut)].weight;
  if (sinks >= 0)
    shape.sinks =
        parts_.weights->vector(static_cast<size_t>(task.sublayer), static_cast<size_t>(sinks));
  return shape;
}

bool OperatorRunner::wants_hidden(int64_t needed_row) const {
  return consumer_->wants_hidden(*batch_, static_cast<size_t>(needed_row));
}

int64_t OperatorRunner::wanted_hidden(int64_t first, int64_t rows) const {
  int64_t wanted = 0;
  for (int64_t row = first; row < first + rows; ++row) wanted += wants_hidden(row);
  return wanted;
}

void OperatorRunner::give_hidden(const Rows& in, int64_t first) {
  // Where logits are scaled, it is their rows that are.
  float factor = 1;
  for (const Operator& op :
       parts_.model->family().program(static_cast<size_t>(task_.sublayer)).operators)
    if (op.kind == Operator::Kind::kScale) factor *= op.factor;
  std::vector<float> scaled;
  for (int64_t row = 0; row < in.rows; ++row) {
    if (!wants_hidden(first + row)) continue;
    const float* values = in.data + row * in.stride;
    scaled.assign(values, values + in.cols);
    if (factor != 1)
      for (float& value : scaled) value /= factor;
    consumer_->take_hidden(*batch_, static_cast<size_t>(first + row), scaled);
  }
}

const float* OperatorRunner::vector_or_null(int32_t weight) const {
  return weight < 0 ? nullptr
                    : parts_.weights->vector(static_cast<size_t>(task_.sublayer),
                                             static_cast<size_t>(weight));
}

MatrixView OperatorRunner::matrix(int32_t weight) const {
  return parts_.weights->matrix(static_cast<size_t>(task_.sublayer), static_cast<size_t>(weight),
                                task_.compute());
}

namespace {
// None of its rows is multiplied on the host beside a device (WeightShape::is_by_head).
std::vector<kernels::MatrixRun> runs_of(const MatrixView& view) {
  SLUICE_ASSERT(view.inplace_rows == 0 && !view.format.is_quantised(),
                "rows of heads are plain, and where they are computed");
  const DType dtype = view.format.dtype;
  std::vector<kernels::MatrixRun> runs;
  if (view.resident_rows > 0)
    runs.push_back({view.resident, dtype, 0, view.resident_rows, view.cols});
  int64_t row = view.resident_rows;
  for (const StreamedRows& part : view.streamed) {
    runs.push_back({part.data, dtype, row, part.rows, view.cols});
    row += part.rows;
  }
  return runs;
}
}  // namespace

OperatorRunner::HeadWork OperatorRunner::absorb_work(const Operator& op, const Rows& in,
                                                     const Rows& out) const {
  const MatrixView view = matrix(op.weight);
  const int64_t x_head = in.cols / op.heads, y_head = out.cols / op.heads;
  const int64_t moved = x_head - op.offset;
  HeadWork work;
  work.of = {op.heads, view.rows / op.heads, 0, op.offset};
  work.begin = {in.rows, in.data + op.offset, in.stride, x_head, out.data, out.stride, y_head};
  work.products = {in.rows, in.data, in.stride, x_head, out.data + moved, out.stride, y_head};
  work.moved = moved;
  work.cols = view.cols;
  work.flops = 2 * static_cast<double>(in.rows * op.heads * op.offset * view.cols);
  work.runs = runs_of(view);
  return work;
}

OperatorRunner::HeadWork OperatorRunner::expand_work(const Operator& op, const Rows& in,
                                                     const Rows& out) const {
  const MatrixView view = matrix(op.weight);
  const int64_t height = view.rows / op.heads, x_head = in.cols / op.heads;
  HeadWork work;
  work.of = {op.heads, height, op.offset, height - op.offset};
  work.products = {in.rows,    in.data + x_head - view.cols, in.stride, x_head, out.data,
                   out.stride, out.cols / op.heads};
  work.cols = view.cols;
  work.flops = 2 * static_cast<double>(in.rows * out.cols * view.cols);
  work.runs = runs_of(view);
  return work;
}

const RecurrentShape& OperatorRunner::recurrent_shape() const {
  return parts_.model->shape().state_of(sublayer_->state).recurrent;
}

std::vector<kernels::StateRun> OperatorRunner::state_runs() const {
  const auto floats = [](std::byte* state) { return reinterpret_cast<float*>(state); };
  std::vector<kernels::StateRun> runs;
  for (const Chunk& chunk : batch_->chunks) {
    const KvStore::StatePages pages =
        parts_.kv->state_pages(chunk, sublayer_->state, task_.compute().kv_slot);
    runs.push_back({chunk.row_begin, chunk.count, floats(pages.from), floats(pages.to), pages.kept,
                    floats(pages.kept_to)});
  }
  return runs;
}

std::vector<ChunkPages> OperatorRunner::device_chunks(const StatePlace& at) {
  const int64_t page_tokens = parts_.attention_of(at).page_tokens;
  std::vector<ChunkPages> chunks;
  page_addresses_.clear();
  int64_t fresh_pages = parts_.kv->keeps_fresh(at) ? batch_->first_fresh_page : 0;
  for (const Chunk& chunk : batch_->chunks) {
    if (chunk.attention == ChunkAttention::kHost) continue;
    chunks.push_back({&chunk, page_addresses_.size()});
    if (chunk.attention == ChunkAttention::kFresh) {
      const int64_t pages = (chunk.count + page_tokens - 1) / page_tokens;
      parts_.kv->fresh_addresses(at, fresh_pages, pages, page_addresses_);
      fresh_pages += pages;
    } else {
      parts_.kv->page_addresses(*batch_, chunk, at, task_.compute().kv_slot, false,
                                page_addresses_);
    }
  }
  return chunks;
}

void OperatorRunner::keep_for_host(Rows q, Rows k, Rows v, Rows kept, Rows out,
                                   const RowCopy& copy) const {
  const AttentionExchange::Slot to = parts_.exchange->at(
      AttentionExchange::Side::kDevice, sublayer_->state.group, task_.compute().attention_slot);
  const auto keep = [&](const auto& wanted, const Rows& from, float* rows) {
    for_each_run(*batch_, wanted, [&](int64_t first, int64_t count) {
      copy(rows + first * from.cols, from, first, count);
    });
  };
  keep([](ChunkAttention where) { return where != ChunkAttention::kHost; }, out, to.out);
  if (k.data) keep(is_lower_attention, k, to.k);
  if (v.data) keep(is_lower_attention, v, to.v);
  keep(is_host_attention, q, to.q);
  if (kept.data) keep([](ChunkAttention) { return true; }, kept, to.kept);
}

}  // namespace sluice
