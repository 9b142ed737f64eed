#include "policy/layer_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policy/routing_model.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
// Rows of logits that the engine hands over at a time.
constexpr int64_t kLogitRows = 64;
// Table rows that the engine reads from disk at a time.
constexpr double kGatheredRows = 64;
// Bytes of memory traffic that one logit costs: written, and looked at by the sampler on one core.
constexpr double kLogitBytes = 32;

bool is_computed(const SublayerShape& sublayer, const WeightShape& weight, ComputeStep step) {
  if (weight.kind != WeightKind::kMatrix || step == ComputeStep::kHostAttention ||
      step == ComputeStep::kAfterRoute)
    return false;
  if (step == ComputeStep::kUntilRoute) return weight.experts == 0;
  if (step == ComputeStep::kWhole || sublayer.kind != SublayerKind::kAttention) return true;
  return weight.is_after_cut == (step == ComputeStep::kAfterAttention);
}

// Of a mixture's stacked experts: the share that a micro-batch's tokens touch when each goes to its
// own few experts, and the rows of x that such an expert multiplies. Of another matrix the share is
// 1, and all `rows` meet it.
struct Routed {
  double share = 1;
  int64_t rows = 0;
};
Routed routed(const ModelShape& model, const WeightShape& weight, const BatchWork& work,
              int64_t rows) {
  if (weight.experts == 0 || rows == 0) return {1, rows};
  const double one =
      static_cast<double>(model.experts_per_token) / static_cast<double>(model.num_experts);
  const double share =
      even_share({model.num_experts, static_cast<double>(model.experts_per_token), 0},
                 work.independent_tokens);
  const double of_each = static_cast<double>(rows) * one / share;
  return {share, std::max<int64_t>(std::llround(of_each), 1)};
}

// Rows of a matrix that are multiplied with `m` rows of x each.
struct Product {
  int64_t own = 0;      // on the device
  int64_t inplace = 0;  // on the host
  int64_t m = 0;
};

// `times` that rows go down to the host and its answers come up. The host goes on when it knows
// that they are there.
void add_exchange(const Profile& profile, double times, double down, double up, TaskSeconds& out) {
  // An emulated device's copies are made by the cores: read, written, and the line fetched first.
  if (profile.shares_cores) out.host += 3 * (down + up) / profile.host.memory_read.value;
  out.hand_overs += times;
  out.exchange_down += down / profile.link.to_host.value +
                       times * (profile.link.latency_seconds.value + hand_over_seconds(profile));
  out.exchange_up += up / profile.link.to_device.value + times * profile.link.latency_seconds.value;
}

// Without what crosses the link.
void add_product(const ModelShape& model, const Plan& plan, const Profile& profile,
                 const WeightShape& weight, const Product& product, ProductSeconds& products,
                 TaskSeconds& out) {
  const Processor& device = profile.device ? *profile.device : profile.host;
  const WeightFormat format = model.format_of(weight);
  const bool is_eight_bit = plan.eight_bit_activations && format.is_quantised();
  // A GPU multiplies K types with inputs of 16 bits.
  const bool is_gpu = profile.device && device.threads == 0;
  out.device += products(device, format, is_eight_bit && !(is_gpu && format.is_k()), product.m,
                         product.own, weight.cols);
  if (product.inplace == 0 || product.m == 0) return;
  out.host += products(profile.host, format, is_eight_bit, product.m, product.inplace, weight.cols);
  out.host_bytes += static_cast<double>(model.rows_bytes(weight, product.inplace));
}

// Of `inplace` rows of a matrix, which go down and come back by themselves; of stacked experts each
// expert's.
void add_row_exchange(const ModelShape& model, const Plan& plan, const Profile& profile,
                      const WeightShape& weight, int64_t inplace, int64_t m, TaskSeconds& out) {
  if (inplace == 0 || m == 0) return;
  const WeightFormat format = model.format_of(weight);
  const bool is_eight_bit = plan.eight_bit_activations && format.is_quantised();
  const bool is_bf16 = format.is_quantised() || format.dtype == DType::kBF16;
  const double times =
      weight.experts > 0 ? static_cast<double>(inplace) / static_cast<double>(weight.expert_rows())
                         : 1;
  add_exchange(profile, times,
               times * static_cast<double>(m * weight.cols) * (is_bf16 && !is_eight_bit ? 2 : 4),
               static_cast<double>(m * inplace) * 4, out);
}

// Columns of what goes into a sublayer's experts, and of what comes out: stacks are gate, up, down.
struct ExpertColumns {
  double in = 0;
  double out = 0;
};
ExpertColumns expert_columns(const SublayerShape& sublayer) {
  ExpertColumns columns;
  for (const WeightShape& weight : sublayer.weights) {
    if (weight.experts == 0 || weight.kind != WeightKind::kMatrix) continue;
    if (columns.in == 0) columns.in = static_cast<double>(weight.cols);
    columns.out = static_cast<double>(weight.expert_rows());
  }
  return columns;
}

// Experts whose three matrices are in place, in rising order of experts behind the resident rows.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
  int64_t count() const { return std::max<int64_t>(end - begin, 0); }
};
ExpertRange experts_in_place(const SublayerShape& sublayer, const Plan& plan, size_t index,
                             size_t pass_class) {
  ExpertRange range;
  for (size_t w = 0; w < sublayer.weights.size(); ++w) {
    const WeightShape& weight = sublayer.weights[w];
    if (weight.experts == 0 || weight.kind != WeightKind::kMatrix) continue;
    const int64_t first = plan.rows[index][w].resident / weight.expert_rows();
    const int64_t held = plan.classes[pass_class].inplace_rows(index, w) / weight.expert_rows();
    range = {std::max(range.begin, first), std::min(range.end, first + held)};
  }
  return range;
}

void add_products(const ModelShape& model, const Plan& plan, const Profile& profile, size_t index,
                  ComputeStep step, const BatchWork& work, int64_t m, ProductSeconds& products,
                  TaskSeconds& out) {
  const SublayerShape& sublayer = model.sublayers[index];
  double share = 0;  // of the experts, that some row goes to
  int64_t whole = -1;
  for (size_t w = 0; w < sublayer.weights.size(); ++w) {
    const WeightShape& weight = sublayer.weights[w];
    if (!is_computed(sublayer, weight, step)) continue;
    const int64_t inplace = plan.classes[work.pass_class].inplace_rows(index, w);
    const Routed used = routed(model, weight, work, m);
    const auto touched = [&](int64_t count) {
      return static_cast<int64_t>(std::ceil(used.share * static_cast<double>(count)));
    };
    add_product(model, plan, profile, weight,
                {touched(weight.rows - inplace), touched(inplace), used.rows}, products, out);
    if (inplace == 0) continue;
    int64_t by_themselves = inplace;
    if (weight.experts > 0) {
      share = used.share;
      if (whole < 0) whole = experts_in_place(sublayer, plan, index, work.pass_class).count();
      by_themselves -= whole * weight.expert_rows();
    }
    add_row_exchange(model, plan, profile, weight, touched(by_themselves), used.rows, out);
  }
  if (whole <= 0) return;
  out += expert_exchange(model, profile, index, share * static_cast<double>(whole), m, m);
}

// Sparse attention reads all keys and some values. Quantised values of four positions lie together:
// all are read where one is, by chance (1 - the chance of none).
double values_read(double sparsity, KvFormat kv_dtype) {
  if (!kv_dtype.is_quantised()) return sparsity;
  return 1 - std::pow(1 - sparsity, static_cast<double>(KvFormat::kValueBlock));
}

void add_attention(const ModelShape& model, const Plan& plan, const Profile& profile,
                   KvFormat kv_dtype, ComputeStep step, const StatePlace& place,
                   const BatchWork& batch, TaskSeconds& out) {
  const AttentionWork& work = batch.attention[static_cast<size_t>(place.group)];
  const double read = (1 + values_read(plan.attention_sparsity, kv_dtype)) / 2;
  const LayerState& state = model.state_of(place);
  // Of a recurrent state a token reads and writes all, as if it saw two of its size, and computes 4
  // operations an element for each.
  const double fixed_bytes = 4 * static_cast<double>(state.recurrent.floats());
  const double token_bytes =
      state.is_recurrent() ? fixed_bytes : read * static_cast<double>(state.token_bytes(kv_dtype));
  const double pair_flops = state.is_recurrent()
                                ? 4 * static_cast<double>(state.recurrent.matrices_floats())
                                : 2 * static_cast<double>(model.num_heads) *
                                      static_cast<double>(2 * state.width - state.key_columns);
  const double token_flops = state.is_recurrent() ? pair_flops : read * pair_flops;
  if (step == ComputeStep::kHostAttention) {
    out.host +=
        decode_attention_seconds(profile.host, kv_dtype, work.host_history_tokens * token_bytes,
                                 work.host_history_tokens * token_flops) +
        prefill_attention_seconds(profile.host, kv_dtype, work.host_prefill_pairs * pair_flops) +
        profile.host.launch_seconds.value;
    out.host_bytes += (work.host_history_tokens + work.host_prefill_tokens) * token_bytes;
    return;
  }
  if (step == ComputeStep::kAfterAttention) return;
  const Processor& device = profile.device ? *profile.device : profile.host;
  out.device += prefill_attention_seconds(device, kv_dtype, work.prefill_pairs * pair_flops) +
                decode_attention_seconds(device, kv_dtype, work.device_history_tokens * token_bytes,
                                         work.device_history_tokens * token_flops) +
                device.launch_seconds.value;
}

void add_rows(const ModelShape& model, const Plan& plan, const Profile& profile, size_t index,
              ComputeStep step, const BatchWork& work, TaskSeconds& out) {
  const Processor& device = profile.device ? *profile.device : profile.host;
  const SublayerShape& sublayer = model.sublayers[index];
  const auto tokens = static_cast<double>(work.tokens);
  double rows = tokens;
  if (sublayer.kind == SublayerKind::kEmbed) {
    for (size_t w = 0; w < sublayer.weights.size(); ++w) {
      if (sublayer.weights[w].kind != WeightKind::kTable) continue;
      const double on_disk = static_cast<double>(plan.rows[index][w].disk) /
                             static_cast<double>(std::max<int64_t>(sublayer.weights[w].rows, 1));
      if (on_disk > 0)
        out.device +=
            std::ceil(tokens * on_disk / kGatheredRows) * profile.disk().latency_seconds.value;
    }
  } else if (sublayer.kind == SublayerKind::kHead) {
    rows = static_cast<double>(work.logit_rows);
    out.device +=
        rows * static_cast<double>(model.vocab_size) * kLogitBytes / device.memory_read.value;
  }
  const auto add = [&](const RowWork& side) {
    out.device +=
        rows * side.bytes / device.memory_read.value + side.operators * device.launch_seconds.value;
  };
  if (step != ComputeStep::kAfterAttention) add(sublayer.work.before_cut);
  if (step != ComputeStep::kBeforeAttention) add(sublayer.work.after_cut);
}

// How often the host wants to know something before the device goes on: rows of tables that are not
// there, where a router sends its rows, which tokens follow.
double answers_wanted(const ModelShape& model, const Plan& plan, size_t index,
                      const BatchWork& work) {
  const SublayerShape& sublayer = model.sublayers[index];
  if (sublayer.kind == SublayerKind::kHead)
    return std::ceil(static_cast<double>(work.logit_rows) / static_cast<double>(kLogitRows));
  double below = 0;
  for (size_t w = 0; w < sublayer.weights.size(); ++w) {
    const WeightShape& weight = sublayer.weights[w];
    if (weight.experts > 0) return 1;
    if (weight.kind != WeightKind::kTable || sublayer.kind != SublayerKind::kEmbed) continue;
    const double here = static_cast<double>(plan.rows[index][w].resident) /
                        static_cast<double>(std::max<int64_t>(weight.rows, 1));
    below += 1 - std::pow(here, static_cast<double>(work.tokens));
  }
  return below;
}
}  // namespace

double hand_over_seconds(const Profile& profile) noexcept {
  return profile.shares_host_memory() ? profile.device->synchronise_seconds.value : 0;
}

TaskSeconds& TaskSeconds::operator+=(const TaskSeconds& other) noexcept {
  device += other.device;
  host += other.host;
  exchange_down += other.exchange_down;
  exchange_up += other.exchange_up;
  host_bytes += other.host_bytes;
  hand_over += other.hand_over;
  hand_overs += other.hand_overs;
  return *this;
}

TaskSeconds TaskSeconds::times(double count) const noexcept {
  return {device * count,     host * count,      exchange_down * count, exchange_up * count,
          host_bytes * count, hand_over * count, hand_overs * count};
}

void TaskSeconds::add_hand_over(const Profile& profile, double times) noexcept {
  hand_overs += times;
  hand_over += times * hand_over_seconds(profile);
}

size_t ProductSeconds::Hash::operator()(const Product& one) const noexcept {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
  auto hash = static_cast<uint64_t>(one.m);
  for (const int64_t part : {one.n, one.k, static_cast<int64_t>(one.weights.encoding),
                             static_cast<int64_t>(one.processor->threads)})
    hash = (hash ^ (hash >> 29)) * kPrime + static_cast<uint64_t>(part);
  return hash ^ (hash >> 32);
}

double ProductSeconds::operator()(const Processor& processor, const WeightFormat& weights,
                                  bool eight_bit_activations, int64_t m, int64_t n, int64_t k) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const auto [found, is_new] =
      known_.try_emplace({&processor, weights, eight_bit_activations, m, n, k});
  if (is_new) found->second = matmul_seconds(processor, weights, eight_bit_activations, m, n, k);
  return found->second;
}

TaskSeconds compute_seconds(const ModelShape& model, const Plan& plan, const Profile& profile,
                            KvFormat kv_dtype, size_t sublayer, ComputeStep step,
                            const BatchWork& work, ProductSeconds& products) {
  TaskSeconds out;
  const SublayerKind kind = model.sublayers[sublayer].kind;
  const int64_t m = kind == SublayerKind::kHead ? work.logit_rows : work.tokens;
  if (m == 0) return out;
  SLUICE_ASSERT(step != ComputeStep::kSomeExperts, "of these ask expert_seconds()");
  add_products(model, plan, profile, sublayer, step, work, m, products, out);
  if (kind == SublayerKind::kAttention)
    add_attention(model, plan, profile, kv_dtype, step, model.sublayers[sublayer].state, work, out);
  if (step != ComputeStep::kHostAttention && step != ComputeStep::kAfterRoute)
    add_rows(model, plan, profile, sublayer, step, work, out);
  if (step == ComputeStep::kWhole || step == ComputeStep::kUntilRoute)
    out.add_hand_over(profile, answers_wanted(model, plan, sublayer, work));
  return out;
}

TaskSeconds expert_exchange(const ModelShape& model, const Profile& profile, size_t sublayer,
                            double experts, int64_t tokens, int64_t sums) {
  TaskSeconds out;
  const double times = std::min(experts, 1.0);
  const ExpertColumns columns = expert_columns(model.sublayers[sublayer]);
  if (times > 0)
    add_exchange(profile, times, times * static_cast<double>(tokens) * columns.in * 4,
                 times * static_cast<double>(sums) * columns.out * 4, out);
  return out;
}

TaskSeconds expert_seconds(const ModelShape& model, const Plan& plan, const Profile& profile,
                           size_t sublayer, bool in_place, const BatchWork& work,
                           ProductSeconds& products) {
  TaskSeconds out;
  int64_t rows_of_expert = 0;
  for (const WeightShape& weight : model.sublayers[sublayer].weights) {
    if (weight.experts == 0 || weight.kind != WeightKind::kMatrix || work.tokens == 0) continue;
    const int64_t rows = weight.expert_rows();
    rows_of_expert = routed(model, weight, work, work.tokens).rows;
    add_product(model, plan, profile, weight,
                {in_place ? 0 : rows, in_place ? rows : 0, rows_of_expert}, products, out);
  }
  if (in_place) {
    const double up =
        static_cast<double>(rows_of_expert) * expert_columns(model.sublayers[sublayer]).out * 4;
    if (profile.shares_cores) out.host += 3 * up / profile.host.memory_read.value;
    out.exchange_up += up / profile.link.to_device.value;
  }
  return out;
}

double own_seconds(const TaskSeconds& seconds, bool shares_cores) {
  const double held = task_duration(seconds, shares_cores);
  return shares_cores ? held - seconds.host : std::min(held, seconds.device + seconds.hand_over);
}

double task_duration(const TaskSeconds& seconds, bool shares_cores) {
  const double own = std::max(seconds.device, seconds.exchange_down);
  const double host = seconds.exchange_down + seconds.host;
  return (shares_cores ? own + seconds.host : std::max(seconds.device, host)) +
         seconds.exchange_up + seconds.hand_over;
}

}  // namespace sluice::policy
