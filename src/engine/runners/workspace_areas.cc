#include "src/engine/runners/workspace_areas.h"

#include <algorithm>

#include "src/base/bytes.h"
#include "src/engine/runners/sublayer_runner.h"

namespace sluice {

namespace {
struct AreaBytes {
  int64_t rows, bf16, linear, attention, recent, logits, gather;
  int64_t total() const { return rows + bf16 + linear + attention + recent + logits + gather; }
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
              : kernels::linear_scratch_bytes(model.weight_dtype, rows, weight.rows, weight.cols,
                                              compute.compute));
    }
  AreaBytes areas{};
  areas.rows = round_up(rows * model.workspace_columns * 4, kAreaLine);
  areas.bf16 =
      compute.compute == kernels::Compute::kBF16 ? round_up(rows * widest * 2, kAreaLine) : 0;
  areas.linear = round_up(scratch, kAreaLine);
  const bool keeps_recent = need.recent.num_heads > 0;
  int64_t attention = kernels::attention_scratch_floats(need.attention, need.threads);
  if (keeps_recent)
    attention = std::max(attention, kernels::attention_scratch_floats(need.recent, need.threads));
  areas.attention = round_up(attention * 4, kAreaLine);
  if (keeps_recent)
    areas.recent = round_up(recent_scratch_floats(need.recent, need.tokens) * 4, kAreaLine);
  areas.logits = round_up(logit_rows * model.vocab_size * 4, kAreaLine);
  areas.gather = WeightStore::gather_staging_bytes(model);
  return areas;
}
}  // namespace

WorkspaceNeed need_of(const RunnerParts& parts) {
  return {&parts.model->shape(),    parts.compute, parts.attention,
          parts.micro_batch_tokens, parts.threads, parts.recent_kv->shape()};
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
  return areas;
}

}  // namespace sluice
