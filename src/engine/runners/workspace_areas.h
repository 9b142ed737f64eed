#pragma once
// How the memory that a processor computes in is divided.
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/quantised_linear.h"
#include "src/engine/stores/recent_kv.h"

namespace sluice {

struct WorkspaceAreas {
  std::span<std::byte> rows;  ///< slots of programs; beside a device input and
                              ///< output rows
  std::span<std::byte> bf16;  ///< bf16 copy of the input of linear layers
  std::span<std::byte> linear;
  std::span<std::byte> attention;
  std::span<std::byte> recent;  ///< of attend_with_recent
  std::span<std::byte> logits;
  std::span<std::byte> gather;
  std::span<std::byte> low_rank;  ///< of add_low_rank
};

/// What a micro-batch of `tokens` rows needs.
struct WorkspaceNeed {
  const ModelShape* model;
  kernels::QuantisedOptions compute;
  AttentionShapes attention;  ///< by group of layers
  int64_t tokens;
  int threads;
  AttentionShapes recent;    ///< of the newest tokens, where some are kept
  int64_t adapter_rank = 0;  ///< the largest of low-rank adapters; 0: there are none
};
int64_t workspace_bytes(const WorkspaceNeed& need);
struct RunnerParts;
/// What a runner of these parts was planned for.
WorkspaceNeed need_of(const RunnerParts& parts);
/// Empty areas when `workspace` is smaller than that.
WorkspaceAreas split_workspace(const WorkspaceNeed& need, std::span<std::byte> workspace);

/// How the model's layers attend with pages of `page_tokens` tokens, by group. A latent row is
/// one head's key and value, which all query heads attend to; a recurrent state is not attended to.
AttentionShapes attention_shapes(const ModelShape& model, const KvFormat& kv, int64_t page_tokens,
                                 double sparsity, int64_t context_tokens);

/// Bytes that areas are aligned to.
constexpr int64_t kAreaLine = 64;

}  // namespace sluice
