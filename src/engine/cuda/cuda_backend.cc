#include "src/engine/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <string>

#include "kernels/cuda/int8_linear.h"
#include "src/base/error.h"
#include "src/engine/cuda/cuda_runner.h"
#include "src/engine/runners/attention_limits.h"

namespace sluice {

namespace {
// Any of its matrices with rows of int8.
bool has_int8_products(const ModelShape& model) {
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (cuda::takes_int8_rows(weight.quantised)) return true;
  return false;
}
}  // namespace

void CudaBackend::require_runnable(const ModelShape& model, const AttentionShapes& attention,
                                   const kernels::QuantisedOptions& compute) const {
  const auto refuse = [](const std::string& what, const std::string& mend) {
    throw Error(ErrorKind::kUser, "`device` cuda: " + what, mend);
  };
  if (model.has_plain(DType::kBF16) && !device_.properties().has_bf16)
    refuse(fmt::format("{} multiplies no bf16", name()),
           "convert the weights first: sluice convert MODEL OUT --weights f16");
  if (compute.activations == kernels::ActivationFormat::kInt8 && !has_int8_products(model))
    refuse(fmt::format("`activations` int8 with {} weights", model.weights_name()),
           "leave `activations` out, or run the GGUF file itself, which is repacked for them");
  if (compute.outlier_threshold > 0)
    refuse("outliers are set apart on the CPU only so far", "leave `outlier_threshold` out");
  for (const kernels::AttentionShape& shape : attention) {
    if (const auto refusal = gpu_refusal(shape)) refuse(refusal->what, refusal->mend);
    if (!cuda::attention_fits(shape, device_.properties().multiprocessors))
      refuse(fmt::format("{} has too little shared memory for {} of {} elements", name(),
                         shape.has_values ? "heads" : "latent rows", shape.head_dim),
             "run it on the CPU: `device` cpu");
    if (!cuda::takes_attention(shape))
      refuse(fmt::format("{} KV", kv_format_name(shape.kv_dtype)),
             "use `kv_dtype` f16, bf16, int8, k8v4 or int4");
    if (shape.kv_dtype == KvFormat(DType::kBF16) && !device_.properties().has_bf16)
      refuse(fmt::format("{} multiplies no bf16", name()), "use `kv_dtype` f16");
  }
}

std::string CudaBackend::otherwise(const ModelShape& model,
                                   const kernels::QuantisedOptions& compute) const {
  return with_16_bit_inputs(model, compute,
                            [](const WeightFormat& format, kernels::ActivationFormat activations) {
                              return activations == kernels::ActivationFormat::kInt8
                                         ? cuda::takes_int8_rows(format)
                                         : kernels::takes_activations(format, activations);
                            });
}

KvFormat CudaBackend::default_kv(const ModelShape& model) const {
  return model.weight_dtype == DType::kBF16 && device_.properties().has_bf16 ? DType::kBF16
                                                                             : DType::kF16;
}

int64_t CudaBackend::workspace_bytes(const ModelShape& model, const AttentionShapes& attention,
                                     const kernels::QuantisedOptions& compute, int64_t tokens,
                                     int64_t adapter_rank) const {
  return device_workspace_bytes({&model, attention, tokens, device_.properties().multiprocessors,
                                 compute.activations, device_.properties().has_fp8, adapter_rank,
                                 device_.slab_bytes()});
}

int64_t CudaBackend::host_staging_bytes(const ModelShape& model, const AttentionShapes& attention,
                                        int64_t tokens, int64_t adapter_rank) const {
  return sluice::host_staging_bytes(
      {&model, attention, tokens, device_.properties().multiprocessors, {}, false, adapter_rank});
}

std::unique_ptr<SublayerRunner> CudaBackend::make_runner(const RunnerParts& parts,
                                                         std::span<std::byte> workspace,
                                                         std::span<std::byte> host_workspace) {
  SLUICE_ASSERT(!parts.observe_product, "calibration runs on the CPU");
  return std::make_unique<CudaRunner>(parts, device_, workspace, host_workspace, uses_graphs_);
}

}  // namespace sluice
