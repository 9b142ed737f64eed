#pragma once
// From a policy to bytes: which rows of which matrix stay in memory, how large the weight ring, the
// KV pools, the staging slots and the workspace are, and whether all of it fits the budget. Pure:
// sizes that belong to kernels come in as functions. Everything the engine allocates later is a
// line of this plan.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/alike_sublayers.h"
#include "policy/pass_estimates.h"
#include "policy/policy.h"
#include "policy/routing_model.h"
#include "src/base/shared_list.h"
#include "src/schedule/pass_cut.h"
#include "src/schedule/schedule.h"
#include "src/shape/model_shape.h"

namespace sluice::policy {

/// What the run will have to hold.
struct Workload {
  int64_t sequences = 1;  ///< that want to run at the same time, at most
  int64_t max_prompt_tokens = 1;
  int64_t max_total_tokens = 1;  ///< prompt + new, of the longest sequence
  int64_t total_tokens =
      0;  ///< prompt + new, summed over `sequences`; 0: sequences * max_total_tokens
  /// Of total_tokens, those of prompts; 0: in the longest sequence's proportion.
  int64_t prompt_tokens = 0;
  int64_t beams = 1;  ///< sequences that belong together: their KV is all where it is attended
};

/// One is repacked, two are read, two wait.
constexpr int32_t kArrivalSlots = 5;
/// A larger part comes in pieces: larger ones are read no faster.
constexpr int64_t kArrivalBytes = int64_t{4} << 20;

/// What a plan is made for: model, workload, budgets, sizes that kernels need.
struct PlanInput {
  const ModelShape* model = nullptr;
  Workload workload;
  int64_t memory_budget_bytes = 0;  ///< of host memory, which computes when there is no device
  int64_t device_budget_bytes = 0;  ///< of device memory; 0: no device, two tiers
  int64_t disk_budget_bytes = 0;    ///< of offload files; 0: no limit
  int64_t program_bytes = 0;        ///< host memory that the process takes for itself
  KvFormat kv_dtype = DType::kBF16;
  bool eight_bit_activations = false;  ///< of quantised products
  double attention_sparsity = 1;       ///< share of a context's positions whose values are read
  int64_t kv_recent_tokens = 0;        ///< of each sequence, kept in `kv_recent_dtype` too
  DType kv_recent_dtype = DType::kF16;
  int64_t row_granule = 1;  ///< rows of a matrix are kept or streamed in multiples of this; of
                            ///< experts' matrices, in whole experts
  /// Workspace of one micro-batch of `tokens` tokens (activations inside a layer, kernels' scratch,
  /// logits).
  std::function<int64_t(int64_t tokens)> workspace_bytes;
  /// The same for what the host computes beside a device; empty: as workspace_bytes.
  std::function<int64_t(int64_t tokens)> host_workspace_bytes;
  int64_t device_program_bytes = 0;  ///< of the device, for what is not in the plan
  /// Host memory that a device's runner copies through, beside that; empty: none.
  std::function<int64_t(int64_t tokens)> host_staging_bytes;
  bool has_disk = true;              ///< false: nothing may lie below the memory, weights neither
  bool disk_reaches_device = false;  ///< weights need no host memory on their way up
  int64_t load_staging_bytes = 0;    ///< least host memory to load resident weights through
  /// Of a checkpoint that another tool has packed: bytes that are read for rows [row, row + rows)
  /// of a weight, which become others as they come; 0: of this weight they are as in memory; less:
  /// these rows are not read without others, of none in memory. Empty: of all as in memory.
  std::function<int64_t(size_t sublayer, size_t weight, int64_t row, int64_t rows)> packed_bytes;
  int64_t arrival_bytes = kArrivalBytes;  ///< of a piece of them, at most
  double repacked_bytes_per_second = 0;   ///< that they become
  double repack_core_share = 0;           ///< of the cores that compute, while they do
};

/// One line of a budget.
struct PlanLine {
  std::string_view what;  ///< a literal: plans are made by the thousand
  int64_t bytes = 0;
};

/// The rows of one weight by home and executor, in this order within the matrix. Without a device
/// `resident` rows are in host memory and inplace = host = 0.
struct RowSplit {
  int64_t resident = 0;  ///< where it is computed: device memory, or host memory without a device
  int64_t inplace = 0;   ///< in host memory, multiplied by the CPU in some class of passes; of
                         ///< experts that have slots, as many as have one
  int64_t host = 0;      ///< in host memory, sent up in every pass
  int64_t disk = 0;      ///< on disk, read in every pass
};

/// Rows of one matrix that are loaded as one task.
struct PlanPart {
  int64_t weight = 0;  ///< index in its sublayer
  int64_t row = 0;
  int64_t rows = 0;
  bool from_disk = false;
  int64_t bytes = 0;         ///< in the ring; of a part from disk an upper bound with alignment
  int64_t packed_bytes = 0;  ///< that are read for it, where these are others; else 0
  int32_t expert = -1;       ///< whose it is, of a layer whose experts have slots
  /// By class of pass, a bit each: those that load it. Others multiply its rows in place.
  uint32_t classes = ~uint32_t{0};

  bool is_loaded_in(size_t pass_class) const noexcept { return (classes >> pass_class) & 1; }
  /// Of one from disk.
  int64_t read_bytes() const noexcept { return packed_bytes > 0 ? packed_bytes : bytes; }
};

/// What passes of one class do with what lies in host memory.
struct PassClass {
  PassExecution execution;                     ///< with every field filled in
  std::shared_ptr<const InplaceRows> inplace;  ///< plans are copied often
  std::shared_ptr<const AlikeSublayers> alike;
  int64_t inplace_weight_bytes = 0;  ///< of these rows
  int64_t sent_weight_bytes = 0;     ///< of host memory's others: sent up in such a pass

  int64_t inplace_rows(size_t sublayer, size_t weight) const {
    return (*inplace)[sublayer][weight];
  }
};

/// The newest tokens of each sequence once more, in 16 bits, beside quantised pages.
struct RecentPlan {
  /// New tokens of a sequence that go through attention together, at most: the ring keeps what the
  /// first of them sees while the last is written.
  static constexpr int32_t kStepTokens = 64;

  int64_t tokens = 0;      ///< that a query sees in 16 bits; 0: none are kept
  int64_t slots = 0;       ///< sequences
  int64_t slot_pages = 0;  ///< of a sequence in a layer
};

/// Where the KV of a group of layers lies.
struct KvPlan {
  LayerState state;
  int64_t num_layers = 0;
  int64_t num_readers = 0;  ///< StateGroup's, like the next
  std::vector<int64_t> read_layers;
  int64_t page_bytes = 0;  ///< of one layer
  /// Of a window or a recurrent state: pages that a sequence has at a time, at most; each is used
  /// again for the one so many behind it. 0: a sequence keeps all its pages.
  int64_t ring_pages = 0;
  int64_t memory_pages = 0;       ///< per layer, where it is computed
  int64_t host_pages = 0;         ///< per layer, in host memory under a device
  int64_t disk_pages = 0;         ///< per layer
  int64_t slot_pages = 0;         ///< of one staging slot; 0 when none of it is staged
  int64_t host_slot_pages = 0;    ///< from disk, of one staging slot in host memory
  int64_t recent_page_bytes = 0;  ///< of RecentPlan's pages

  /// Pages that are not where the device computes (or, without one, in memory).
  int64_t lower_pages() const noexcept { return host_pages + disk_pages; }
  int64_t pages() const noexcept { return memory_pages + lower_pages(); }
  /// Of all its layers.
  int64_t bytes_of(int64_t pages) const noexcept { return pages * page_bytes * num_layers; }
  int64_t staged_page_bytes() const noexcept;  ///< as pages lie in staging slots and on disk
  /// Pages of a sequence of `tokens` tokens at a time, at most.
  int64_t most_pages(int64_t tokens, int64_t page_tokens) const noexcept {
    const int64_t all = (tokens + page_tokens - 1) / page_tokens;
    return ring_pages > 0 && ring_pages < all ? ring_pages : all;
  }
};

struct Plan {
  Policy policy;
  bool has_device = false;               ///< the machine's: memory of its own, below it the host's
  MachinePaths paths = paths_of_host();  ///< how bytes come from where they lie
  bool eight_bit_activations = false;
  SharedList<std::vector<RowSplit>> rows;   ///< [sublayer][weight]
  SharedList<std::vector<PlanPart>> parts;  ///< [sublayer] what some class streams, in order
  /// [sublayer] Those with slots have a part for each expert, in a slot or not; empty: none has.
  SharedList<ScheduleExperts> experts;
  /// Of all slots; what is in them is in resident_weight_bytes, or with a device in
  /// inplace_weight_bytes.
  int64_t expert_slot_bytes = 0;
  int64_t guess_slot_bytes = 0;  ///< of slots for guesses, beside all that
  /// Passes of so many tokens at most load the experts that are asked for, when they are; 0: none.
  /// Beside a device the host multiplies all rows of such a pass, and tokens count as they are;
  /// without one independent tokens count (policy/routing_model.h).
  int64_t demand_tokens = 0;
  std::vector<PassClass> classes;        ///< as Policy::execution has them; at least one
  int64_t ring_bytes = 0;                ///< of the tier that computes
  int64_t host_ring_bytes = 0;           ///< what parts from disk pass through to a device
  int64_t arrival_slot_bytes = 0;        ///< of parts that are repacked as they come; 0: none are
  double repacked_bytes_per_second = 0;  ///< PlanInput's, like the next
  double repack_core_share = 0;
  std::vector<KvPlan> kv;   ///< by ModelShape::state_groups
  int64_t fresh_pages = 0;  ///< on the device, for prompts whose KV goes down while it attends
  /// The same of a pass, for each layer that others read.
  int64_t kept_fresh_pages = 0;
  int64_t attention_slot_rows = 0;  ///< rows of one exchange slot for attention on the host
  int64_t host_rows = 0;  ///< of a micro-batch, most that the CPU computes beside a device
  int64_t host_workspace_bytes = 0;  ///< with a device: of what the CPU computes, and of loading
  int64_t pass_tokens = 0;           ///< hidden-state rows that exist at a time
  int64_t activation_slot_bytes = 0;
  int64_t activation_host_rows = 0;  ///< hidden-state rows in host memory under a device
  int64_t activation_disk_bytes = 0;
  /// What is expected of passes by class and size, of a plan that was searched for; else empty.
  PassEstimates pass_estimates;
  double attention_sparsity = 1;  ///< PlanInput's
  RecentPlan recent;
  int64_t weight_bytes = 0;           ///< of the whole model, tied tables once
  int64_t resident_weight_bytes = 0;  ///< where computed
  int64_t inplace_weight_bytes = 0;   ///< in host memory, multiplied there in some class
  int64_t host_weight_bytes = 0;      ///< in host memory, sent up in every pass
  int64_t host_home_bytes = 0;        ///< all at home in host memory below a device, tables too
  int64_t streamed_weight_bytes = 0;  ///< on disk, read in every pass
  std::vector<PlanLine> device;       ///< every use of device memory; empty without one
  std::vector<PlanLine> memory;       ///< every use of host memory
  std::vector<PlanLine> disk;         ///< offload files (not the checkpoint)

  int64_t device_bytes() const noexcept;
  /// One exchange slot of attention on the host: queries, keys, values, outputs, what is kept, f32.
  int64_t attention_slot_bytes(const ModelShape& model) const noexcept;
  int64_t memory_bytes() const noexcept;
  int64_t disk_bytes() const noexcept;
  /// Rows of the residual stream that stay where they are computed, at most.
  int64_t hidden_memory_rows() const noexcept;
  /// Shares as they come to lie: what asks for the host where no device is, is where it computes.
  TierShares placed(const TierShares& asked) const noexcept {
    return has_device ? asked : TierShares{asked.device + asked.host, 0, asked.disk};
  }
  /// Whether KV below the device is attended there in some class of passes, or in this one.
  bool host_attends() const noexcept {
    return has_device && policy.any_attends_on(AttentionPlace::kHost);
  }
  /// Whether such passes load experts when they are asked for.
  bool demands_experts(const RoutedTokens& tokens) const noexcept {
    const double counted = has_device ? static_cast<double>(tokens.all) : tokens.independent;
    return counted <= static_cast<double>(demand_tokens) || always_demands();
  }
  /// Whether passes of a token of each of so many sequences do.
  bool demands_experts(int64_t sequences) const noexcept {
    return demands_experts(RoutedTokens{sequences, static_cast<double>(sequences)});
  }
  /// Whether no pass loads experts ahead.
  bool always_demands() const noexcept { return demand_tokens >= kAlwaysDemands; }
  /// The most tokens of a pass that asks, for people: "36 tokens (190 of one prompt)".
  std::string demand_text() const;
  /// Of streamed_weight_bytes, what the largest passes read: all, or all but what they ask for.
  int64_t loaded_ahead_bytes() const noexcept;
  /// Most rows of a micro-batch that asks for experts.
  int64_t asking_rows() const noexcept;
  /// f32 that a micro-batch's experts leave their answers in, until all have been computed.
  int64_t expert_answers(const ModelShape& model) const noexcept;
  bool host_attends(size_t pass_class) const noexcept {
    return has_device && classes[pass_class].execution.attention == AttentionPlace::kHost;
  }
  /// Most rows of a micro-batch of a class.
  int64_t micro_batch_rows(size_t pass_class) const noexcept {
    return std::min(pass_tokens, classes[pass_class].execution.micro_batch_tokens);
  }
  /// Bytes of KV pages: where it is computed, in host memory under a device, on disk.
  int64_t kv_memory_bytes() const noexcept;
  int64_t kv_host_bytes() const noexcept;
  int64_t kv_disk_bytes() const noexcept;
  /// Of one staging slot, which pages of any group pass through: where it is computed, and in host
  /// memory.
  int64_t kv_slot_bytes() const noexcept;
  int64_t host_kv_slot_bytes() const noexcept;
  int64_t most_page_bytes() const noexcept;  ///< of any group's that is attended
  int64_t recent_bytes() const noexcept;
  int64_t fresh_bytes() const noexcept;  ///< of pages for fresh prompts
  /// Whether some pages are not where the device computes (or, without one, in memory).
  bool has_lower_pages() const noexcept;
};

constexpr int32_t kKvSlots = 2;
constexpr int32_t kActivationSlots = 3;
constexpr int32_t kAttentionSlots = 3;
constexpr int64_t kDiskBlock = 4096;

/// Sizes for `policy`; does not look at the budget. Errors: none.
Plan make_plan(const PlanInput& input, const Policy& policy);

/// Makes plans of one input, as make_plan() does, for many policies: what is the same for the same
/// shares of weights is worked out once. Not for several threads.
class PlanMaker {
 public:
  /// `input` stays where it is, and as it is.
  explicit PlanMaker(const PlanInput& input);
  ~PlanMaker();
  Plan operator()(const Policy& policy);

 private:
  struct Placed;
  const Placed& placed(const Policy& policy);

  const PlanInput& input_;
  std::vector<size_t> shapes_;  // shaped_alike()
  std::vector<std::unique_ptr<Placed>> placed_;
};

/// What the schedule of a plan is made from: rings, slots, parts with upper-bound bytes.
ScheduleShape schedule_shape(const ModelShape& model, const Plan& plan);
/// What its passes of a class are cut by.
PassLimits pass_limits(const Plan& plan, size_t pass_class = 0);

/// How often weights of `bytes`, on their way from the disk through the ring, wait for an answer of
/// the disk: what there is room for is asked for together, comes together and is computed on
/// together, half of the ring at a time.
double ring_waits(const Plan& plan, double bytes) noexcept;

/// That a part from disk takes to become what kernels multiply, beside being read; 0: it is that.
double repack_seconds(const Plan& plan, const PlanPart& part) noexcept;

/// Whether anything of the model or of its state lies on disk.
bool uses_disk(const Plan& plan) noexcept;

/// Whether every tier's budget holds, and nothing lies on a disk that is not there.
bool fits(const PlanInput& input, const Plan& plan) noexcept;

/// Errors: kResource with every line of the plan and the smallest change that helps, when a tier is
/// over its budget, or kUser when something lies on a disk that is not there.
void require_fit(const PlanInput& input, const Plan& plan);

/// The plan's table, one line each: tier, use, size; totals against the budgets (0: none).
std::string plan_table(const Plan& plan, int64_t memory_budget_bytes,
                       int64_t device_budget_bytes = 0, int64_t disk_budget_bytes = 0);

/// A policy that fills the budget: all resident when that fits; else resident weights first, the
/// rest streamed, and as many sequences in a block as KV allows (at most half of what is free).
/// `fixed` holds fields the user has set already. Errors: kResource when not even one sequence with
/// all weights and KV on disk fits.
Plan default_plan(const PlanInput& input, const Policy& start);

}  // namespace sluice::policy
