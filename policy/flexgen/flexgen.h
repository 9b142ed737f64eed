#pragma once
// FlexGen's own cost equations (arXiv:2303.06865 appendix A.3), as published and as its public code
// evaluates them, and its runtime as it behaves: so that the published numbers can be reproduced
// and our model held against them. Nothing of sluice runs on these. Units: bytes, seconds,
// operations (two for a multiply-add), f16 elements.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::policy::flexgen {

/// A model as the published equations know it.
struct Model {
  double layers = 0, hidden = 0, ffn = 0, heads = 0;
  double prompt = 0;  ///< s
  double fresh = 0;   ///< n; n - 1 decode steps
  /// W: bytes of one layer's weights, 8 h1^2 + 4 h1 h2.
  double layer_bytes() const noexcept { return 8 * hidden * hidden + 4 * hidden * ffn; }
};

/// "opt-30b" and "opt-175b" as the paper uses them. Errors: kUser for other names.
Model opt_model(const std::string& name, double prompt, double fresh);

/// Shares in [0, 1]: weights, cache (KV) and hidden (activations) on GPU and CPU; the rest on disk.
struct Percent {
  double wg = 0, wc = 0, cg = 0, cc = 0, hg = 0, hc = 0;
  double wd() const noexcept { return 1 - wg - wc; }
  double cd() const noexcept { return 1 - cg - cc; }
  double hd() const noexcept { return 1 - hg - hc; }
};

/// A policy as FlexGen's flags say it.
struct Policy {
  double gpu_batch = 1;        ///< gbs
  double num_gpu_batches = 1;  ///< nb
  Percent percent;
  double block() const noexcept { return gpu_batch * num_gpu_batches; }
};

/// Bytes and operations per second; the names of the public code.
struct Hardware {
  double ctog, gtoc_cache, gtoc_hidden, dtoc, ctod_cache_p, ctod_hidden_p, ctod_g;
  double mm_p, mm_g, bmm_p, bmm_g, cpu;
  double c1, c2, c3;
};
/// The constants that the public code ships for its T4 machine (GB = 2^30 bytes).
Hardware code_t4() noexcept;

/// Which of the published forms of the model.
enum class Preset : uint8_t {
  kPaper,  ///< every phase as long as its slowest stream
  kCode    ///< as experimental/cost_model.py: disk and link one after the other, weights not hidden
};

/// Seconds of one layer for the whole block, by stream.
struct Terms {
  double ctog = 0, gtoc = 0, dtoc = 0, ctod = 0, compute = 0;
};

/// What the equations give for a policy.
struct Evaluation {
  Terms prefill, decode;       ///< per layer; decode at the mean context
  double prefill_seconds = 0;  ///< of all layers
  double decode_seconds = 0;   ///< of all layers and n - 1 steps
  double tokens_per_second = 0;
  /// Peak bytes: GPU in prefill and decode, CPU in prefill and decode, disk.
  double gpu_prefill = 0, gpu_decode = 0, cpu_prefill = 0, cpu_decode = 0, disk = 0;

  struct Row {
    std::string name;
    double value;
    std::string unit;
  };
  std::vector<Row> rows() const;
};

/// Errors: kUser for sizes, shares or rates that make no sense.
Evaluation evaluate(Preset preset, const Model& model, const Policy& policy,
                    const Hardware& hardware);

/// What the runtime reached, from its own breakdown (paper table 8 and appendix): bytes and
/// operations per second.
struct RuntimeRates {
  double link, disk_weights, disk_cache, cache_write, cache_write_host, prefill_flops, prefill_bmm,
      decode_flops, cpu_attention, gpu_memory;
};
RuntimeRates t4_runtime() noexcept;

/// Tokens per second of its multi-batch loop: each (layer, GPU batch) step ends with a barrier and
/// takes as long as its slowest task; the whole next layer's weights load in the first step of a
/// layer. `percent` holds what tensors really got (whole tensors move, so "20 80" is 8.3 91.7).
double runtime_tokens_per_second(const Model& model, const Policy& policy,
                                 const RuntimeRates& rates);

}  // namespace sluice::policy::flexgen
