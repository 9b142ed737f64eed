#include "tools/flag_words.h"

#include <algorithm>
#include <iterator>

namespace sluice::tools {

namespace {
struct FlagOf {
  std::string_view parameter, flag;
};
constexpr FlagOf kFlags[] = {{"activations", "--activations"},
                             {"adapter", "--adapter"},
                             {"allow_requantise", "--allow-requantise"},
                             {"allowed_hosts", "--allowed-host"},
                             {"api_key", "--api-key"},
                             {"attention_sparsity", "--attn-sparsity"},
                             {"batch_dir", "--batch-dir"},
                             {"batch_invariant", "--batch-invariant"},
                             {"bits", "--bits"},
                             {"calibrate", "--calibrate"},
                             {"calibrate_tokens", "--calibrate-tokens"},
                             {"chat_template", "--chat-template FILE"},
                             {"compute", "--compute"},
                             {"context_tokens", "--ctx-size"},
                             {"cors_origins", "--cors-origin"},
                             {"device", "--device"},
                             {"device_budget_bytes", "--gpu-mem"},
                             {"disk_budget_bytes", "--disk-mem"},
                             {"gpu", "--gpu"},
                             {"gpu_direct", "--gpu-direct"},
                             {"hardware", "--hardware"},
                             {"host", "--host"},
                             {"imatrix", "--imatrix"},
                             {"isa", "--cpu-isa"},
                             {"kv_dtype", "--kv-dtype"},
                             {"kv_recent_tokens", "--kv-recent"},
                             {"latency_bound_seconds", "--latency-bound"},
                             {"layers", "--layers"},
                             {"lora", "--lora"},
                             {"lora_dir", "--lora-dir"},
                             {"memory_budget_bytes", "--cpu-mem"},
                             {"micro_batch_tokens", "--micro-batch-tokens"},
                             {"new_tokens", "--gen-len"},
                             {"objective", "--objective"},
                             {"offload_dir", "--offload-dir"},
                             {"outlier_threshold", "--outlier-threshold"},
                             {"overwrite", "--overwrite"},
                             {"partial", "--partial"},
                             {"policy", "--policy"},
                             {"port", "--port"},
                             {"pretokenizer", "--pretokenizer"},
                             {"prompt_ids", "--prompt-ids"},
                             {"prompt_tokens", "--prompt-len"},
                             {"repeat_layers", "--repeat-layers"},
                             {"rope_factor", "--rope-factor"},
                             {"rope_original", "--rope-original"},
                             {"rope_scaling", "--rope-scaling"},
                             {"rope_theta", "--rope-theta"},
                             {"sequences", "--sequences"},
                             {"shard", "--shard"},
                             {"threads", "--threads"},
                             {"unix_socket", "--unix-socket"},
                             {"weights", "--weights"}};
}  // namespace

std::string in_flags(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t open = text.find('`');
    out += text.substr(0, open);
    if (open == std::string_view::npos) break;
    text.remove_prefix(open + 1);
    const std::string_view name = text.substr(0, text.find('`'));
    const auto* found = std::find_if(std::begin(kFlags), std::end(kFlags),
                                     [&](const FlagOf& one) { return one.parameter == name; });
    if (found == std::end(kFlags) || name.size() == text.size()) {
      out += '`';  // somebody else's
      continue;
    }
    out += found->flag;
    text.remove_prefix(name.size() + 1);
  }
  return out;
}

}  // namespace sluice::tools
