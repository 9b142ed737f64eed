#include "policy/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/schedule/weight_ring.h"

namespace sluice::policy {

namespace {
// Keeps, over all matrices together, the asked share of bytes to within one granule: what rounding
// gave or took from one matrix is carried to the next.
class ShareCarry {
 public:
  ShareCarry(double share, int64_t granule) : share_(share), granule_(granule) {}

  int64_t rows_of(const WeightShape& weight, int64_t granule) {
    const auto row_bytes = static_cast<double>(weight.cols);
    const double wanted = share_ * static_cast<double>(weight.rows) * row_bytes + carry_;
    auto rows =
        static_cast<int64_t>(std::llround(wanted / row_bytes / static_cast<double>(granule))) *
        granule;
    if (share_ >= 1) rows = weight.rows;
    if (share_ <= 0) rows = 0;
    rows = std::clamp<int64_t>(rows, 0, weight.rows);
    carry_ = wanted - static_cast<double>(rows) * row_bytes;
    return rows;
  }
  int64_t rows_of(const WeightShape& weight) {
    return rows_of(weight, weight.kind == WeightKind::kTable ? 1 : std::min(granule_, weight.rows));
  }

 private:
  double share_;
  int64_t granule_;
  double carry_ = 0;
};

// So many rows are multiplied in less time than their weights take to read, on any disk.
constexpr int64_t kFewSequences = 32;

int64_t pages_of(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

void place_weights(const PlanInput& input, Plan& plan, int64_t& packed, int64_t& vectors,
                   int64_t& table) {
  const ModelShape& model = *input.model;
  const int64_t element = dtype_bytes(model.weight_dtype);
  const double share = plan.policy.weights.device + plan.policy.weights.host;
  int64_t largest_part = 0;
  ShareCarry carry(share, input.row_granule);
  std::optional<int64_t> token_rows;  // resident rows of the token table, which comes first
  for (const SublayerShape& sublayer : model.sublayers) {
    auto& rows = plan.resident_rows.emplace_back();
    int64_t streamed = 0;
    for (const WeightShape& weight : sublayer.weights) {
      const int64_t bytes = weight.rows * weight.cols * element;
      if (weight.kind == WeightKind::kVector) {
        rows.push_back(weight.rows);
        vectors += weight.cols * 4;
        plan.weight_bytes += bytes;
        plan.resident_weight_bytes += bytes;
        continue;
      }
      const int64_t resident = weight.shares_table ? token_rows.value_or(0) : carry.rows_of(weight);
      rows.push_back(resident);
      const int64_t resident_bytes = resident * weight.cols * element;
      if (weight.kind == WeightKind::kTable) {
        if (!token_rows) token_rows = resident;
        table += resident_bytes;
      } else {
        if (!weight.shares_table && resident > 0)
          packed += round_up(input.packed_bytes(resident, weight.cols), 64);
        const int64_t row_bytes = weight.cols * element;
        const int64_t part_rows = weight_part_rows(row_bytes, input.row_granule);
        for (int64_t row = resident; row < weight.rows; row += part_rows) {
          // Where a file's rows begin and end is not known here: up to a block more than needed.
          const int64_t part_bytes = std::min(part_rows, weight.rows - row) * row_bytes;
          const int64_t part = round_up(part_bytes, kDiskBlock) + kDiskBlock;
          streamed += part;
          largest_part = std::max(largest_part, part);
        }
        plan.streamed_weight_bytes += bytes - resident_bytes;
      }
      if (!weight.shares_table) {
        plan.weight_bytes += bytes;
        plan.resident_weight_bytes += resident_bytes;
      }
    }
    plan.streamed_bytes.push_back(streamed);
  }
  // A sublayer computes for as long as a few tokens take to read the next one; with many, reading
  // rests at its end unless the one after that can begin.
  const int64_t sequences = std::min(plan.policy.block_sequences(), input.workload.sequences);
  plan.ring_bytes =
      weight_ring_bytes(plan.streamed_bytes, largest_part, sequences > kFewSequences ? 2 : 1);
}

void place_kv(const PlanInput& input, Plan& plan) {
  const ModelShape& model = *input.model;
  const Policy& policy = plan.policy;
  const int64_t sequences =
      std::min(policy.block_sequences(), std::max<int64_t>(input.workload.sequences, 1));
  const int64_t longest = pages_of(input.workload.max_total_tokens, policy.page_tokens);
  int64_t pages = sequences * longest;
  if (input.workload.total_tokens >
      0)  // mean length, a partial page each, and room for one longest
    pages = std::min(pages, pages_of(input.workload.total_tokens * sequences /
                                         std::max<int64_t>(input.workload.sequences, 1),
                                     policy.page_tokens) +
                                sequences + longest);
  const double disk_share = policy.kv.disk;
  plan.disk_pages =
      disk_share >= 1 ? pages
                      : static_cast<int64_t>(std::llround(disk_share * static_cast<double>(pages)));
  plan.memory_pages = pages - plan.disk_pages;
  plan.page_bytes =
      model.kv_elements_per_token() * policy.page_tokens * dtype_bytes(input.kv_dtype);
  if (plan.disk_pages > 0) {
    const int64_t block_page = round_up(plan.page_bytes, kDiskBlock);
    const int64_t in_micro_batch =
        std::min(plan.disk_pages, policy.micro_batch_sequences * longest);
    plan.kv_slot_bytes = in_micro_batch * block_page;
    plan.disk.push_back({"KV pages", plan.disk_pages * model.num_layers * block_page});
  }
}

void place_activations(const PlanInput& input, Plan& plan) {
  const ModelShape& model = *input.model;
  const Policy& policy = plan.policy;
  const int64_t sequences =
      std::min(policy.block_sequences(), std::max<int64_t>(input.workload.sequences, 1));
  // A pass holds at most every prompt of the block whole.
  int64_t tokens = sequences * std::max<int64_t>(input.workload.max_prompt_tokens, 1);
  if (policy.pass_tokens > 0) tokens = std::min(tokens, policy.pass_tokens);
  plan.pass_tokens = std::max(tokens, sequences);
  if (policy.activations.disk > 0) {
    const int64_t widest = std::min(plan.pass_tokens, policy.micro_batch_tokens);
    const int64_t row = model.hidden_size * 4;
    plan.activation_slot_bytes = round_up(widest * row, kDiskBlock);
    const int64_t micro_batches = pages_of(plan.pass_tokens, policy.micro_batch_tokens) + sequences;
    plan.activation_disk_bytes = static_cast<int64_t>(policy.activations.disk *
                                                      static_cast<double>(plan.pass_tokens * row)) +
                                 micro_batches * kDiskBlock;
    plan.disk.push_back({"activations", round_up(plan.activation_disk_bytes, kDiskBlock)});
  }
}
}  // namespace

int64_t Plan::memory_bytes() const noexcept {
  int64_t sum = 0;
  for (const PlanLine& line : memory) sum += line.bytes;
  return sum;
}

int64_t Plan::disk_bytes() const noexcept {
  int64_t sum = 0;
  for (const PlanLine& line : disk) sum += line.bytes;
  return sum;
}

int64_t Plan::hidden_memory_rows() const noexcept {
  return pass_tokens -
         static_cast<int64_t>(policy.activations.disk * static_cast<double>(pass_tokens) + 1e-9);
}

Plan make_plan(const PlanInput& input, const Policy& policy) {
  Plan plan;
  plan.policy = policy;
  int64_t packed = 0;
  int64_t vectors = 0;
  int64_t table = 0;
  place_weights(input, plan, packed, vectors, table);
  place_kv(input, plan);
  place_activations(input, plan);
  const ModelShape& model = *input.model;
  const int64_t widest = std::min(plan.pass_tokens, policy.micro_batch_tokens);
  plan.memory = {{"program", input.program_bytes},
                 {"resident weights", packed + vectors + table},
                 {"weight ring (streamed)", plan.ring_bytes},
                 {"KV pages", plan.memory_pages * plan.page_bytes * model.num_layers},
                 {"KV staging", plan.kv_slot_bytes * kKvSlots},
                 {"hidden states", plan.hidden_memory_rows() * model.hidden_size * 4},
                 {"activation staging", plan.activation_slot_bytes * kActivationSlots},
                 {"workspace", input.workspace_bytes(widest)}};
  return plan;
}

std::string plan_table(const Plan& plan, int64_t budget) {
  std::string text;
  for (const PlanLine& line : plan.memory)
    if (line.bytes > 0)
      text += fmt::format("  memory  {:<24} {:>10}\n", line.what, format_bytes(line.bytes));
  text += fmt::format("  memory  {:<24} {:>10}  of {}\n", "total",
                      format_bytes(plan.memory_bytes()), format_bytes(budget));
  for (const PlanLine& line : plan.disk)
    if (line.bytes > 0)
      text += fmt::format("  disk    {:<24} {:>10}\n", line.what, format_bytes(line.bytes));
  if (plan.streamed_weight_bytes > 0)
    text += fmt::format("  disk    {:<24} {:>10}  read in every pass\n", "streamed weights",
                        format_bytes(plan.streamed_weight_bytes));
  return text;
}

void require_fit(const PlanInput& input, const Plan& plan) {
  const int64_t total = plan.memory_bytes();
  if (total <= input.memory_budget_bytes) return;
  std::string lines;
  for (const PlanLine& line : plan.memory)
    if (line.bytes > 0)
      lines +=
          fmt::format("{}{} {}", lines.empty() ? "" : ", ", line.what, format_bytes(line.bytes));
  throw Error(
      ErrorKind::kResource,
      fmt::format("memory budget {} is {} short: {}", format_bytes(input.memory_budget_bytes),
                  format_bytes(total - input.memory_budget_bytes), lines),
      fmt::format("raise --cpu-mem to {}, or lower the number of sequences, --ctx-size or "
                  "--micro-batch-tokens, "
                  "or put more on disk in the policy",
                  format_bytes(round_up(total, total >= kGiB        ? 64 * kMiB
                                               : total >= 64 * kMiB ? kMiB
                                                                    : 64 * kKiB))));
}

}  // namespace sluice::policy
