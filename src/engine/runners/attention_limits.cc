#include "src/engine/runners/attention_limits.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int kMostGpuHead = 512;  // of plain KV; require_kv() has a bound for codes
constexpr int kMostGpuLatentRow = 576;
}  // namespace

void require_kv(const ModelShape& model, const KvFormat& kv) {
  if (!kv.is_quantised()) return;
  constexpr const char* kMend = "leave `kv_dtype` out, or use f16 or bf16";
  for (const StateGroup& group : model.state_groups) {
    if (group.state.is_latent())
      throw Error(ErrorKind::kUser,
                  fmt::format("`kv_dtype` {}: this model keeps latent rows, which are keys and "
                              "values at once and not quantised so far",
                              kv_format_name(kv)),
                  kMend);
    if (group.state.is_chunked)
      throw Error(ErrorKind::kUser,
                  fmt::format("`kv_dtype` {}: this model attends in chunks, whose keys and values "
                              "are not quantised so far",
                              kv_format_name(kv)),
                  kMend);
    if (group.state.width > KvFormat::kMostHeadDim)
      throw Error(ErrorKind::kUser,
                  fmt::format("`kv_dtype` {}: heads of {} elements, at most {} can be quantised",
                              kv_format_name(kv), group.state.width, KvFormat::kMostHeadDim),
                  kMend);
  }
}

std::optional<Refusal> gpu_refusal(const kernels::AttentionShape& attention) {
  if (attention.sparsity < 1)
    return Refusal{"sparse attention is for the CPU so far", "leave `attention_sparsity` out"};
  if (attention.rounds_slopes)
    return Refusal{
        "positions by slopes that are rounded to bf16 (Falcon RW) are for the CPU so far",
        "run it on the CPU: `device` cpu"};
  const int most = attention.has_values ? kMostGpuHead : kMostGpuLatentRow;
  if (attention.head_dim <= most) return std::nullopt;
  return Refusal{
      fmt::format("{} of {} elements, at most {} are known",
                  attention.has_values ? "heads" : "latent rows", attention.head_dim, most),
      "run it on the CPU: `device` cpu"};
}

}  // namespace sluice
