#include "src/engine/engine_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/side_by_side.h"
#include "src/device/memory_limit.h"
#include "src/engine/packed_weights.h"
#include "src/engine/runners/attention_limits.h"
#include "src/engine/runners/workspace_areas.h"

namespace sluice {

namespace {
// Left to the process beside the budget when we choose the budget: heap, code, tokenizer, thread
// stacks, library scratch.
constexpr int64_t kProgramReserve = 192 * kMiB;
// Buffers are counted in whole 4 KiB pages; there are at most so many.
constexpr int64_t kPageRounding = 16 * 4096;

kernels::Compute choose_compute(const BoundModel& model, const EngineOptions& options) {
  // Quantised codes are exact in bf16, whatever the type of what is not quantised.
  const bool is_bf16 = model.shape().has_plain(DType::kBF16) || model.shape().is_quantised();
  switch (options.compute) {
    case ComputeChoice::kF32: return kernels::Compute::kF32;
    case ComputeChoice::kBF16:
      if (!is_bf16)
        throw Error(
            ErrorKind::kUser,
            fmt::format("`compute` bf16 with {} weights", dtype_name(model.shape().weight_dtype)),
            "convert the weights to bf16 first, or leave `compute` out");
      if (!kernels::bf16_compute_supported())
        throw Error(ErrorKind::kUser, "`compute` bf16: this CPU has no bf16 multiply",
                    "leave `compute` out");
      return kernels::Compute::kBF16;
    case ComputeChoice::kAuto: break;
  }
  if (options.batch_invariant && !kernels::bf16_sums_by_row()) return kernels::Compute::kF32;
  return is_bf16 && kernels::bf16_compute_supported() ? kernels::Compute::kBF16
                                                      : kernels::Compute::kF32;
}

// Sums that do not depend on the number of rows: which runs have them, and in which order.
kernels::SumOrder choose_order(const EngineOptions& options, kernels::Compute compute) {
  if (!options.batch_invariant) return kernels::SumOrder::kFastest;
  if (options.backend)
    throw Error(
        ErrorKind::kUser,
        "`batch_invariant` needs the CPU: a GPU's products depend on how many rows there are",
        "leave `device` out, or leave `batch_invariant` out");
  if (options.kv_recent_tokens != 0)
    throw Error(ErrorKind::kUser,
                "`batch_invariant` and `kv_recent_tokens` don't go together: which tokens are the "
                "newest depends on how a prompt is cut",
                "leave one of them out");
  if (compute == kernels::Compute::kBF16 && !kernels::bf16_sums_by_row())
    throw Error(ErrorKind::kUser,
                "`batch_invariant` with `compute` bf16 is not for this CPU so far",
                "write `compute` f32, or leave it out");
  return kernels::SumOrder::kByRow;
}

// 8-bit activations are for the matrices that multiply them; a choice without effect is refused.
void require_fitting_weights(const ModelShape& model, const EngineOptions& options) {
  using kernels::ActivationFormat;
  const bool is_int8 = options.activations == ActivationFormat::kInt8;
  if (!is_int8 && options.outlier_threshold > 0)
    throw Error(ErrorKind::kUser, "`outlier_threshold` without int8 activations",
                "add `activations` int8, or leave it out");
  if (options.activations == ActivationFormat::k16Bit) return;
  const std::string chosen = is_int8 ? "`activations` int8" : "`activations` fp8";
  bool takes_any = false;
  const WeightFormat* other = nullptr;  // that meets inputs of 16 bits
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (!weight.quantised.is_quantised()) continue;
      const bool takes = kernels::takes_activations(weight.quantised, options.activations);
      takes_any = takes_any || takes;
      if (!takes && !other) other = &weight.quantised;
    }
  if (!takes_any && other)
    throw Error(ErrorKind::kUser, fmt::format("{} with {} weights", chosen, format_name(*other)),
                is_int8 ? "int4, int8, q4_0 and K types multiply int8 activations; leave "
                          "`activations` out"
                        : "fp8 weights multiply fp8 activations; leave `activations` out");
  if (!takes_any)
    throw Error(ErrorKind::kUser,
                fmt::format("{} with {} weights", chosen, dtype_name(model.weight_dtype)),
                fmt::format("quantise the weights first: sluice convert MODEL OUT --weights {}",
                            is_int8 ? "int8" : "fp8"));
}

// The newest tokens stay in 16 bits beside quantised pages.
void keep_recent(const ModelShape& model, const EngineOptions& options, EngineInput& out) {
  if (options.kv_recent_tokens == 0) return;
  const auto refuse = [](const std::string& what, const std::string& mend) {
    throw Error(ErrorKind::kUser, "`kv_recent_tokens` " + what, mend);
  };
  if (options.kv_recent_tokens < 0) refuse("can't be negative", "write a number of tokens");
  if (!out.kv_dtype.is_quantised())
    refuse(fmt::format("has no effect with {} KV", kv_format_name(out.kv_dtype)),
           "add `kv_dtype` int8, k8v4 or int4, or leave it out");
  if (options.device || options.backend)
    refuse("is for runs on the CPU so far", "leave it out, or leave `device` out");
  if (options.attention_sparsity < 1)
    refuse("and `attention_sparsity` don't go together", "leave one of them out");
  out.question.kv_recent_dtype = model.weight_dtype == DType::kBF16 ? DType::kBF16 : DType::kF16;
  const auto window =
      static_cast<int>(std::min<int64_t>(options.kv_recent_tokens, model.max_positions));
  for (kernels::AttentionShape shape : out.attention) {
    shape.kv_dtype = out.question.kv_recent_dtype;
    shape.sliding_window =
        shape.sliding_window > 0 ? std::min(window, shape.sliding_window) : window;
    out.recent_attention.push_back(shape);
  }
}

int64_t choose_budget(const EngineOptions& options) {
  return options.memory_budget_bytes > 0 ? options.memory_budget_bytes : free_memory_budget();
}

int64_t choose_context(const BoundModel& model, const EngineOptions& options) {
  const int64_t most = model.shape().max_positions;
  if (options.context_tokens > most)
    throw Error(ErrorKind::kUser,
                fmt::format("`context_tokens` {} is more than the model's {} positions",
                            options.context_tokens, most),
                fmt::format("use `context_tokens` {} or less", most));
  if (options.context_tokens > 0) return options.context_tokens;
  return std::min(std::max<int64_t>(options.workload.max_total_tokens, 1), most);
}

// The KV's type, and the shape that attention has with it.
void set_attention(const ModelShape& shape, const EngineOptions& options, EngineInput& out) {
  out.kv_dtype = options.kv_dtype.value_or(options.backend ? options.backend->default_kv(shape)
                                                           : KvFormat(shape.weight_dtype));
  require_kv(shape, out.kv_dtype);
  if (!(options.attention_sparsity > 0 && options.attention_sparsity <= 1))
    throw Error(ErrorKind::kUser,
                fmt::format("`attention_sparsity` {} is no share", options.attention_sparsity),
                "write a number above 0 and up to 1: 0.1 reads a tenth of the values");
  policy::validate(out.start);
  out.start.page_tokens = policy::page_tokens_of(out.start, out.kv_dtype, out.context_tokens);
  out.attention = attention_shapes(shape, out.kv_dtype, out.start.page_tokens,
                                   options.attention_sparsity, out.context_tokens);
  keep_recent(shape, options, out);
}

// What kernels need of a micro-batch. The functions outlive the options.
void set_workspace(const EngineOptions& options, const EngineInput& sizes,
                   policy::PlanInput& input) {
  const ModelShape* shape = input.model;
  // Without a device the workspace is what resident weights are loaded through.
  const bool has_device = options.device || options.backend;
  const int64_t least = has_device ? 0 : input.load_staging_bytes;
  const auto on_cpu = [shape, least, compute = sizes.compute, attention = sizes.attention,
                       threads = sizes.threads, recent = sizes.recent_attention,
                       rank = options.adapters.rank](int64_t tokens) {
    return std::max(least,
                    workspace_bytes({shape, compute, attention, tokens, threads, recent, rank}));
  };
  input.workspace_bytes = on_cpu;
  if (!options.backend) return;
  input.host_workspace_bytes = on_cpu;
  input.workspace_bytes = [backend = options.backend, shape, compute = sizes.compute,
                           attention = sizes.attention,
                           rank = options.adapters.rank](int64_t tokens) {
    return backend->workspace_bytes(*shape, attention, compute, tokens, rank);
  };
  input.host_staging_bytes = [backend = options.backend, shape, attention = sizes.attention,
                              rank = options.adapters.rank](int64_t tokens) {
    return backend->host_staging_bytes(*shape, attention, tokens, rank);
  };
}

// Weights of another tool are repacked as they are loaded, or as they arrive from disk; those whose
// rows can't be read by themselves stay in memory.
void keep_repacked_in_memory(const BoundModel& model, const EngineOptions& options,
                             EngineInput& out) {
  if (model.foreign_method().empty()) return;
  set_packed_weights(model, out.threads, out.question);
  if (out.question.packed_bytes) return;
  out.repacked_path = model.path();
  if (!options.policy) return;
  const policy::Policy& asked = *options.policy;
  if (asked.weights.disk + asked.kv.disk + asked.activations.disk > 0)
    throw Error(ErrorKind::kUser,
                fmt::format("{}: {} weights are repacked as they are loaded: a policy with a share "
                            "on disk is not for them",
                            model.path().string(), model.foreign_method()),
                fmt::format("sluice convert {} STORE, then run STORE", model.path().string()));
}
}  // namespace

int64_t free_memory_budget() {
  const MemoryLimit limit = memory_limit();
  const int64_t free = limit.available_bytes - kProgramReserve;
  return std::max<int64_t>(free - free / 20, kMiB);
}

void throw_with_mend(const EngineInput& input, const Error& error) {
  const bool is_short = error.kind() == ErrorKind::kResource || error.kind() == ErrorKind::kUser;
  if (input.repacked_path.empty() || !is_short) throw error;
  throw Error(
      error.kind(), error.text(),
      fmt::format("{}{}a packed store also runs where its weights do not fit: sluice "
                  "convert {} STORE",
                  error.mend(), error.mend().empty() ? "" : "; ", input.repacked_path.string()));
}

EngineInput plan_input(const BoundModel& model, const EngineOptions& options) {
  model.require_runnable();
  EngineInput out;
  const ModelShape& shape = model.shape();
  const kernels::Compute compute = choose_compute(model, options);
  out.compute = {compute, options.activations, options.outlier_threshold,
                 choose_order(options, compute)};
  require_fitting_weights(shape, options);
  out.threads = options.threads > 0 ? options.threads : usable_processors();
  out.memory_budget_bytes = choose_budget(options);
  out.context_tokens = choose_context(model, options);
  out.start = options.policy.value_or(options.start_policy);
  set_attention(shape, options, out);
  if (options.backend) options.backend->require_runnable(shape, out.attention, out.compute);

  policy::PlanInput& input = out.question;
  input.model = &shape;
  input.workload = options.workload;
  input.workload.max_total_tokens = std::min(input.workload.max_total_tokens, out.context_tokens);
  input.workload.max_prompt_tokens = std::min(input.workload.max_prompt_tokens, out.context_tokens);
  if (options.context_tokens > 0) input.workload.max_total_tokens = out.context_tokens;
  input.memory_budget_bytes = out.memory_budget_bytes;
  const bool has_device = options.device || options.backend;
  input.device_budget_bytes = options.backend  ? options.backend->device().memory().limit()
                              : options.device ? options.device->memory_bytes
                                               : 0;
  // Buffers there are counted in whole pages too.
  // Adapters lie where the model is computed, beside what the policy places.
  const int64_t adapters = round_up(options.adapters.bytes, policy::kDiskBlock);
  if (has_device) input.device_program_bytes = kPageRounding + adapters;
  input.disk_reaches_device = options.backend && options.backend->direct_reader();
  input.disk_budget_bytes = options.disk_budget_bytes;
  input.program_bytes = kPageRounding + (has_device ? options.swap_bytes : adapters);
  input.kv_dtype = out.kv_dtype;
  input.eight_bit_activations = options.activations != kernels::ActivationFormat::k16Bit;
  input.attention_sparsity = options.attention_sparsity;
  input.kv_recent_tokens = options.kv_recent_tokens;
  input.row_granule = kernels::kRowGranule;
  input.load_staging_bytes = WeightStore::load_staging_bytes(model);
  keep_repacked_in_memory(model, options, out);
  set_workspace(options, out, input);
  return out;
}

policy::Plan choose_plan(const EngineInput& input, const EngineOptions& options) {
  try {
    if (!options.policy) return policy::default_plan(input.question, input.start);
    policy::Plan plan = policy::make_plan(input.question, input.start);
    policy::require_fit(input.question, plan);
    return plan;
  } catch (const Error& error) {
    throw_with_mend(input, error);
  }
}

EnginePlan::EnginePlan(EngineInput input, policy::Plan made)
    : EngineInput(std::move(input)), plan(std::move(made)) {
  SLUICE_ASSERT(plan.policy.page_tokens == attention.front().page_tokens,
                "a policy starts from the page that attention was planned with");
  workspace_bytes =
      question.workspace_bytes(std::min(plan.pass_tokens, plan.policy.micro_batch_tokens));
}

}  // namespace sluice
