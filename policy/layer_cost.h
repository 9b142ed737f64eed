#pragma once
// Seconds that one micro-batch takes in one sublayer, on the device and on the host, from a
// profile. The LP sums these over a pass, the simulator asks for each task: one model, two uses.
#include <unordered_map>
#include <vector>

#include "policy/plan.h"
#include "policy/profile.h"
#include "src/schedule/task.h"
#include "src/shape/model_shape.h"

namespace sluice::policy {

/// What attention of one micro-batch computes in each layer of a group.
struct AttentionWork {
  /// Visible (query, key) pairs of chunks of more than one token, summed over their rows, by where
  /// the attention runs.
  double prefill_pairs = 0;
  double host_prefill_pairs = 0;
  double host_prefill_tokens = 0;  ///< that they see, of history and their own, on the host
  /// Tokens of history that single-token rows attend to, summed over these rows, by where the
  /// attention runs.
  double device_history_tokens = 0;
  double host_history_tokens = 0;

  void scale(double factor) noexcept {
    for (double* one : {&prefill_pairs, &host_prefill_pairs, &host_prefill_tokens,
                        &device_history_tokens, &host_history_tokens})
      *one *= factor;
  }
  bool operator==(const AttentionWork&) const = default;
};

/// What one micro-batch computes in every layer of a pass.
struct BatchWork {
  size_t pass_class = 0;                 ///< of its pass: says which rows the host multiplies
  int64_t tokens = 0;                    ///< rows of the linear layers
  double independent_tokens = 0;         ///< of these, as they route (policy/routing_model.h)
  int64_t logit_rows = 0;                ///< rows whose logits are wanted
  int64_t host_rows = 0;                 ///< rows whose attention runs on the host
  std::vector<AttentionWork> attention;  ///< by group of layers

  bool operator==(const BatchWork&) const = default;
};

/// What one task takes of each resource.
struct TaskSeconds {
  double device = 0;         ///< device compute
  double host = 0;           ///< host compute inside a device task (in-place rows)
  double exchange_down = 0;  ///< link time inside a device task: inputs of in-place rows
  double exchange_up = 0;    ///< their outputs
  double host_bytes = 0;     ///< of host memory, that the host's part reads (not those of the link)
  /// That the device stands while the host learns that the task has ended, or where it has routed.
  double hand_over = 0;
  double hand_overs = 0;  ///< times that the host waits for the device, those within it included

  TaskSeconds& operator+=(const TaskSeconds& other) noexcept;
  TaskSeconds times(double count) const noexcept;
  /// One more at its end.
  void add_hand_over(const Profile& profile, double times = 1) noexcept;
};

/// Seconds of one hand-over from a device to the host; 0 where no device has work of its own queued
/// (none, or an emulated one).
double hand_over_seconds(const Profile& profile) noexcept;

/// matmul_seconds(), each product asked for once: sublayers that are cut alike but for a few rows
/// have most of theirs in common. Of processors that stay where they are, and as they are.
class ProductSeconds {
 public:
  double operator()(const Processor& processor, const WeightFormat& weights,
                    bool eight_bit_activations, int64_t m, int64_t n, int64_t k);

 private:
  struct Product {
    const Processor* processor;
    WeightFormat weights;
    bool eight_bit_activations;
    int64_t m;
    int64_t n;
    int64_t k;
    bool operator==(const Product&) const = default;
  };
  struct Hash {
    size_t operator()(const Product& one) const noexcept;
  };
  std::unordered_map<Product, double, Hash> known_;
};

/// Seconds of the compute task (sublayer, step) of a micro-batch: what its rows pass through
/// (SublayerShape::work), products with the rows that `plan` leaves to the device and to the host,
/// attention. In the embed sublayer: gathered rows. Not of kSomeExperts. `products`: of this
/// profile's processors.
TaskSeconds compute_seconds(const ModelShape& model, const Plan& plan, const Profile& profile,
                            KvFormat kv_dtype, size_t sublayer, ComputeStep step,
                            const BatchWork& work, ProductSeconds& products);

/// What crosses the link once for all of a layer's experts in host memory below a device: the input
/// of all `tokens` rows goes down, `sums` rows of the sum of their answers come up. `experts`: how
/// many are expected to be asked for; below 1 it is the chance that any is.
TaskSeconds expert_exchange(const ModelShape& model, const Profile& profile, size_t sublayer,
                            double experts, int64_t tokens, int64_t sums);

/// Of one expert (kSomeExperts), whose rows are its mean share of a micro-batch's: where it is
/// computed with the others, or `in_place` in host memory below a device, from where its answers go
/// up by themselves.
TaskSeconds expert_seconds(const ModelShape& model, const Plan& plan, const Profile& profile,
                           size_t sublayer, bool in_place, const BatchWork& work,
                           ProductSeconds& products);

/// Seconds that the device itself computes for such a task; what it is held beyond them it waits
/// for rows in place, whose products are the host's.
double own_seconds(const TaskSeconds& seconds, bool shares_cores);

/// How long the compute lane is held by such a task. In-place rows: their input goes down while the
/// device multiplies its own rows, the host multiplies (beside the device unless they share cores),
/// the output comes up.
double task_duration(const TaskSeconds& seconds, bool shares_cores);

}  // namespace sluice::policy
