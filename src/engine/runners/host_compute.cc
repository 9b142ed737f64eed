#include "src/engine/runners/host_compute.h"

#include "kernels/attention_order.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

void multiply_rows(const kernels::Activations& x, const std::byte* w, const WeightFormat& format,
                   int64_t rows, const float* bias, float* y, int64_t ldy,
                   const kernels::QuantisedOptions& compute, std::span<std::byte> scratch,
                   bool is_prepared) {
  if (format.is_quantised())
    kernels::linear_quantised(x, w, format, rows, bias, y, ldy, compute, scratch, is_prepared);
  else
    kernels::linear(x, w, format.dtype, rows, x.k, bias, y, ldy, compute.compute, scratch,
                    compute.order);
}

namespace {
RunnerParts of_host(RunnerParts parts) {
  parts.micro_batch_tokens = parts.host_rows;
  return parts;
}
}  // namespace

kernels::AttentionSequence attended_sequence(const Chunk& chunk, std::byte* const* pages,
                                             const float* q, int64_t q_stride, float* out,
                                             int64_t out_stride) noexcept {
  kernels::AttentionSequence sequence{};
  sequence.q = q + chunk.row_begin * q_stride;
  sequence.q_stride = q_stride;
  sequence.first_position = chunk.first_position;
  sequence.count = chunk.count;
  sequence.pages = pages;
  sequence.out = out + chunk.row_begin * out_stride;
  sequence.out_stride = out_stride;
  return sequence;
}

HostCompute::HostCompute(const RunnerParts& parts, std::span<std::byte> workspace)
    : parts_(of_host(parts)),
      areas_(split_workspace(need_of(parts_), workspace)),
      watch_(parts.tally, parts.compute) {}

HostCompute::Input HostCompute::input(const MatrixView& view, bool has_bf16) const noexcept {
  // Activations become 8-bit numbers where they are multiplied.
  if (has_bf16 && !parts_.takes_f32(view.format))
    return {nullptr, reinterpret_cast<uint16_t*>(areas_.bf16.data())};
  return {reinterpret_cast<float*>(areas_.rows.data()), nullptr};
}

const float* HostCompute::multiply(const MatrixView& view, int64_t m, const Input& x,
                                   const float* bias, bool is_head) {
  SLUICE_ASSERT(m <= parts_.micro_batch_tokens, "the plan says how many rows the host computes");
  const int64_t rows = kernels::padded_rows(m);
  const int64_t input_floats = round_up(rows * view.cols, kAreaLine / 4);
  float* output = reinterpret_cast<float*>(areas_.rows.data()) + input_floats;
  if (is_head) output = reinterpret_cast<float*>(areas_.logits.data());
  SLUICE_ASSERT(is_head || (input_floats + rows * view.inplace_rows) * 4 <=
                               static_cast<int64_t>(areas_.rows.size()),
                "the plan sizes the host's workspace");
  watch_.product(view.format, m, view.inplace_rows, view.cols, [&] {
    multiply_rows({x.f32, x.bf16, m, view.cols, view.cols}, view.inplace, view.format,
                  view.inplace_rows, bias, output, view.inplace_rows, parts_.compute,
                  areas_.linear);
  });
  return output;
}

void HostCompute::attention(const Task& task, const MicroBatch& batch, const StatePlace& at,
                            const kernels::AttentionShape& shape) {
  const AttentionExchange::Slot rows =
      parts_.exchange->at(AttentionExchange::Side::kHost, at.group, task.compute().attention_slot);
  page_addresses_.clear();
  // What reads another's pages has nothing to write of fresh prompts.
  const auto is_attended = [&](const Chunk& chunk) {
    return at.is_reader ? is_host_attention(chunk.attention) : is_lower_attention(chunk.attention);
  };
  std::vector<size_t> first_page;
  for (const Chunk& chunk : batch.chunks) {
    first_page.push_back(page_addresses_.size());
    if (is_attended(chunk))
      parts_.kv->page_addresses(batch, chunk, at, task.compute().host_kv_slot, true,
                                page_addresses_);
  }
  std::vector<kernels::AttentionSequence> sequences;
  for (size_t i = 0; i < batch.chunks.size(); ++i) {
    const Chunk& chunk = batch.chunks[i];
    if (!is_attended(chunk)) continue;
    std::byte* const* pages = page_addresses_.data() + first_page[i];
    if (!at.is_reader)
      kernels::kv_write(shape, rows.k + chunk.row_begin * rows.k_cols,
                        rows.v + chunk.row_begin * rows.v_cols, rows.k_cols, chunk.first_position,
                        chunk.count, pages);
    if (chunk.attention != ChunkAttention::kHost) continue;
    sequences.push_back(
        attended_sequence(chunk, pages, rows.q, rows.q_cols, rows.out, rows.q_cols));
  }
  if (sequences.empty()) return;
  watch_.attention(shape, sequences, [&] {
    kernels::attention(shape, sequences, reinterpret_cast<float*>(areas_.attention.data()),
                       static_cast<int64_t>(areas_.attention.size()) / 4, parts_.compute.order);
  });
}

}  // namespace sluice
