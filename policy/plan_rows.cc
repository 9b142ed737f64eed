#include "policy/plan_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "policy/routing_model.h"
#include "src/base/bytes.h"
#include "src/schedule/weight_ring.h"

namespace sluice::policy {

namespace {
// Keeps, over all matrices together, the asked share of bytes to within one granule: what rounding
// gave or took from one matrix is carried to the next.
class ShareCarry {
 public:
  explicit ShareCarry(double share) : share_(share) {}

  /// At most `most` rows, which are whole granules or all.
  int64_t rows_of(const WeightShape& weight, int64_t granule, int64_t bytes_a_row, int64_t most) {
    const auto row_bytes = static_cast<double>(bytes_a_row);
    const double wanted = share_ * static_cast<double>(weight.rows) * row_bytes + carry_;
    auto rows =
        static_cast<int64_t>(std::llround(wanted / row_bytes / static_cast<double>(granule))) *
        granule;
    if (share_ >= 1 - 1e-12) rows = weight.rows;
    if (share_ <= 0) rows = 0;
    rows = std::clamp<int64_t>(rows, 0, most);
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

  template <typename Change>
  void change(const Change& one) {
    for (int64_t* count : {&resident, &inplace, &host, &disk}) one(*count);
    for (int64_t& count : inplace_of) one(count);
  }
};

// Whether experts of the model may have slots under a policy.
bool may_give_slots(const PlanInput& input, const Policy& policy) {
  const bool is_whole = policy.weights.disk <= 0;
  return policy.demand_tokens != 0 && input.model->num_experts > 1 && !is_whole;
}

// A share of all weights from the nearest home on, as shares of three kinds that have it in turn:
// what every token multiplies, experts, and tables. Of a table a token takes a row, from wherever
// that lies; one that the head multiplies too is of the first kind.
class NearestShares {
 public:
  explicit NearestShares(const ModelShape& model) {
    const WeightShape* first_table = nullptr;
    for (const SublayerShape& sublayer : model.sublayers)
      for (const WeightShape& weight : sublayer.weights) {
        if (weight.kind == WeightKind::kTable && !first_table) first_table = &weight;
        if (weight.shares_table) multiplied_table_ = first_table;
      }
    for (const SublayerShape& sublayer : model.sublayers)
      for (const WeightShape& weight : sublayer.weights) {
        if (weight.kind == WeightKind::kVector || weight.shares_table) continue;
        double& bytes = is_gathered(weight)  ? table_bytes_
                        : weight.experts > 0 ? expert_bytes_
                                             : dense_bytes_;
        bytes += static_cast<double>(model.rows_bytes(weight, weight.rows));
      }
  }

  bool is_gathered(const WeightShape& weight) const {
    return weight.kind == WeightKind::kTable && &weight != multiplied_table_;
  }
  double of_every_token() const { return all_bytes() > 0 ? dense_bytes_ / all_bytes() : 1; }
  double dense(double share) const { return of_kind(share, 0, dense_bytes_); }
  double experts(double share) const { return of_kind(share, dense_bytes_, expert_bytes_); }
  double tables(double share) const {
    return of_kind(share, dense_bytes_ + expert_bytes_, table_bytes_);
  }
  /// Up to where experts are on the device or multiplied in place: of `inplace`, a share of all
  /// weights at home in host memory (`host`), they have theirs first, for an expert has the fewest
  /// tokens for its bytes.
  double experts_computed(const TierShares& weights, double inplace) const {
    const double resident = experts(weights.device);
    if (expert_bytes_ <= 0) return resident;
    const double at_home = experts(weights.device + weights.host) - resident;
    return resident + std::min(at_home, inplace * all_bytes() / expert_bytes_);
  }
  /// The same of the first kind: with what experts leave.
  double dense_computed(const TierShares& weights, double inplace) const {
    const double of_experts = experts_computed(weights, inplace) - experts(weights.device);
    const double left = inplace - of_experts * expert_bytes_ / all_bytes();
    // All that is not experts' lies before them.
    return dense(std::min(weights.device, dense_bytes_ / all_bytes()) + std::max(left, 0.0));
  }

 private:
  double all_bytes() const { return dense_bytes_ + expert_bytes_ + table_bytes_; }
  double of_kind(double share, double before, double bytes) const {
    if (share >= 1 || bytes <= 0) return share;
    const double room = share * all_bytes() - before;
    return std::clamp(room / bytes, 0.0, 1.0);
  }

  const WeightShape* multiplied_table_ = nullptr;
  double dense_bytes_ = 0;
  double expert_bytes_ = 0;
  double table_bytes_ = 0;
};

// Of a layer's experts where some have slots.
struct ExpertHomes {
  int64_t resident = 0;  // with a device, in its memory
  int64_t slots = 0;
};

// Of the sublayer at hand, once one of its stacks has been split.
struct LayerExperts {
  std::optional<ExpertHomes> homes;   // where some have slots
  std::optional<ClassSplit> by_home;  // beside a device, where none has: in experts, not rows
};

// Cuts all matrices of a kind at the same shares: what is computed where it lies, what the CPU
// computes (by class), what comes from host memory; the rest is on disk. What every token needs is
// in the nearest memory first, then experts, then tables. Where experts have slots, an expert is
// there with all its matrices; slots are in host memory, some experts beside them in a device's.
// Beside a device an expert's matrices are in one memory without slots too: who computes it has
// them all.
class RowSplitter {
 public:
  RowSplitter(const PlanInput& input, const Policy& policy, bool has_device)
      : model_(*input.model),
        has_device_(has_device),
        gives_slots_(may_give_slots(input, policy)),
        has_disk_(policy.weights.disk > 0),
        always_asks_(policy.demand_tokens >= kAlwaysDemands),
        granule_(input.row_granule),
        shares_(model_) {
    const TierShares& weights = policy.weights;
    const double memory = weights.device + weights.host;
    const double nearest = has_device ? weights.device : memory;
    dense_ = {ShareCarry(shares_.dense(nearest)), ShareCarry(shares_.dense(memory)), {}};
    tables_ = {ShareCarry(shares_.tables(nearest)), ShareCarry(shares_.tables(memory)), {}};
    experts_ = {ShareCarry(shares_.experts(nearest)), ShareCarry(shares_.experts(memory)), {}};
    if (gives_slots_ && !has_device) experts_.resident = ShareCarry(0);
    for (size_t i = 0; i < policy.pass_classes(); ++i) {
      const double share = policy.execution(i).inplace_host_fraction;
      multiplies_.push_back(share > 0);
      dense_.computed.emplace_back(gives_slots_ ? shares_.dense(weights.device + share)
                                                : shares_.dense_computed(weights, share));
      experts_.computed.emplace_back(shares_.experts_computed(weights, share));
    }
  }

  /// `is_whole`: all of its rows are on disk, or none.
  ClassSplit split(const WeightShape& weight, bool is_whole, LayerExperts& experts) {
    if (gives_slots_ && weight.experts > 0) {
      if (!experts.homes) experts.homes = homes_of(weight);
      const int64_t resident = experts.homes->resident * weight.expert_rows();
      const int64_t held = experts.homes->slots * weight.expert_rows();
      if (!has_device_) return {{held, 0, 0, weight.rows - held}, {}};
      return {{resident, held, 0, weight.rows - resident - held}, {}};
    }
    const bool is_table = weight.kind == WeightKind::kTable;
    // Experts are whole where they are.
    const int64_t granule = is_table             ? 1
                            : weight.experts > 0 ? weight.expert_rows()
                                                 : std::min(granule_, weight.rows);
    const int64_t from_disk = is_whole && has_disk_ && weight.experts == 0 ? weight.rows : granule;
    const int64_t row_bytes = model_.row_bytes(weight);
    Kind& kind = shares_.is_gathered(weight) ? tables_ : weight.experts > 0 ? experts_ : dense_;
    if (!has_device_) {
      const int64_t rows = kind.resident.rows_of(weight, from_disk, row_bytes, weight.rows);
      return {{rows, 0, 0, weight.rows - rows}, {}};
    }
    if (weight.experts > 0) {
      if (!experts.by_home) {
        experts.by_home = split_rows(weight, kind, granule, granule);
        experts.by_home->change([&](int64_t& count) { count /= granule; });
      }
      ClassSplit out = *experts.by_home;
      out.change([&](int64_t& count) { count *= granule; });
      return out;
    }
    return split_rows(weight, kind, granule, from_disk);
  }

 private:
  // Of one of the kinds.
  struct Kind {
    ShareCarry resident{0};
    ShareCarry memory{0};              // resident too, but for the disk's
    std::vector<ShareCarry> computed;  // [class] resident, or multiplied in place
  };

  ClassSplit split_rows(const WeightShape& weight, Kind& kind, int64_t granule, int64_t from_disk) {
    const int64_t row_bytes = model_.row_bytes(weight);
    const auto in_memory = [&] {
      return kind.memory.rows_of(weight, from_disk, row_bytes, weight.rows);
    };
    // Where rows are not read alone, what memory has is known first.
    const std::optional<int64_t> all =
        from_disk == granule ? std::nullopt : std::optional(in_memory());
    const int64_t most = all.value_or(weight.rows);
    ClassSplit out{{kind.resident.rows_of(weight, granule, row_bytes, most), 0, 0, 0}, {}};
    for (size_t i = 0; i < multiplies_.size(); ++i) {
      if (weight.kind == WeightKind::kTable || weight.is_by_head || !multiplies_[i]) continue;
      out.inplace_of[i] =
          std::max(kind.computed[i].rows_of(weight, granule, row_bytes, most), out.resident) -
          out.resident;
      out.inplace = std::max(out.inplace, out.inplace_of[i]);
    }
    const int64_t host = std::max(all ? *all : in_memory(), out.resident + out.inplace);
    out.host = host - out.resident - out.inplace;
    out.disk = weight.rows - host;
    return out;
  }

  ExpertHomes homes_of(const WeightShape& weight) {
    const auto whole = [&](ShareCarry& share) {
      const int64_t rows =
          share.rows_of(weight, weight.expert_rows(), model_.row_bytes(weight), weight.rows);
      return std::min(rows / weight.expert_rows(), weight.experts);
    };
    ExpertHomes out{whole(experts_.resident), 0};
    out.slots = std::max(whole(experts_.memory) - out.resident, int64_t{0});
    // Beside a device at least one is asked for: what lies in slots is planned for nothing else.
    if (has_device_) out.slots = std::min(out.slots, weight.experts - out.resident - 1);
    out.slots = std::max(out.slots, int64_t{0});
    if (always_asks_ && out.slots == 0 && out.resident + 1 < weight.experts) out.slots = 1;
    return out;
  }

  const ModelShape& model_;
  bool has_device_;
  bool gives_slots_;
  bool has_disk_;
  bool always_asks_;  // and then has at least one
  int64_t granule_;
  NearestShares shares_;
  Kind dense_;
  Kind experts_;
  Kind tables_;
  std::vector<bool> multiplies_;  // [class] any rows in place
};

constexpr uint32_t kAllClasses = ~uint32_t{0};

// Rows that are cut into parts: of experts, some of one, or several of them whole.
class PartSizes {
 public:
  /// `is_whole`: a matrix, or an expert's, makes one part.
  PartSizes(const PlanInput& input, const WeightShape& weight, bool is_whole = false)
      : model_(*input.model),
        weight_(weight),
        of_one_(weight.expert_rows()),
        step_(weight_part_rows(model_.row_bytes(weight), input.row_granule)) {
    if (weight.experts > 0) {
      const int64_t whole = std::max(kWeightPartBytes / model_.expert_bytes(weight), int64_t{1});
      is_cut_ = whole == 1 && step_ < of_one_ && !is_whole;
      if (!is_cut_) step_ = whole * of_one_;
    } else if (is_whole) {
      step_ = of_one_;
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

// Whether rows on disk are read only with all others, of experts' of one.
bool is_read_whole(const PlanInput& input, size_t sublayer, size_t index) {
  const WeightShape& weight = input.model->sublayers[sublayer].weights[index];
  return input.packed_bytes && weight.expert_rows() > 1 &&
         input.packed_bytes(sublayer, index, 0, 1) < 0 &&
         input.packed_bytes(sublayer, index, 0, weight.expert_rows()) > 0;
}

// Of rows that only some classes multiply in place, the others load the parts between their own
// border and the next higher one.
void add_parts(const PlanInput& input, const WeightShape& weight, size_t sublayer, int64_t index,
               const ClassSplit& split, size_t pass_classes, std::vector<PlanPart>& parts) {
  const PartSizes in_memory(input, weight);
  const PartSizes on_disk(input, weight,
                          is_read_whole(input, sublayer, static_cast<size_t>(index)));
  const auto cut = [&](int64_t begin, int64_t end, bool from_disk, uint32_t classes) {
    const PartSizes& sizes = from_disk ? on_disk : in_memory;
    for (int64_t row = begin, rows = 0; row < end; row += rows) {
      rows = sizes.rows(row, end);
      const int64_t bytes = sizes.bytes(rows, from_disk);
      const int64_t packed =
          from_disk && input.packed_bytes
              ? input.packed_bytes(sublayer, static_cast<size_t>(index), row, rows)
              : 0;
      parts.push_back({index, row, rows, from_disk, bytes, packed, -1, classes});
    }
  };
  const auto streamed = static_cast<size_t>((weight.rows - split.resident) / in_memory.step());
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

// A part for each expert from `first` on, whole, as it lies on disk; returns the bytes of one.
int64_t add_expert_parts(const PlanInput& input, const WeightShape& weight, size_t sublayer,
                         int64_t index, int64_t first, std::vector<PlanPart>& parts) {
  const int64_t rows = weight.expert_rows();
  const int64_t bytes = PartSizes(input, weight).bytes(rows, true);
  const int64_t packed =
      input.packed_bytes ? input.packed_bytes(sublayer, static_cast<size_t>(index), 0, rows) : 0;
  for (int64_t expert = first; expert < weight.experts; ++expert)
    parts.push_back({index, expert * rows, rows, true, bytes, packed, static_cast<int32_t>(expert),
                     kAllClasses});
  return bytes;
}

// By sublayer; in place by class before that.
struct PlacedRows {
  std::vector<std::vector<RowSplit>> rows;
  std::vector<std::vector<PlanPart>> parts;
  std::vector<ScheduleExperts> experts;
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
  auto& experts = placed.experts.emplace_back();
  LayerExperts layer;
  const std::optional<ExpertHomes>& homes = layer.homes;
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
    const bool stays =
        input.packed_bytes && input.packed_bytes(position, index, 0, weight.rows) < 0;
    const bool is_whole = is_read_whole(input, position, index);
    const ClassSplit split = stays ? ClassSplit{{weight.rows, 0, 0, 0}, {}}
                             : weight.shares_table && tokens
                                 ? *tokens
                                 : splitter.split(weight, is_whole, layer);
    rows.push_back(split);
    const int64_t resident_bytes = bytes(split.resident);
    const int64_t inplace_bytes = bytes(split.inplace);
    // Those that have slots are multiplied in place too, and lie there.
    const bool has_slots = weight.experts > 0 && homes && homes->slots > 0 &&
                           homes->resident + homes->slots < weight.experts;
    const int64_t host_bytes = bytes(split.host);
    if (weight.kind == WeightKind::kTable) {
      if (!tokens) tokens = split;
      memory.table += resident_bytes;
    } else {
      if (has_slots) {
        experts.experts = weight.experts;
        experts.resident = homes->resident;
        experts.slots = homes->slots;
        experts.is_below = plan.has_device;
        experts.is_always_asked = plan.policy.demand_tokens >= kAlwaysDemands;
        experts.first_parts.push_back(static_cast<int32_t>(parts.size()));
        plan.expert_slot_bytes +=
            homes->slots * add_expert_parts(input, weight, position, static_cast<int64_t>(index),
                                            homes->resident, parts);
        if (plan.has_device) memory.resident += round_up(resident_bytes, 64);
      } else {
        if (!weight.shares_table) memory.resident += round_up(resident_bytes, 64);
        add_parts(input, weight, position, static_cast<int64_t>(index), split, plan.classes.size(),
                  parts);
      }
      if (!has_slots) memory.inplace += round_up(inplace_bytes, 64);
      plan.streamed_weight_bytes += disk_bytes(input, position, index, split);
      plan.host_weight_bytes += host_bytes;
      const int64_t all_host_bytes = bytes(split.inplace + split.host);
      for (size_t i = 0; i < plan.classes.size(); ++i) {
        PassClass& one = plan.classes[i];
        const int64_t own_bytes =
            has_slots && experts.is_always_asked ? all_host_bytes : bytes(split.inplace_of[i]);
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

// Streamed bytes of each sublayer in passes that load all of it, and the largest of their parts.
// `held_too`: of experts that have slots, as many as these are loaded likewise. Where all passes
// ask for experts that have slots, none of these is.
struct Streamed {
  std::vector<int64_t> bytes;
  int64_t largest = 0;

  template <typename Taken>
  Streamed(const Plan& plan, bool held_too, const Taken& takes) {
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      bytes.push_back(0);
      for (const PlanPart& part : plan.parts[i]) {
        if (!takes(part)) continue;
        const ScheduleExperts& layer = plan.experts[i];
        if (part.expert >= 0 && layer.is_always_asked) continue;
        const bool is_held = part.expert >= 0 && layer.turn_of(part.expert) < layer.slots;
        if (!is_held || held_too) bytes.back() += part.bytes;
        largest = std::max(largest, part.bytes);
      }
    }
  }
};

// Whether what one layer's slots hold fits another's: matrix by matrix.
bool are_alike(const PlacedRows& placed, size_t one, size_t other) {
  const auto part = [&](size_t sublayer, size_t matrix) -> const PlanPart& {
    return placed
        .parts[sublayer][static_cast<size_t>(placed.experts[sublayer].first_parts[matrix])];
  };
  const size_t matrices = placed.experts[one].first_parts.size();
  if (placed.experts[other].first_parts.size() != matrices) return false;
  for (size_t i = 0; i < matrices; ++i)
    if (part(one, i).weight != part(other, i).weight || part(one, i).bytes != part(other, i).bytes)
      return false;
  return true;
}

// Room for guesses, behind the slots of the first layer that has some, for all that are like it.
void place_guesses(Plan& plan, PlacedRows& placed) {
  int64_t slots = 0;
  std::optional<size_t> home;
  for (size_t i = 0; i < placed.experts.size(); ++i) {
    if (placed.experts[i].experts == 0) continue;
    slots += placed.experts[i].slots;
    if (!home) home = i;
  }
  const int64_t asked = plan.policy.guess_slots;
  const int64_t guesses = asked >= 0 ? asked : std::min(kMostGuessSlots, slots / 16);
  if (!home || guesses < 2) return;
  for (size_t i = 0; i < placed.experts.size(); ++i)
    if (placed.experts[i].experts > 0 && are_alike(placed, *home, i))
      placed.experts[i].guess_home = static_cast<int32_t>(*home);
  placed.experts[*home].guess_slots = guesses;
  for (const int32_t first : placed.experts[*home].first_parts)
    plan.guess_slot_bytes += guesses * placed.parts[*home][static_cast<size_t>(first)].bytes;
}

// The least that any layer's slots are good for: a pass does one or the other in all layers.
void set_demand(const ModelShape& model, Plan& plan) {
  const int64_t asked = plan.policy.demand_tokens;
  bool has_slots = false;
  int64_t tokens = INT64_MAX;
  for (const ScheduleExperts& layer : plan.experts) {
    if (layer.experts == 0) continue;
    has_slots = true;
    tokens =
        std::min(tokens, most_demanding_tokens(share_in_turns(layer, model.experts_per_token)));
  }
  if (has_slots) plan.demand_tokens = asked >= 0 ? asked : std::max<int64_t>(tokens, 1);
}
}  // namespace

double share_of_every_token(const ModelShape& model) {
  return NearestShares(model).of_every_token();
}

WeightMemory place_weights(const PlanInput& input, std::span<const size_t> shapes, bool is_many,
                           Plan& plan) {
  WeightMemory memory;
  RowSplitter splitter(input, plan.policy, plan.has_device);
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
  place_guesses(plan, placed);
  plan.rows = SharedList(std::move(placed.rows));
  plan.parts = SharedList(std::move(placed.parts));
  plan.experts = SharedList(std::move(placed.experts));
  set_demand(*input.model, plan);
  // A sublayer computes for as long as a few tokens take to read the next one; with many, reading
  // rests at its end unless the one after that can begin.
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const Streamed all(plan, plan.has_device,
                       [&](const PlanPart& part) { return part.is_loaded_in(i); });
    plan.ring_bytes =
        std::max(plan.ring_bytes, weight_ring_bytes(all.bytes, all.largest, is_many ? 2 : 1));
  }
  const Streamed disk(plan, false, [](const PlanPart& part) { return part.from_disk; });
  if (plan.paths.weights_from_disk.stops_between() > 0)
    plan.host_ring_bytes = weight_ring_bytes(disk.bytes, disk.largest, 1);
  for (const auto& parts : plan.parts)
    for (const PlanPart& part : parts)  // its first byte lies somewhere in a block
      if (part.packed_bytes > 0)
        plan.arrival_slot_bytes = std::max(
            plan.arrival_slot_bytes,
            std::min(round_up(part.packed_bytes, kDiskBlock) + kDiskBlock, input.arrival_bytes));
  plan.repacked_bytes_per_second = input.repacked_bytes_per_second;
  plan.repack_core_share = input.repack_core_share;
  return memory;
}

}  // namespace sluice::policy
