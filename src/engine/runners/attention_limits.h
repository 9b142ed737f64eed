#pragma once
// What nobody's attention does so far, and what a GPU's does not: asked before a run, and by plans
// for machines that are not here.
#include <optional>
#include <string>

#include "kernels/attention.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// Errors: kUser when the model's keys and values can't be kept in that format.
void require_kv(const ModelShape& model, const KvFormat& kv);

/// What is not done, and what the user can do about it.
struct Refusal {
  std::string what;
  std::string mend;
};
/// Of any GPU's attention; nothing: it attends so.
std::optional<Refusal> gpu_refusal(const kernels::AttentionShape& attention);

}  // namespace sluice
