#include "src/engine/runners/workspace_areas.h"

#include <algorithm>
#include <cmath>

#include "kernels/low_rank.h"
#include "src/base/bytes.h"
#include "src/engine/runners/sublayer_runner.h"

namespace sluice {

namespace {
struct AreaBytes {
  int64_t rows, bf16, linear, attention, recent, logits, gather, low_rank;
  int64_t total() const {
    return rows + bf16 + linear + attention + recent + logits + gather + low_rank;
  }
};

AreaBytes areas_for(const WorkspaceNeed& need) {
  const ModelShape& model = *need.model;
  const kernels::QuantisedOptions& compute = need.compute;
  const int64_t rows = kernels::padded_rows(std::max<int64_t>(need.tokens, 1));
  const int64_t logit_rows = kernels::padded_rows(std::min(kLogitRows, rows));
  int64_t widest = 0;
  int64_t scratch = 0;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.kind != WeightKind::kMatrix) continue;
      widest = std::max(widest, weight.cols);
      scratch = std::max(
          scratch,
          weight.quantised.is_quantised()
              ? kernels::quantised_scratch_bytes(weight.quantised, rows, weight.cols, compute)
              : kernels::linear_scratch_bytes(model.format_of(weight).dtype, rows,
                                              weight.expert_rows(), weight.cols, compute.compute,
                                              compute.order));
    }
  AreaBytes areas{};
  areas.rows = round_up(rows * model.workspace_columns * 4, kAreaLine);
  areas.bf16 =
      compute.compute == kernels::Compute::kBF16 ? round_up(rows * widest * 2, kAreaLine) : 0;
  areas.linear = round_up(scratch, kAreaLine);
  int64_t attention = 0;
  for (const auto* shapes : {&need.attention, &need.recent})
    for (const kernels::AttentionShape& shape : *shapes)
      attention = std::max(attention, kernels::attention_scratch_floats(shape, need.threads));
  areas.attention = round_up(attention * 4, kAreaLine);
  for (const kernels::AttentionShape& shape : need.recent)
    areas.recent =
        std::max(areas.recent, round_up(recent_scratch_floats(shape, need.tokens) * 4, kAreaLine));
  areas.logits = round_up(logit_rows * model.vocab_size * 4, kAreaLine);
  areas.gather = WeightStore::gather_staging_bytes(model);
  areas.low_rank =
      round_up(kernels::low_rank_scratch_floats(rows, need.adapter_rank) * 4, kAreaLine);
  return areas;
}
}  // namespace

WorkspaceNeed need_of(const RunnerParts& parts) {
  return {&parts.model->shape(),    parts.compute, parts.attention,
          parts.micro_batch_tokens, parts.threads, parts.recent_kv->shapes(),
          parts.adapter_rank};
}

int64_t workspace_bytes(const WorkspaceNeed& need) { return areas_for(need).total(); }

WorkspaceAreas split_workspace(const WorkspaceNeed& need, std::span<std::byte> workspace) {
  const AreaBytes bytes = areas_for(need);
  if (bytes.total() > static_cast<int64_t>(workspace.size())) return {};
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    const auto area = workspace.subspan(static_cast<size_t>(used), static_cast<size_t>(size));
    used += size;
    return area;
  };
  WorkspaceAreas areas;
  areas.gather = take(bytes.gather);  // first: its reads want 4096-aligned memory
  areas.rows = take(bytes.rows);
  areas.bf16 = take(bytes.bf16);
  areas.linear = take(bytes.linear);
  areas.attention = take(bytes.attention);
  areas.recent = take(bytes.recent);
  areas.logits = take(bytes.logits);
  areas.low_rank = take(bytes.low_rank);
  return areas;
}

AttentionShapes attention_shapes(const ModelShape& model, const KvFormat& kv, int64_t page_tokens,
                                 double sparsity, int64_t context_tokens) {
  AttentionShapes shapes;
  for (const StateGroup& group : model.state_groups) {
    // A recurrent state is not attended to: the smallest shape there is.
    const bool is_recurrent = group.state.is_recurrent();
    const int64_t width = is_recurrent ? model.head_dim : group.state.width;
    shapes.push_back({static_cast<int>(is_recurrent ? 1 : model.num_heads),
                      static_cast<int>(group.state.heads), static_cast<int>(width),
                      static_cast<int>(page_tokens), 1.0f / std::sqrt(static_cast<float>(width)),
                      kv, static_cast<int>(group.state.window), static_cast<float>(sparsity),
                      static_cast<int>(context_tokens)});
    shapes.back().is_chunked = group.state.is_chunked;
    shapes.back().rounds_slopes = model.rounds_slopes;
    shapes.back().has_values = !group.state.is_latent();
    shapes.back().value_begin = static_cast<int>(group.state.key_columns);
  }
  return shapes;
}

}  // namespace sluice
