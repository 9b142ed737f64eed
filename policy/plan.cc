#include "policy/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/schedule/weight_ring.h"

namespace sluice::policy {

namespace {
// Keeps, over all matrices together, the asked share of bytes to within one granule: what rounding
// gave or took from one matrix is carried to the next.
class ShareCarry {
 public:
  explicit ShareCarry(double share) : share_(share) {}

  int64_t rows_of(const WeightShape& weight, int64_t granule, int64_t bytes_a_row) {
    const auto row_bytes = static_cast<double>(bytes_a_row);
    const double wanted = share_ * static_cast<double>(weight.rows) * row_bytes + carry_;
    auto rows =
        static_cast<int64_t>(std::llround(wanted / row_bytes / static_cast<double>(granule))) *
        granule;
    if (share_ >= 1 - 1e-12) rows = weight.rows;
    if (share_ <= 0) rows = 0;
    rows = std::clamp<int64_t>(rows, 0, weight.rows);
    carry_ = wanted - static_cast<double>(rows) * row_bytes;
    return rows;
  }

 private:
  double share_;
  double carry_ = 0;
};

// A matrix's rows by home, and how many of those in host memory each class multiplies there.
struct ClassSplit : RowSplit {
  std::array<int64_t, kMostPassClasses> inplace_of{};  // [class]
};

// Cuts every matrix at the same shares: what is computed where it lies, what the CPU computes (by
// class), what comes from host memory; the rest is on disk.
class RowSplitter {
 public:
  RowSplitter(const ModelShape& model, const Policy& policy, bool has_device, int64_t granule)
      : model_(model),
        has_device_(has_device),
        granule_(granule),
        resident_(policy.weights.device + (has_device ? 0 : policy.weights.host)),
        host_(policy.weights.device + policy.weights.host) {
    for (size_t i = 0; i < policy.pass_classes(); ++i) {
      const double share = policy.execution(i).inplace_host_fraction;
      multiplies_.push_back(share > 0);
      inplace_.emplace_back(policy.weights.device + share);
    }
  }

  ClassSplit split(const WeightShape& weight) {
    const bool is_table = weight.kind == WeightKind::kTable;
    // Experts are whole where they are.
    const int64_t granule = is_table             ? 1
                            : weight.experts > 0 ? weight.expert_rows()
                                                 : std::min(granule_, weight.rows);
    const int64_t row_bytes = model_.row_bytes(weight);
    const int64_t resident = resident_.rows_of(weight, granule, row_bytes);
    ClassSplit out{{resident, 0, 0, weight.rows - resident}, {}};
    if (!has_device_) return out;
    for (size_t i = 0; i < inplace_.size(); ++i) {
      if (is_table || weight.is_by_head || !multiplies_[i]) continue;
      out.inplace_of[i] =
          std::max(inplace_[i].rows_of(weight, granule, row_bytes), resident) - resident;
      out.inplace = std::max(out.inplace, out.inplace_of[i]);
    }
    const int64_t host =
        std::max(host_.rows_of(weight, granule, row_bytes), resident + out.inplace);
    out.host = host - resident - out.inplace;
    out.disk = weight.rows - host;
    return out;
  }

 private:
  const ModelShape& model_;
  bool has_device_;
  int64_t granule_;
  ShareCarry resident_;
  ShareCarry host_;
  std::vector<ShareCarry> inplace_;  // [class]
  std::vector<bool> multiplies_;     // [class] any rows in place
};

// So many rows are multiplied in less time than their weights take to read, on any disk.
constexpr int64_t kFewSequences = 32;

int64_t pages_of(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

struct WeightMemory {
  int64_t resident = 0;
  int64_t vectors = 0;
  int64_t table = 0;
  int64_t inplace = 0;
  int64_t host = 0;
};

constexpr uint32_t kAllClasses = ~uint32_t{0};

// Rows that are cut into parts: of experts, some of one, or several of them whole.
class PartSizes {
 public:
  PartSizes(const PlanInput& input, const WeightShape& weight)
      : model_(*input.model),
        weight_(weight),
        of_one_(weight.expert_rows()),
        step_(weight_part_rows(model_.row_bytes(weight), input.row_granule)) {
    if (weight.experts > 0) {
      const int64_t whole = std::max(kWeightPartBytes / model_.expert_bytes(weight), int64_t{1});
      is_cut_ = whole == 1 && step_ < of_one_;
      if (!is_cut_) step_ = whole * of_one_;
    }
    whole_ = blocks(step_);
  }

  int64_t step() const noexcept { return step_; }
  /// Of the part that begins with `row`.
  int64_t rows(int64_t row, int64_t end) const noexcept {
    return is_cut_ ? std::min({step_, of_one_ - row % of_one_, end - row})
                   : std::min(step_, end - row);
  }
  /// Where a file's rows begin and end is not known here: up to a block more than needed, of
  /// experts for each of them.
  int64_t bytes(int64_t rows, bool from_disk) const noexcept {
    const int64_t bytes = rows == step_ ? whole_ : blocks(rows);
    if (!from_disk) return bytes;
    return bytes + (weight_.experts > 0 ? 2 * ((rows + of_one_ - 1) / of_one_) : 1) * kDiskBlock;
  }

 private:
  int64_t blocks(int64_t rows) const noexcept {
    return round_up(model_.rows_bytes(weight_, rows), kDiskBlock);
  }

  const ModelShape& model_;
  const WeightShape& weight_;
  int64_t of_one_;  // rows of an expert
  int64_t step_;
  int64_t whole_ = 0;    // bytes of a part of `step_`
  bool is_cut_ = false;  // an expert makes several parts
};

// Of rows that only some classes multiply in place, the others load the parts between their own
// border and the next higher one.
void add_parts(const PlanInput& input, const WeightShape& weight, size_t sublayer, int64_t index,
               const ClassSplit& split, size_t pass_classes, std::vector<PlanPart>& parts) {
  const PartSizes sizes(input, weight);
  const auto cut = [&](int64_t begin, int64_t end, bool from_disk, uint32_t classes) {
    for (int64_t row = begin, rows = 0; row < end; row += rows) {
      rows = sizes.rows(row, end);
      const int64_t bytes = sizes.bytes(rows, from_disk);
      const int64_t packed =
          from_disk && input.packed_bytes
              ? input.packed_bytes(sublayer, static_cast<size_t>(index), row, rows)
              : 0;
      parts.push_back({index, row, rows, from_disk, bytes, packed, classes});
    }
  };
  const auto streamed = static_cast<size_t>((weight.rows - split.resident) / sizes.step());
  if (const size_t room = parts.size() + streamed + pass_classes + 1; room > parts.capacity())
    parts.reserve(std::max(room, 2 * parts.capacity()));
  auto borders = split.inplace_of;
  for (size_t i = pass_classes; i < borders.size(); ++i) borders[i] = borders[0];
  std::sort(borders.begin(), borders.end());
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    if (borders[i] == borders[i + 1]) continue;
    uint32_t classes = 0;
    for (size_t j = 0; j < pass_classes; ++j)
      if (split.inplace_of[j] <= borders[i]) classes |= uint32_t{1} << j;
    cut(split.resident + borders[i], split.resident + borders[i + 1], false, classes);
  }
  const int64_t host_begin = split.resident + split.inplace;
  cut(host_begin, host_begin + split.host, false, kAllClasses);
  cut(host_begin + split.host, weight.rows, true, kAllClasses);
}

// By sublayer; in place by class before that.
struct PlacedRows {
  std::vector<std::vector<RowSplit>> rows;
  std::vector<std::vector<PlanPart>> parts;
  std::vector<InplaceRows> inplace;
};

// Of rows on disk, as they lie there.
int64_t disk_bytes(const PlanInput& input, size_t sublayer, size_t index, const RowSplit& split) {
  const WeightShape& weight = input.model->sublayers[sublayer].weights[index];
  if (split.disk == 0) return 0;
  const int64_t packed =
      input.packed_bytes ? input.packed_bytes(sublayer, index, weight.rows - split.disk, split.disk)
                         : 0;
  return packed > 0 ? packed : input.model->rows_bytes(weight, split.disk);
}

void place_sublayer(const PlanInput& input, const SublayerShape& sublayer, RowSplitter& splitter,
                    std::optional<ClassSplit>& tokens, Plan& plan, PlacedRows& placed,
                    WeightMemory& memory) {
  const ModelShape& model = *input.model;
  const size_t position = placed.rows.size();
  auto& rows = placed.rows.emplace_back();
  auto& parts = placed.parts.emplace_back();
  std::vector<InplaceRows>& inplace = placed.inplace;
  for (InplaceRows& one : inplace) one.emplace_back(sublayer.weights.size(), 0);
  for (size_t index = 0; index < sublayer.weights.size(); ++index) {
    const WeightShape& weight = sublayer.weights[index];
    const auto bytes = [&](int64_t count) { return model.rows_bytes(weight, count); };
    if (weight.kind == WeightKind::kVector) {
      rows.push_back({weight.rows, 0, 0, 0});
      memory.vectors += weight.cols * 4;
      plan.weight_bytes += bytes(weight.rows);
      plan.resident_weight_bytes += bytes(weight.rows);
      continue;
    }
    const ClassSplit split = weight.shares_table && tokens ? *tokens : splitter.split(weight);
    rows.push_back(split);
    const int64_t resident_bytes = bytes(split.resident);
    const int64_t inplace_bytes = bytes(split.inplace);
    const int64_t host_bytes = bytes(split.host);
    if (weight.kind == WeightKind::kTable) {
      if (!tokens) tokens = split;
      memory.table += resident_bytes;
    } else {
      if (!weight.shares_table) memory.resident += round_up(resident_bytes, 64);
      memory.inplace += round_up(inplace_bytes, 64);
      add_parts(input, weight, position, static_cast<int64_t>(index), split, plan.classes.size(),
                parts);
      plan.streamed_weight_bytes += disk_bytes(input, position, index, split);
      plan.host_weight_bytes += host_bytes;
      const int64_t all_host_bytes = bytes(split.inplace + split.host);
      for (size_t i = 0; i < plan.classes.size(); ++i) {
        PassClass& one = plan.classes[i];
        const int64_t own_bytes = bytes(split.inplace_of[i]);
        inplace[i].back()[index] = split.inplace_of[i];
        one.inplace_weight_bytes += own_bytes;
        one.sent_weight_bytes += all_host_bytes - own_bytes;
      }
    }
    if (weight.shares_table) continue;
    memory.host += round_up(host_bytes, 64);
    plan.weight_bytes += bytes(weight.rows);
    plan.resident_weight_bytes += resident_bytes;
    plan.inplace_weight_bytes += inplace_bytes;
    plan.host_home_bytes += inplace_bytes + host_bytes;
  }
}

// Streamed bytes of each sublayer in passes of a class, and the largest of their parts.
struct Streamed {
  std::vector<int64_t> bytes;
  int64_t largest = 0;

  template <typename Taken>
  Streamed(const Plan& plan, const Taken& takes) {
    for (const auto& parts : plan.parts) {
      bytes.push_back(0);
      for (const PlanPart& part : parts) {
        if (!takes(part)) continue;
        bytes.back() += part.bytes;
        largest = std::max(largest, part.bytes);
      }
    }
  }
};

WeightMemory place_weights(const PlanInput& input, std::span<const size_t> shapes, bool is_many,
                           Plan& plan) {
  WeightMemory memory;
  RowSplitter splitter(*input.model, plan.policy, plan.has_device, input.row_granule);
  std::optional<ClassSplit> tokens;  // of the token table, which comes first
  PlacedRows placed;
  placed.inplace.resize(plan.classes.size());
  for (const SublayerShape& sublayer : input.model->sublayers)
    place_sublayer(input, sublayer, splitter, tokens, plan, placed, memory);
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    PassClass& one = plan.classes[i];
    one.inplace = std::make_shared<const InplaceRows>(std::move(placed.inplace[i]));
    one.alike = std::make_shared<const AlikeSublayers>(alike_sublayers(shapes, *one.inplace));
  }
  plan.rows = SharedList(std::move(placed.rows));
  plan.parts = SharedList(std::move(placed.parts));
  // A sublayer computes for as long as a few tokens take to read the next one; with many, reading
  // rests at its end unless the one after that can begin.
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const Streamed all(plan, [&](const PlanPart& part) { return part.is_loaded_in(i); });
    plan.ring_bytes =
        std::max(plan.ring_bytes, weight_ring_bytes(all.bytes, all.largest, is_many ? 2 : 1));
  }
  const Streamed disk(plan, [](const PlanPart& part) { return part.from_disk; });
  if (plan.paths.weights_from_disk.stops_between() > 0)
    plan.host_ring_bytes = weight_ring_bytes(disk.bytes, disk.largest, 1);
  for (const auto& parts : plan.parts)
    for (const PlanPart& part : parts)  // its first byte lies somewhere in a block
      if (part.packed_bytes > 0)
        plan.arrival_slot_bytes =
            std::max(plan.arrival_slot_bytes, round_up(part.packed_bytes, kDiskBlock) + kDiskBlock);
  plan.repacked_bytes_per_second = input.repacked_bytes_per_second;
  plan.repack_core_share = input.repack_core_share;
  return memory;
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

int64_t Plan::hidden_memory_rows() const noexcept {
  const double lower = policy.activations.disk + placed(policy.activations).host;
  return pass_tokens - static_cast<int64_t>(lower * static_cast<double>(pass_tokens) + 1e-9);
}

struct PlanMaker::Placed {
  TierShares shares;
  std::vector<double> inplace;  // [class]
  bool is_many = false;
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
    if (one->shares == policy.weights && one->is_many == is_many && one->inplace == inplace)
      return *one;
  constexpr size_t kMostKept = 16;  // an LP asks for nine corners
  if (placed_.size() >= kMostKept) placed_.erase(placed_.begin());
  auto made = std::make_unique<Placed>();
  made->shares = policy.weights;
  made->inplace = std::move(inplace);
  made->is_many = is_many;
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
    text += fmt::format("  {:<7} {:<26} {:>10}  read in every pass{}\n", "disk", "streamed weights",
                        format_bytes(plan.streamed_weight_bytes),
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
