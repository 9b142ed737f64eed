#include "policy/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "policy/plan_rows.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/schedule/weight_ring.h"

namespace sluice::policy {

namespace {
// So many rows are multiplied in less time than their weights take to read, on any disk.
constexpr int64_t kFewSequences = 32;

int64_t pages_of(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

// Pages of a group that a micro-batch brings up from below a device that attends to them, at most.
// `of_one`: of a sequence.
int64_t pages_brought_up(const PlanInput& input, const Plan& plan, const KvPlan& kv,
                         int64_t of_one) {
  const Policy& policy = plan.policy;
  int64_t sequences = 0;
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const bool on_host = plan.host_attends(i);
    if (on_host && policy.host_attention_tokens == 0) continue;
    int64_t together = on_host ? 1 : policy.micro_batch_sequences;
    // Where small passes attend on the host, larger ones bring up what their prompts' chunks need.
    if (plan.host_attends())
      together =
          std::min(together, pages_of(plan.classes[i].execution.micro_batch_tokens,
                                      std::max<int64_t>(input.workload.max_prompt_tokens, 1)) +
                                 1);
    sequences = std::max(sequences, together);
  }
  return std::min(kv.lower_pages(), sequences * of_one);
}

int64_t block_sequences(const PlanInput& input, const Policy& policy) {
  return std::min(policy.block_sequences(), std::max<int64_t>(input.workload.sequences, 1));
}

// A pass holds at most every prompt of the block whole.
void size_pass(const PlanInput& input, Plan& plan) {
  const int64_t sequences = block_sequences(input, plan.policy);
  int64_t tokens = sequences * std::max<int64_t>(input.workload.max_prompt_tokens, 1);
  if (plan.policy.pass_tokens > 0) tokens = std::min(tokens, plan.policy.pass_tokens);
  plan.pass_tokens = std::max(tokens, sequences);
}

// Where the pages of one group of layers lie. `device_sets`: of sequences that are wholly where it
// is computed, as the first group has them.
void place_group(const PlanInput& input, const Plan& plan, std::optional<int64_t>& device_sets,
                 KvPlan& kv) {
  const Policy& policy = plan.policy;
  const int64_t sequences = block_sequences(input, policy);
  int64_t chunk = 1;
  for (size_t i = 0; i < plan.classes.size(); ++i)
    chunk = std::max(chunk, plan.micro_batch_rows(i));
  // Layers that read what another keeps come when it has written all of the pass.
  if (kv.num_readers > 0) chunk = plan.pass_tokens;
  const int64_t longest = pages_of(input.workload.max_total_tokens, policy.page_tokens);
  const int64_t beams = std::clamp<int64_t>(input.workload.beams, 1, sequences);
  const bool is_recurrent = kv.state.is_recurrent();
  if (is_recurrent)
    kv.ring_pages = LayerState::kRecurrentPages;
  else if (kv.state.window > 0)
    kv.ring_pages = most_window_pages(kv.state.window, chunk, policy.page_tokens);
  // And of a recurrent state one for a known beginning.
  const int64_t of_one =
      kv.most_pages(input.workload.max_total_tokens, policy.page_tokens) + (is_recurrent ? 1 : 0);
  // The sequences of a beam search share pages, and find room together.
  const int64_t together = of_one * beams;
  int64_t pages = sequences * of_one;
  if (input.workload.total_tokens >
      0)  // mean length, a partial page each, and room for the longest
    pages = std::min(pages, pages_of(input.workload.total_tokens * sequences /
                                         std::max<int64_t>(input.workload.sequences, 1),
                                     policy.page_tokens) +
                                sequences + longest * beams);
  const auto share_of = [](double share, int64_t of) {
    return share >= 1 ? of : static_cast<int64_t>(std::llround(share * static_cast<double>(of)));
  };
  const double host_share = plan.placed(policy.kv).host;
  const double lower_share = host_share + policy.kv.disk;
  kv.memory_pages = pages - share_of(lower_share, pages);
  // A sequence whose attention runs on the host has all its pages below the device, and so have the
  // others of its beam search.
  if (plan.host_attends() && kv.memory_pages < pages) {
    if (!device_sets) device_sets = (kv.memory_pages + together / 2) / together;
    kv.memory_pages = std::min(pages, *device_sets * together);
  }
  const int64_t lower = pages - kv.memory_pages;
  kv.disk_pages = lower_share > 0 ? share_of(policy.kv.disk / lower_share, lower) : 0;
  kv.host_pages = lower - kv.disk_pages;
  kv.page_bytes = kv.state.page_bytes(input.kv_dtype, policy.page_tokens);
  const int64_t in_micro_batch = policy.micro_batch_sequences * of_one;
  if (is_recurrent) {
    // One page may be read and written under two numbers; a device has what it computes on up.
    const int64_t staged = policy.micro_batch_sequences * kMostRecurrentPages;
    kv.slot_pages = kv.lower_pages() > 0 ? staged : 0;
    kv.host_slot_pages = kv.disk_pages > 0 && plan.paths.state.stops_between() > 0 ? staged : 0;
    return;
  }
  if (plan.paths.state.stops_between() > 0) {
    kv.slot_pages = pages_brought_up(input, plan, kv, of_one);
    kv.host_slot_pages = std::min(kv.disk_pages, in_micro_batch);
  } else {
    kv.slot_pages = std::min(kv.disk_pages, in_micro_batch);
  }
}

void place_kv(const PlanInput& input, Plan& plan) {
  const Policy& policy = plan.policy;
  plan.attention_sparsity = input.attention_sparsity;
  std::optional<int64_t> device_sets;
  for (const StateGroup& group : input.model->state_groups) {
    KvPlan& kv = plan.kv.emplace_back();
    kv.state = group.state;
    kv.num_layers = group.num_layers;
    kv.num_readers = group.num_readers;
    kv.read_layers = group.read_layers;
    place_group(input, plan, device_sets, kv);
    if (input.kv_recent_tokens > 0)
      kv.recent_page_bytes = kv.state.token_bytes(input.kv_recent_dtype) * policy.page_tokens;
  }
  if (input.kv_recent_tokens > 0) {
    const int64_t written = input.model->has_readers()
                                ? std::max<int64_t>(plan.pass_tokens, RecentPlan::kStepTokens)
                                : RecentPlan::kStepTokens;
    plan.recent = {
        input.kv_recent_tokens, block_sequences(input, policy),
        pages_of(std::min(input.kv_recent_tokens + written, input.workload.max_total_tokens),
                 policy.page_tokens) +
            1};
  }
  if (const int64_t bytes = plan.kv_disk_bytes(); bytes > 0)
    plan.disk.push_back({"KV pages", bytes});
}

void place_activations(const PlanInput& input, Plan& plan) {
  const ModelShape& model = *input.model;
  const Policy& policy = plan.policy;
  const int64_t sequences = block_sequences(input, policy);
  const int64_t widest = std::min(plan.pass_tokens, policy.micro_batch_tokens);
  const int64_t row = model.hidden_row_bytes();
  const double host_share = plan.placed(policy.activations).host;
  // Rows are dealt micro-batch by micro-batch: each boundary may be a row off.
  if (host_share > 0)
    plan.activation_host_rows = std::min(
        plan.pass_tokens,
        static_cast<int64_t>(std::ceil(host_share * static_cast<double>(plan.pass_tokens))) + 1);
  if (policy.activations.disk > 0 || host_share > 0)
    plan.activation_slot_bytes = round_up(widest * row, kDiskBlock);
  if (policy.activations.disk > 0) {
    int64_t smallest = policy.micro_batch_tokens;  // of the class that cuts its passes finest
    for (size_t i = 0; i < plan.classes.size(); ++i)
      smallest = std::min(smallest, plan.micro_batch_rows(i));
    const int64_t micro_batches = pages_of(plan.pass_tokens, smallest) + sequences;
    plan.activation_disk_bytes = static_cast<int64_t>(policy.activations.disk *
                                                      static_cast<double>(plan.pass_tokens * row)) +
                                 micro_batches * kDiskBlock;
    plan.disk.push_back({"activations", round_up(plan.activation_disk_bytes, kDiskBlock)});
  }
  for (size_t i = 0; i < plan.classes.size() && plan.has_lower_pages(); ++i)
    if (plan.host_attends(i))
      plan.attention_slot_rows = std::max(plan.attention_slot_rows, plan.micro_batch_rows(i));
  if (const int64_t rows = plan.attention_slot_rows; rows > 0)
    plan.fresh_pages =
        pages_of(rows, policy.page_tokens) + std::min(policy.micro_batch_sequences, rows);
  if (plan.attention_slot_rows > 0 && model.has_readers())
    plan.kept_fresh_pages = pages_of(plan.pass_tokens, policy.page_tokens) +
                            std::min(block_sequences(input, policy), plan.pass_tokens);
  for (size_t i = 0; i < plan.classes.size(); ++i)
    if (plan.classes[i].inplace_weight_bytes > 0 ||
        (plan.host_attends(i) && plan.has_lower_pages()))
      plan.host_rows = std::max(plan.host_rows, plan.micro_batch_rows(i));
  if (plan.has_device && plan.demand_tokens > 0)
    plan.host_rows = std::max(plan.host_rows, plan.asking_rows());
}

void list_host_memory(const PlanInput& input, const WeightMemory& memory, Plan& plan) {
  const ModelShape& model = *input.model;
  const bool has_disk_rows = plan.policy.activations.disk > 0;
  const int64_t widest = std::min(plan.pass_tokens, plan.policy.micro_batch_tokens);
  const auto& host_workspace =
      input.host_workspace_bytes ? input.host_workspace_bytes : input.workspace_bytes;
  const int64_t host_computes = plan.host_rows > 0 ? host_workspace(plan.host_rows) : 0;
  plan.host_workspace_bytes =
      round_up(std::max(input.load_staging_bytes, host_computes), kDiskBlock) +
      (input.host_staging_bytes ? input.host_staging_bytes(widest) : 0);
  plan.memory = {
      {"program", input.program_bytes},
      {"experts in slots", plan.expert_slot_bytes},
      {"experts guessed", plan.guess_slot_bytes},
      {"weights computed in place", memory.inplace},
      {"weights sent up", memory.host},
      {"weight ring (from disk)", plan.host_ring_bytes},
      {"KV pages", plan.kv_host_bytes()},
      {"KV staging", plan.host_kv_slot_bytes() * kKvSlots},
      {"hidden states", plan.activation_host_rows * model.hidden_row_bytes()},
      {"activation staging", has_disk_rows ? plan.activation_slot_bytes * kActivationSlots : 0},
      {"attention exchange", plan.attention_slot_bytes(model) * kAttentionSlots},
      {"workspace", plan.host_workspace_bytes}};
}
}  // namespace

int64_t Plan::attention_slot_bytes(const ModelShape& model) const noexcept {
  int64_t columns = 0;
  for (const KvPlan& group : kv)
    columns = std::max(columns,
                       2 * model.num_heads * group.state.width + group.state.elements_per_token());
  return round_up(attention_slot_rows * 4 * (columns + model.kept_columns), 64);
}

int64_t KvPlan::staged_page_bytes() const noexcept {
  return disk_pages > 0 ? round_up(page_bytes, kDiskBlock) : page_bytes;
}

int64_t Plan::kv_memory_bytes() const noexcept {
  int64_t sum = 0;
  for (const KvPlan& group : kv) sum += group.bytes_of(group.memory_pages);
  return sum;
}

int64_t Plan::kv_host_bytes() const noexcept {
  int64_t sum = 0;
  for (const KvPlan& group : kv) sum += group.bytes_of(group.host_pages);
  return sum;
}

int64_t Plan::kv_disk_bytes() const noexcept {
  int64_t sum = 0;
  for (const KvPlan& group : kv)
    sum += group.disk_pages * group.num_layers * round_up(group.page_bytes, kDiskBlock);
  return sum;
}

int64_t Plan::kv_slot_bytes() const noexcept {
  int64_t most = 0;
  for (const KvPlan& group : kv)
    most = std::max(most, group.slot_pages * group.staged_page_bytes());
  return most;
}

int64_t Plan::host_kv_slot_bytes() const noexcept {
  int64_t most = 0;
  for (const KvPlan& group : kv)
    most = std::max(most, group.host_slot_pages * round_up(group.page_bytes, kDiskBlock));
  return most;
}

int64_t Plan::most_page_bytes() const noexcept {
  int64_t most = 0;
  for (const KvPlan& group : kv)
    if (!group.state.is_recurrent()) most = std::max(most, group.page_bytes);
  return most;
}

int64_t Plan::fresh_bytes() const noexcept {
  int64_t sum = fresh_pages * most_page_bytes();
  for (const KvPlan& group : kv)
    sum += kept_fresh_pages * group.page_bytes * std::ssize(group.read_layers);
  return sum;
}

int64_t Plan::recent_bytes() const noexcept {
  int64_t sum = 0;
  for (const KvPlan& group : kv)
    sum += group.num_layers * recent.slots * recent.slot_pages * group.recent_page_bytes;
  return sum;
}

bool Plan::has_lower_pages() const noexcept {
  return std::any_of(kv.begin(), kv.end(),
                     [](const KvPlan& group) { return group.lower_pages() > 0; });
}

int64_t Plan::device_bytes() const noexcept {
  int64_t sum = 0;
  for (const PlanLine& line : device) sum += line.bytes;
  return sum;
}

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

int64_t Plan::loaded_ahead_bytes() const noexcept {
  if (!always_demands()) return streamed_weight_bytes;
  int64_t asked = 0;
  for (size_t i = 0; i < parts.size(); ++i)
    for (const int32_t first : experts[i].first_parts)
      asked += (experts[i].others() - experts[i].slots) *
               parts[i][static_cast<size_t>(first)].read_bytes();
  return std::max(streamed_weight_bytes - asked, int64_t{0});
}

std::string Plan::demand_text() const {
  if (has_device) return fmt::format("{} tokens", demand_tokens);
  const int64_t run = longest_run(static_cast<double>(demand_tokens), kAlwaysDemands);
  return fmt::format("{} tokens ({} of one prompt)", demand_tokens, run);
}

int64_t Plan::asking_rows() const noexcept {
  const int64_t rows = std::min(pass_tokens, policy.micro_batch_tokens);
  if (has_device || always_demands()) return std::min(demand_tokens, rows);
  return longest_run(static_cast<double>(demand_tokens), rows);
}

int64_t Plan::expert_answers(const ModelShape& model) const noexcept {
  return asking_rows() * model.experts_per_token * model.hidden_size;
}

int64_t Plan::hidden_memory_rows() const noexcept {
  const double lower = policy.activations.disk + placed(policy.activations).host;
  return pass_tokens - static_cast<int64_t>(lower * static_cast<double>(pass_tokens) + 1e-9);
}

struct PlanMaker::Placed {
  TierShares shares;
  std::vector<double> inplace;  // [class]
  bool is_many = false;
  int64_t demand_tokens = 0;
  int64_t guess_slots = 0;
  Plan plan;  // all that place_weights says
  WeightMemory memory;
};

PlanMaker::PlanMaker(const PlanInput& input) : input_(input), shapes_(shaped_alike(*input.model)) {}
PlanMaker::~PlanMaker() = default;

const PlanMaker::Placed& PlanMaker::placed(const Policy& policy) {
  const bool is_many =
      std::min(policy.block_sequences(), input_.workload.sequences) > kFewSequences;
  std::vector<double> inplace;
  for (size_t i = 0; i < policy.pass_classes(); ++i)
    inplace.push_back(policy.execution(i).inplace_host_fraction);
  for (const auto& one : placed_)
    if (one->shares == policy.weights && one->is_many == is_many && one->inplace == inplace &&
        one->demand_tokens == policy.demand_tokens && one->guess_slots == policy.guess_slots)
      return *one;
  constexpr size_t kMostKept = 32;  // an LP asks for nine corners, a mixture for three LPs
  if (placed_.size() >= kMostKept) placed_.erase(placed_.begin());
  auto made = std::make_unique<Placed>();
  made->shares = policy.weights;
  made->inplace = std::move(inplace);
  made->is_many = is_many;
  made->demand_tokens = policy.demand_tokens;
  made->guess_slots = policy.guess_slots;
  made->plan.policy = policy;
  made->plan.classes.resize(policy.pass_classes());
  made->plan.has_device = input_.device_budget_bytes > 0;
  if (made->plan.has_device) made->plan.paths = paths_of_device(input_.disk_reaches_device);
  made->plan.eight_bit_activations = input_.eight_bit_activations;
  made->memory = place_weights(input_, shapes_, is_many, made->plan);
  placed_.push_back(std::move(made));
  return *placed_.back();
}

Plan PlanMaker::operator()(const Policy& policy) {
  const PlanInput& input = input_;
  const Placed& weights = placed(policy);
  const WeightMemory& memory = weights.memory;
  Plan plan = weights.plan;
  plan.policy = policy;
  plan.policy.page_tokens = page_tokens_of(policy, input.kv_dtype, input.workload.max_total_tokens);
  for (size_t i = 0; i < plan.classes.size(); ++i)
    plan.classes[i].execution = plan.policy.execution(i);
  size_pass(input, plan);
  place_kv(input, plan);
  place_activations(input, plan);
  const ModelShape& model = *input.model;
  const int64_t widest = std::min(plan.pass_tokens, policy.micro_batch_tokens);
  std::vector<PlanLine> compute_tier = {
      {"resident weights", memory.resident + memory.vectors + memory.table},
      {"experts in slots", plan.has_device ? 0 : plan.expert_slot_bytes},
      {"experts guessed", plan.has_device ? 0 : plan.guess_slot_bytes},
      {"experts' answers", plan.expert_answers(model) * 4},
      {"weight ring (streamed)", plan.ring_bytes},
      {"KV pages", plan.kv_memory_bytes()},
      {"KV staging", plan.kv_slot_bytes() * kKvSlots},
      {"KV of fresh prompts", plan.fresh_bytes()},
      {"recent KV in 16 bits", plan.recent_bytes()},
      {"hidden states", plan.hidden_memory_rows() * model.hidden_row_bytes()},
      {"activation staging", plan.activation_slot_bytes * kActivationSlots},
      {"attention exchange", plan.attention_slot_bytes(model) * kAttentionSlots},
      {"workspace", input.workspace_bytes(widest)}};
  const PlanLine arrivals{"weights as they arrive", plan.arrival_slot_bytes * kArrivalSlots};
  if (plan.has_device) {
    if (input.device_program_bytes > 0)
      compute_tier.push_back({"rounding to pages", input.device_program_bytes});
    plan.device = std::move(compute_tier);
    list_host_memory(input, memory, plan);
    plan.memory.push_back(arrivals);
  } else {
    plan.memory = {{"program", input.program_bytes}, arrivals};
    plan.memory.insert(plan.memory.end(), compute_tier.begin(), compute_tier.end());
  }
  return plan;
}

Plan make_plan(const PlanInput& input, const Policy& policy) { return PlanMaker(input)(policy); }

std::string plan_table(const Plan& plan, int64_t memory_budget_bytes, int64_t device_budget_bytes,
                       int64_t disk_budget_bytes) {
  std::string text;
  const auto tier = [&](const char* name, const std::vector<PlanLine>& lines, int64_t budget) {
    int64_t sum = 0;
    for (const PlanLine& line : lines) {
      sum += line.bytes;
      if (line.bytes > 0)
        text += fmt::format("  {:<7} {:<26} {:>10}\n", name, line.what, format_bytes(line.bytes));
    }
    if (budget > 0)
      text += fmt::format("  {:<7} {:<26} {:>10}  of {}\n", name, "total", format_bytes(sum),
                          format_bytes(budget));
  };
  tier("device", plan.device, device_budget_bytes);
  tier(plan.has_device ? "host" : "memory", plan.memory, memory_budget_bytes);
  tier("disk", plan.disk, disk_budget_bytes);
  if (plan.host_weight_bytes > 0)
    text += fmt::format("  {:<7} {:<26} {:>10}  sent up in every pass\n", "host", "weights",
                        format_bytes(plan.host_weight_bytes));
  if (plan.streamed_weight_bytes > 0)
    text += fmt::format("  {:<7} {:<26} {:>10}  read in every pass{}{}\n", "disk",
                        "streamed weights", format_bytes(plan.loaded_ahead_bytes()),
                        plan.demand_tokens == 0 ? ""
                        : plan.always_demands()
                            ? " but for experts, which are read when they are asked for"
                            : fmt::format(" of more than {}; smaller ones read the experts they "
                                          "ask for",
                                          plan.demand_text()),
                        plan.arrival_slot_bytes == 0
                            ? ""
                            : fmt::format(", repacked as they come at {:.2f} GB/s",
                                          plan.repacked_bytes_per_second / 1e9));
  return text;
}

double ring_waits(const Plan& plan, double bytes) noexcept {
  const int64_t ring =
      plan.paths.weights_from_disk.stops_between() > 0 ? plan.host_ring_bytes : plan.ring_bytes;
  return ring > 0 ? 2 * bytes / static_cast<double>(ring) : 0;
}

double repack_seconds(const Plan& plan, const PlanPart& part) noexcept {
  if (part.packed_bytes == 0 || plan.repacked_bytes_per_second <= 0) return 0;
  return static_cast<double>(part.bytes) / plan.repacked_bytes_per_second;
}

bool uses_disk(const Plan& plan) noexcept {
  const auto is_below = [](const RowSplit& split) { return split.disk > 0; };
  return plan.disk_bytes() > 0 ||
         std::any_of(plan.rows.begin(), plan.rows.end(), [&](const std::vector<RowSplit>& rows) {
           return std::any_of(rows.begin(), rows.end(), is_below);
         });
}

bool fits(const PlanInput& input, const Plan& plan) noexcept {
  return (input.has_disk || !uses_disk(plan)) && plan.memory_bytes() <= input.memory_budget_bytes &&
         (!plan.has_device || plan.device_bytes() <= input.device_budget_bytes) &&
         (input.disk_budget_bytes <= 0 || plan.disk_bytes() <= input.disk_budget_bytes);
}

namespace {
void require_tier(const char* tier, const char* parameter, const std::vector<PlanLine>& lines,
                  int64_t total, int64_t budget) {
  if (total <= budget) return;
  std::string uses;
  for (const PlanLine& line : lines)
    if (line.bytes > 0)
      uses += fmt::format("{}{} {}", uses.empty() ? "" : ", ", line.what, format_bytes(line.bytes));
  const int64_t unit = total >= kGiB ? 64 * kMiB : total >= 64 * kMiB ? kMiB : 64 * kKiB;
  throw Error(
      ErrorKind::kResource,
      fmt::format("{} budget {} is {} short: {}", tier, format_bytes(budget),
                  format_bytes(total - budget), uses),
      fmt::format(
          "raise {} to {}, or lower the number of sequences, "
          "`context_tokens` or `micro_batch_tokens`, or put more on a lower tier in the policy",
          parameter, format_bytes(round_up(total, unit))));
}
}  // namespace

void require_fit(const PlanInput& input, const Plan& plan) {
  if (plan.has_device)
    require_tier("device memory", "`device_budget_bytes`", plan.device, plan.device_bytes(),
                 input.device_budget_bytes);
  require_tier(plan.has_device ? "host memory" : "memory", "`memory_budget_bytes`", plan.memory,
               plan.memory_bytes(), input.memory_budget_bytes);
  if (!input.has_disk && uses_disk(plan))
    throw Error(ErrorKind::kUser, "the policy has a share on disk, and the machine has no disk",
                "give the disk's shares to host and device");
  if (input.disk_budget_bytes > 0)
    require_tier("disk", "`disk_budget_bytes`", plan.disk, plan.disk_bytes(),
                 input.disk_budget_bytes);
}

}  // namespace sluice::policy
