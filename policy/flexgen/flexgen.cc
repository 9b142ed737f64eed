#include "policy/flexgen/flexgen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace sluice::policy::flexgen {

namespace {
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kTera = 1e12;

void check(bool is_good, const char* what) {
  if (!is_good)
    throw Error(ErrorKind::kUser, fmt::format("FlexGen's equations: {}", what),
                "give positive sizes and rates, and shares between 0 and 1");
}

void validate(const Model& m, const Policy& p, const Hardware& h) {
  check(m.layers >= 1 && m.hidden >= 1 && m.ffn >= 1 && m.heads >= 1, "a size of the model");
  check(m.prompt >= 1 && m.fresh >= 1, "the prompt or the new tokens");
  check(p.gpu_batch >= 1 && p.num_gpu_batches >= 1, "the block");
  for (double share : {p.percent.wg, p.percent.wc, p.percent.wd(), p.percent.cg, p.percent.cc,
                       p.percent.cd(), p.percent.hg, p.percent.hc, p.percent.hd()})
    check(share >= -1e-9 && share <= 1 + 1e-9, "a share");
  for (double rate : {h.ctog, h.gtoc_cache, h.gtoc_hidden, h.dtoc, h.ctod_cache_p, h.ctod_hidden_p,
                      h.ctod_g, h.mm_p, h.mm_g, h.bmm_p, h.bmm_g, h.cpu})
    check(rate > 0 && std::isfinite(rate), "a rate");
}

// The public code slows CPU attention down for small batches and narrow models.
double cpu_rate(const Model& m, const Policy& p, const Hardware& h) {
  const double a = std::max(0.0, std::log2(64 / p.gpu_batch));
  const double b = std::max(0.0, std::log2(4096 / m.hidden));
  return h.cpu * std::max(0.1, 1 + h.c1 * a * b - h.c2 * a - h.c3 * b);
}

Terms prefill_terms(Preset preset, const Model& m, const Policy& p, const Hardware& h) {
  const Percent& x = p.percent;
  const double w = m.layer_bytes();
  const double bls = p.block();
  const double hidden = 2 * m.prompt * m.hidden * bls;
  const double cache = 4 * (m.prompt + 1) * m.hidden * bls;
  const bool is_code = preset == Preset::kCode;
  Terms t;
  t.ctog = (w * (x.wc + x.wd()) + hidden * (x.hc + x.hd())) / h.ctog;
  t.gtoc = cache * (x.cc + x.cd()) / h.gtoc_cache +
           hidden * (x.hc + x.hd()) / (is_code ? h.gtoc_hidden : h.gtoc_cache);
  t.dtoc = (w * x.wd() + hidden * x.hd()) / h.dtoc;
  t.ctod = cache * x.cd() / h.ctod_cache_p +
           hidden * x.hd() / (is_code ? h.ctod_hidden_p : h.ctod_cache_p);
  t.compute = bls * m.prompt * m.layer_bytes() / h.mm_p +
              4 * bls * m.prompt * m.prompt * m.hidden / h.bmm_p;
  return t;
}

Terms decode_terms(Preset preset, const Model& m, const Policy& p, const Hardware& h) {
  const Percent& x = p.percent;
  const double w = m.layer_bytes();
  const double bls = p.block();
  const double hidden = 2 * m.hidden * bls;
  const double history = 4 * bls * (m.prompt + m.fresh / 2) * m.hidden;
  const bool is_code = preset == Preset::kCode;
  Terms t;
  t.ctog = (w * (x.wc + x.wd()) + hidden * (x.hc + x.hd())) / h.ctog;
  t.gtoc = hidden * (x.hc + x.hd()) / h.gtoc_hidden;
  t.dtoc = history * x.cd() / h.dtoc + w * x.wd() / (is_code ? 0.95 * h.dtoc : h.dtoc) +
           hidden * x.hd() / h.dtoc;
  t.ctod = (4 * bls * m.hidden * x.cd() + hidden * x.hd()) / h.ctod_g;
  t.compute = bls * m.layer_bytes() / h.mm_g + x.cg * history / h.bmm_g +
              (x.cc + x.cd()) * history / (is_code ? cpu_rate(m, p, h) : h.cpu);
  return t;
}

double slowest(const Terms& t) { return std::max({t.ctog, t.gtoc, t.dtoc, t.ctod, t.compute}); }

void peaks(Preset preset, const Model& m, const Policy& p, Evaluation& e) {
  const Percent& x = p.percent;
  const double w = m.layer_bytes();
  const double bls = p.block(), gbs = p.gpu_batch;
  const double s = m.prompt, total = m.prompt + m.fresh, h1 = m.hidden, h2 = m.ffn, nh = m.heads;
  const bool is_code = preset == Preset::kCode;
  const double cache = 4 * total * h1 * bls * m.layers;
  const double gpu_home = x.wg * w * m.layers + cache * x.cg;
  const double ring = 2 * (1 - x.wg) * w;
  const double sum_p = gbs * (8 * s * h1 + (2 * s * h1 + 2 * nh * s * s) + 2 * s * h1 + 4 * s * h1 +
                              2 * s * h2 + 2 * s * h1);
  const double most_p = std::max({8 * s * h1 * gbs, x.cg * gbs * (4 * s * h1 + 2 * nh * s * s),
                                  4 * s * h1 * gbs, 2 * gbs * s * (h1 + h2)});
  e.gpu_prefill = gpu_home + x.hg * 2 * s * h1 * bls + ring + (1 - x.hg) * 2 * s * h1 * gbs +
                  (is_code ? sum_p : most_p);
  const double attention = 2 * h1 + 2 * total * h1 + 2 * nh * total;
  const double sum_g = 4 * gbs * total * h1 * x.cg + 2 * h1 * gbs * (1 - x.hg) +
                       gbs * (8 * h1 + attention * x.cg + (2 * total * h1 + 2 * h1) * x.cg +
                              4 * h1 + 2 * h2 + 2 * h1);
  const double most_g =
      (1 - x.hg) * 2 * s * h1 * gbs +
      std::max({8 * gbs * h1, x.cg * gbs * attention, 4 * gbs * h1, 2 * gbs * (h1 + h2)});
  e.gpu_decode = gpu_home + x.hg * 2 * h1 * bls + ring + (is_code ? sum_g : most_g);
  const double cpu_home = x.wc * w * m.layers;
  e.cpu_prefill = cpu_home + x.hc * 2 * s * h1 * bls +
                  4 * (is_code ? s : total) * h1 * x.cc * bls * m.layers + (1 - x.wg) * w +
                  (1 - x.hg) * 2 * s * h1 * gbs;
  e.cpu_decode = cpu_home + x.hc * 2 * h1 * bls + cache * x.cc + x.wd() * w +
                 4 * x.hd() * h1 * gbs + 8 * x.cd() * total * h1 * gbs + 2 * nh * total * gbs +
                 2 * h1 * gbs;
  e.disk = w * x.wd() * m.layers + x.hd() * 2 * s * h1 * bls + x.cd() * cache;
}
}  // namespace

Model opt_model(const std::string& name, double prompt, double fresh) {
  if (name == "opt-30b") return {48, 7168, 4 * 7168, 56, prompt, fresh};
  if (name == "opt-175b") return {96, 12288, 4 * 12288, 96, prompt, fresh};
  throw Error(ErrorKind::kUser, fmt::format("{}: not a model of the paper's tables", name),
              "opt-30b or opt-175b");
}

Hardware code_t4() noexcept {
  return {12.89 * kGib,  0.97 * kGib,    4.82 * kGib,   0.473 * kGib, 0.746 * kGib,
          2.015 * kGib,  2.015 * kGib,   21.24 * kTera, 4.3 * kTera,  9.97 * kTera,
          0.079 * kTera, 0.0123 * kTera, 0.0168,        0.0328,       0.0621};
}

Evaluation evaluate(Preset preset, const Model& model, const Policy& policy,
                    const Hardware& hardware) {
  validate(model, policy, hardware);
  Evaluation e;
  e.prefill = prefill_terms(preset, model, policy, hardware);
  e.decode = decode_terms(preset, model, policy, hardware);
  double prefill = slowest(e.prefill);
  double decode = slowest(e.decode);
  if (preset == Preset::kCode) {
    prefill = std::max(
        {e.prefill.ctog + e.prefill.dtoc, e.prefill.gtoc + e.prefill.ctod, e.prefill.compute});
    decode =
        e.decode.ctog + std::max({e.decode.gtoc, e.decode.dtoc, e.decode.ctod, e.decode.compute});
  }
  e.prefill_seconds = prefill * model.layers;
  e.decode_seconds = decode * model.layers * (model.fresh - 1);
  e.tokens_per_second = policy.block() * model.fresh / (e.prefill_seconds + e.decode_seconds);
  peaks(preset, model, policy, e);
  return e;
}

std::vector<Evaluation::Row> Evaluation::rows() const {
  std::vector<Row> out;
  for (const auto& [phase, terms] : {std::pair{"prefill", prefill}, std::pair{"decode", decode}})
    for (const auto& [name, value] :
         {std::pair{"CPU to GPU", terms.ctog}, std::pair{"GPU to CPU", terms.gtoc},
          std::pair{"disk to CPU", terms.dtoc}, std::pair{"CPU to disk", terms.ctod},
          std::pair{"compute", terms.compute}})
      out.push_back({fmt::format("{} {} a layer", phase, name), value, "s"});
  out.push_back({"prefill", prefill_seconds, "s"});
  out.push_back({"decode", decode_seconds, "s"});
  out.push_back({"throughput", tokens_per_second, "tokens/s"});
  for (const auto& [name, value] :
       {std::pair{"GPU peak in prefill", gpu_prefill}, std::pair{"GPU peak in decode", gpu_decode},
        std::pair{"CPU peak in prefill", cpu_prefill}, std::pair{"CPU peak in decode", cpu_decode},
        std::pair{"disk", disk}})
    out.push_back({name, value / kGib, "GiB"});
  return out;
}

RuntimeRates t4_runtime() noexcept {
  return {12.89 * kGib,  // the code's pinned host-to-device rate
          1.77e9,        // table 8: decode weight reads, 5.39e12 B in 3047 s
          2.8e9,         // table 8: decode cache reads, 1.98e13 B in 7046 s (page cache helps)
          2.4e9,         // table 8: prefill cache writes, 6.2e11 B in 261 s
          0.97 * kGib,   // the code's rate to unpinned host memory
          20.7e12,       // table 8: prefill compute, 4.6e16 operations in 2220 s
          9.97e12,       // the code's batched products
          4.3e12,        // the code's decode products
          13.2e9,        // table 8: decode compute is CPU attention at 13.2 GB/s
          240e9};        // 75 % of a T4's 320 GB/s
}

double runtime_tokens_per_second(const Model& m, const Policy& p, const RuntimeRates& r) {
  const Percent& x = p.percent;
  const double w = m.layer_bytes();
  const double gbs = p.gpu_batch, nb = p.num_gpu_batches;
  const double weights_disk = w * x.wd() / r.disk_weights;
  const double weights_up = w * (x.wc + x.wd()) / r.link;
  // Disk and link are one relay for weights at home on disk; host weights come beside them.
  const double weights = std::max(weights_disk, weights_up);
  const double cache_new = 4 * gbs * m.hidden;
  // Prefill: the KV of a batch goes down while the next one computes.
  const double compute_p = gbs * m.prompt * w / r.prefill_flops +
                           4 * gbs * m.prompt * m.prompt * m.hidden / r.prefill_bmm;
  const double store_p =
      cache_new * (m.prompt + 1) * (x.cc / r.cache_write_host + x.cd() / r.cache_write);
  const double step_p = std::max(compute_p, store_p);
  const double layer_p = std::max(step_p, weights) + (nb - 1) * step_p;
  // Decode: the next batch's KV comes from disk while this one computes.
  const double context = m.prompt + m.fresh / 2;
  const double history = 4 * gbs * context * m.hidden;
  const double compute_g = std::max(gbs * w / r.decode_flops, w / r.gpu_memory) +
                           (x.cc + x.cd()) * history / r.cpu_attention;
  const double load_g = x.cd() * history / r.disk_cache;
  const double step_g = std::max(compute_g, load_g);
  // Both reads of the first step share the disk.
  const double first_g = std::max({compute_g, weights_disk + load_g, weights_up});
  const double layer_g = first_g + (nb - 1) * step_g;
  const double seconds = m.layers * (layer_p + (m.fresh - 1) * layer_g);
  return p.block() * m.fresh / seconds;
}

}  // namespace sluice::policy::flexgen
