#include "policy/placement_lp.h"

#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "policy/lane_sharing.h"

namespace sluice::policy {

namespace {
constexpr std::array<std::array<Share, 3>, 3> kKinds{
    {{Share::kWeightsInplace, Share::kWeightsHost, Share::kWeightsDisk},
     {Share::kKvHost, Share::kKvDisk, Share::kKvDisk},
     {Share::kActivationsHost, Share::kActivationsDisk, Share::kActivationsDisk}}};

size_t index(Share share) { return static_cast<size_t>(share); }

// What a byte on disk counts for beside one in host memory, where both are as fast: the disk is
// somebody else's too, and writing wears it out.
constexpr double kReadOnDisk = 4;
constexpr double kWrittenOnDisk = 16;
// In place a byte counts for less than on the link: where the host's memory is the limit, what
// passes the link takes its time from those who multiply.
constexpr double kSmallInplace = 0.95;
// And for one that larger passes multiply in place: a little, so that they don't where it is as
// fast.
constexpr double kInplace = 1e-3;

bool is_on_disk(Share share) {
  return share == Share::kWeightsDisk || share == Share::kKvDisk ||
         share == Share::kActivationsDisk;
}

bool is_of_weights(Share share) {
  return share == Share::kWeightsInplace || share == Share::kWeightsHost ||
         share == Share::kWeightsDisk || share == Share::kLargeInplace;
}

bool needs_device(Share share) {
  return share == Share::kWeightsInplace || share == Share::kWeightsHost ||
         share == Share::kKvHost || share == Share::kActivationsHost ||
         share == Share::kLargeInplace;
}
}  // namespace

double PlacementLp::Linear::at(const std::array<double, kShareCount>& shares) const noexcept {
  double value = base;
  for (size_t i = 0; i < kShareCount; ++i) value += slope[i] * shares[i];
  return value;
}

Policy PlacementLp::policy_with(Policy block, const std::array<double, kShareCount>& shares,
                                bool has_device) {
  const auto at = [&](Share share) { return std::clamp(shares[index(share)], 0.0, 1.0); };
  const auto tiers = [](double host, double disk) {
    host = std::min(host, 1.0);
    disk = std::min(disk, 1.0 - host);
    return TierShares{1 - host - disk, host, disk};
  };
  block.weights =
      tiers(at(Share::kWeightsInplace) + at(Share::kWeightsHost), at(Share::kWeightsDisk));
  block.kv = tiers(at(Share::kKvHost), at(Share::kKvDisk));
  block.activations = tiers(at(Share::kActivationsHost), at(Share::kActivationsDisk));
  block.inplace_host_fraction =
      has_device ? std::min(at(Share::kWeightsInplace), block.weights.host) : 0;
  for (PassExecution& one : block.larger_passes)
    one.inplace_host_fraction =
        has_device ? std::min(at(Share::kLargeInplace), block.weights.host) : 0;
  return block;
}

std::vector<double> PlacementLp::loads_of(const Prediction& prediction, bool is_prefill) const {
  const bool shares_cores = request_.profile->shares_cores;
  const PerLane<double> lanes = prediction.taken(is_prefill, shares_cores);
  std::vector<double> out(lanes.begin(), lanes.end());
  out.push_back(is_prefill ? prediction.prefill_host_memory_seconds
                           : prediction.decode_host_memory_seconds);
  return out;
}

// Two lanes that share a resource take at least their sum over what it gives both together.
void PlacementLp::add_time_rows(const Loads& loads, std::vector<Linear>& rows) const {
  for (const Linear& load : loads) rows.push_back(load);
  const LaneSharing sharing(*request_.profile);
  for (const auto& [a, b, capacity] : sharing.pairs()) {
    Linear row = loads[static_cast<size_t>(a)];
    const Linear& other = loads[static_cast<size_t>(b)];
    row.base = (row.base + other.base) / capacity;
    for (size_t i = 0; i < kShareCount; ++i)
      row.slope[i] = (row.slope[i] + other.slope[i]) / capacity;
    rows.push_back(row);
  }
}

PlacementLp::PlacementLp(const SearchRequest& request, const Policy& block, PlanMaker& make_plan,
                         PassMaker& make_passes, double most_below, KnownCosts* known)
    : request_(request), most_below_(most_below) {
  const PlanInput& input = request.input;
  const bool has_device = input.device_budget_bytes > 0;
  struct Corner {
    Prediction time;
    std::array<double, 3> bytes;
    double kv_bytes;
    double activation_bytes;
  };
  const std::array<double, 3> budgets{
      static_cast<double>(std::max<int64_t>(input.device_budget_bytes, 1)),
      static_cast<double>(std::max<int64_t>(input.memory_budget_bytes, 1)),
      static_cast<double>(input.disk_budget_bytes > 0 ? input.disk_budget_bytes : INT64_MAX)};
  const auto corner = [&](const std::array<double, kShareCount>& shares) {
    const Plan plan = make_plan(policy_with(block, shares, has_device));
    return Corner{predict(*input.model, plan, *request.profile, input.kv_dtype, request.job,
                          make_passes(plan), nullptr, known),
                  {static_cast<double>(plan.device_bytes()) / budgets[0],
                   static_cast<double>(plan.memory_bytes()) / budgets[1],
                   static_cast<double>(plan.disk_bytes()) / budgets[2]},
                  static_cast<double>(plan.kv_memory_bytes()),
                  static_cast<double>(plan.pass_tokens * input.model->hidden_row_bytes())};
  };
  const Corner base = corner({});
  Loads prefill;
  Loads decode;
  byte_rows_.resize(3);
  std::optional<double> small_inplace;  // of the device's bytes, where neither class sends rows up
  for (auto* phase : {&prefill, &decode}) {
    const auto loads = loads_of(base.time, phase == &prefill);
    phase->resize(loads.size());
    for (size_t i = 0; i < loads.size(); ++i) (*phase)[i].base = loads[i];
  }
  for (size_t tier = 0; tier < 3; ++tier) byte_rows_[tier].base = base.bytes[tier];
  const SearchConstraints& fixed = request.constraints;
  const auto most_of_share = [&](size_t i) {
    return is_of_weights(static_cast<Share>(i)) ? most_below : 1;
  };
  const auto add_slopes = [&](size_t i, const Corner& one, const Corner& from) {
    for (auto* phase : {&prefill, &decode}) {
      const auto loads = loads_of(one.time, phase == &prefill);
      const auto before = loads_of(from.time, phase == &prefill);
      for (size_t load = 0; load < loads.size(); ++load)
        (*phase)[load].slope[i] = (loads[load] - before[load]) / most_of_share(i);
    }
    for (size_t tier = 0; tier < 3; ++tier)
      byte_rows_[tier].slope[i] = (one.bytes[tier] - from.bytes[tier]) / most_of_share(i);
  };
  for (size_t i = 0; i < kShareCount; ++i) {
    const auto share = static_cast<Share>(i);
    varies_[i] = has_device || !needs_device(share);
    if (is_on_disk(share) && !input.has_disk) varies_[i] = false;
    const bool is_inplace = share == Share::kWeightsInplace || share == Share::kLargeInplace;
    if (is_inplace && fixed.inplace_host_fraction == 0.0) varies_[i] = false;
    if (share == Share::kLargeInplace && block.larger_passes.empty()) varies_[i] = false;
    if (!varies_[i] || share == Share::kLargeInplace) continue;
    std::array<double, kShareCount> shares{};
    shares[i] = most_of_share(i);
    const Corner one = corner(shares);
    add_slopes(i, one, base);
    if (share != Share::kWeightsInplace || !varies(Share::kWeightsInplace)) continue;
    if (block.larger_passes.empty()) continue;
    // Rows that both classes multiply in place: prefill's seconds and bytes differ. The device's
    // ring is as large as the class wants that sends more up, so each class has a row of its bytes.
    shares[index(Share::kLargeInplace)] = most_below;
    const Corner both = corner(shares);
    add_slopes(index(Share::kLargeInplace), both, one);
    small_inplace = (both.bytes[0] - base.bytes[0]) / most_below;
  }
  if (small_inplace) {
    Linear& row = byte_rows_.emplace_back(byte_rows_[0]);
    row.slope[index(Share::kWeightsInplace)] = *small_inplace;
    row.slope[index(Share::kLargeInplace)] = 0;
  }
  if (!has_device) byte_rows_.erase(byte_rows_.begin());
  const auto weights = static_cast<double>(input.model->weight_bytes());
  const auto dislike = [&](Share share, double bytes) { dislike_[index(share)] = bytes; };
  dislike(Share::kWeightsInplace, kSmallInplace * weights);
  dislike(Share::kWeightsHost, weights);
  dislike(Share::kWeightsDisk, kReadOnDisk * weights);
  dislike(Share::kLargeInplace, kInplace * weights);
  dislike(Share::kKvHost, base.kv_bytes);
  dislike(Share::kKvDisk, kWrittenOnDisk * base.kv_bytes);
  dislike(Share::kActivationsHost, base.activation_bytes);
  dislike(Share::kActivationsDisk, kWrittenOnDisk * base.activation_bytes);
  add_time_rows(prefill, prefill_rows_);
  add_time_rows(decode, decode_rows_);
}

double PlacementLp::most_of(const std::vector<Linear>& rows,
                            const std::array<double, kShareCount>& shares) {
  double value = 0;
  for (const Linear& row : rows) value = std::max(value, row.at(shares));
  return value;
}

double PlacementLp::seconds(const std::array<double, kShareCount>& shares) const {
  return most_of(prefill_rows_, shares) + most_of(decode_rows_, shares);
}

bool PlacementLp::fits(const std::array<double, kShareCount>& shares) const {
  return std::all_of(byte_rows_.begin(), byte_rows_.end(),
                     [&](const Linear& row) { return row.at(shares) <= 1 + 1e-9; });
}

// GLPK keeps memory for each thread that used it; a thread that ends gives it back.
struct GlpkOfThread {
  ~GlpkOfThread() { glp_free_env(); }
};

// The rows of a GLPK problem, collected in its triplet form.
class PlacementLp::Problem {
 public:
  explicit Problem(int columns) : problem_(glp_create_prob(), glp_delete_prob) {
    static thread_local const GlpkOfThread of_thread;
    glp_term_out(GLP_OFF);
    glp_set_obj_dir(problem_.get(), GLP_MIN);
    glp_add_cols(problem_.get(), columns);
  }
  void bound(int column, double low, double high) {
    if (low >= high)
      glp_set_col_bnds(problem_.get(), column, GLP_FX, low, low);
    else
      glp_set_col_bnds(problem_.get(), column, std::isinf(high) ? GLP_LO : GLP_DB, low, high);
  }
  void cost(int column, double value) { glp_set_obj_coef(problem_.get(), column, value); }
  /// sum of coefficients[i] * column i + 1 <= most (== most when `is_equal`).
  void row(const std::vector<double>& coefficients, double most, bool is_equal = false) {
    const int number = glp_add_rows(problem_.get(), 1);
    glp_set_row_bnds(problem_.get(), number, is_equal ? GLP_FX : GLP_UP, most, most);
    double largest = 0;
    for (const double one : coefficients) largest = std::max(largest, std::abs(one));
    for (size_t i = 0; i < coefficients.size(); ++i) {
      if (std::abs(coefficients[i]) <= kRounding * largest) continue;
      rows_.push_back(number);
      columns_.push_back(static_cast<int>(i) + 1);
      values_.push_back(coefficients[i]);
    }
  }
  bool solve() {
    glp_load_matrix(problem_.get(), static_cast<int>(values_.size()) - 1, rows_.data(),
                    columns_.data(), values_.data());
    glp_smcp options;
    glp_init_smcp(&options);
    options.msg_lev = GLP_MSG_OFF;
    options.presolve = GLP_ON;
    options.it_lim = kMostSteps;
    // In floating point the simplex may walk in circles where many corners are all but one.
    for (const int method : {GLP_PRIMAL, GLP_DUAL}) {
      options.meth = method;
      const int outcome = glp_simplex(problem_.get(), &options);
      if (outcome == 0) return glp_get_status(problem_.get()) == GLP_OPT;
      if (outcome == GLP_ENOPFS || outcome == GLP_ENODFS) return false;
    }
    glp_std_basis(problem_.get());
    return glp_exact(problem_.get(), &options) == 0 && glp_get_status(problem_.get()) == GLP_OPT;
  }
  double value(int column) const { return glp_get_col_prim(problem_.get(), column); }

 private:
  // What differences of floating-point numbers leave of zero.
  static constexpr double kRounding = 1e-13;
  // Of a dozen columns and some thirty rows; they take a few dozen.
  static constexpr int kMostSteps = 2000;

  std::unique_ptr<glp_prob, decltype(&glp_delete_prob)> problem_;
  std::vector<int> rows_{0};  // GLPK counts from 1
  std::vector<int> columns_{0};
  std::vector<double> values_{0};
};

// Bounds that the constraints put on one kind's shares.
void PlacementLp::constrain(Problem& problem, const std::optional<TierShares>& shares, Share host,
                            Share disk, bool has_device, bool has_inplace) {
  if (!shares) return;
  std::vector<double> row(kShareCount, 0.0);
  row[index(disk)] = 1;
  problem.row(row, shares->disk, true);
  if (!has_device) return;
  std::fill(row.begin(), row.end(), 0.0);
  row[index(host)] = 1;
  if (has_inplace) row[index(Share::kWeightsInplace)] = 1;
  problem.row(row, shares->host, true);
}

// What any answer keeps to: sums of shares, constraints, budgets, and each phase at least as long
// as every load.
void PlacementLp::add_rows(Problem& problem, double unit) const {
  for (const auto& kind : kKinds) {
    std::vector<double> row(kShareCount, 0.0);
    for (const Share share : kind) row[index(share)] = 1;
    problem.row(row, is_of_weights(kind[0]) ? most_below_ : 1);
  }
  if (varies(Share::kLargeInplace)) {  // out of what host memory has
    std::vector<double> row(kShareCount, 0.0);
    row[index(Share::kLargeInplace)] = 1;
    row[index(Share::kWeightsInplace)] = row[index(Share::kWeightsHost)] = -1;
    problem.row(row, 0);
  }
  const bool has_device = request_.input.device_budget_bytes > 0;
  const SearchConstraints& fixed = request_.constraints;
  constrain(problem, fixed.weights, Share::kWeightsHost, Share::kWeightsDisk, has_device, true);
  constrain(problem, fixed.kv, Share::kKvHost, Share::kKvDisk, has_device, false);
  constrain(problem, fixed.activations, Share::kActivationsHost, Share::kActivationsDisk,
            has_device, false);
  if (fixed.inplace_host_fraction && varies(Share::kWeightsInplace))
    for (const Share share : {Share::kWeightsInplace, Share::kLargeInplace})
      if (varies(share))
        problem.bound(static_cast<int>(index(share)) + 1, *fixed.inplace_host_fraction,
                      *fixed.inplace_host_fraction);
  for (const Linear& row : byte_rows_)
    problem.row({row.slope.begin(), row.slope.end()}, 1 - row.base);
  const auto time_rows = [&](const std::vector<Linear>& rows, size_t column) {
    for (const Linear& row : rows) {
      std::vector<double> coefficients(kShareCount + 2, 0.0);
      for (size_t i = 0; i < kShareCount; ++i) coefficients[i] = row.slope[i] / unit;
      coefficients[column] = -1;
      problem.row(coefficients, -row.base / unit);
    }
  };
  time_rows(prefill_rows_, kShareCount);
  time_rows(decode_rows_, kShareCount + 1);
}

// Seconds span many orders of magnitude from model to model: count in units of the slowest corner.
double PlacementLp::unit() const {
  double unit = 0;
  for (const auto* rows : {&prefill_rows_, &decode_rows_})
    for (const Linear& row : *rows) {
      unit = std::max(unit, std::abs(row.base));
      for (double slope : row.slope) unit = std::max(unit, std::abs(slope));
    }
  return unit > 0 ? unit : 1;
}

std::optional<Placement> PlacementLp::solve(double latency_bound_seconds) const {
  constexpr int kPrefill = static_cast<int>(kShareCount) + 1;
  constexpr int kDecode = kPrefill + 1;
  const double unit = this->unit();
  // Least seconds within `bound` (0: any); or, of shares within it, those that are disliked least.
  const auto solve_for = [&](double bound, bool is_fast_enough) -> std::optional<Placement> {
    Problem problem(kDecode);
    for (size_t i = 0; i < kShareCount; ++i)
      problem.bound(static_cast<int>(i) + 1, 0, varies_[i] ? 1 : 0);
    for (const int column : {kPrefill, kDecode}) {
      problem.bound(column, 0, std::numeric_limits<double>::infinity());
      problem.cost(column, is_fast_enough ? 0 : 1);
    }
    if (is_fast_enough) {
      const double most = std::max(*std::max_element(dislike_.begin(), dislike_.end()), 1.0);
      for (size_t i = 0; i < kShareCount; ++i)
        problem.cost(static_cast<int>(i) + 1, dislike_[i] / most);
    }
    add_rows(problem, unit);
    if (bound > 0) {
      std::vector<double> row(static_cast<size_t>(kDecode), 0.0);
      row[static_cast<size_t>(kPrefill) - 1] = row[static_cast<size_t>(kDecode) - 1] = 1;
      problem.row(row, bound / unit);
    }
    if (!problem.solve()) return std::nullopt;
    Placement out;
    for (size_t i = 0; i < kShareCount; ++i)
      out.shares[i] = std::clamp(problem.value(static_cast<int>(i) + 1), 0.0, 1.0);
    out.prefill_seconds = problem.value(kPrefill) * unit;
    out.decode_seconds = problem.value(kDecode) * unit;
    return out;
  };
  const auto fastest = solve_for(latency_bound_seconds, false);
  if (!fastest) return std::nullopt;
  const double seconds = fastest->prefill_seconds + fastest->decode_seconds;
  double bound = seconds * (1 + kAsFast);
  if (latency_bound_seconds > 0) bound = std::min(bound, latency_bound_seconds);
  auto highest = solve_for(bound, true);
  if (!highest) return fastest;
  // Its seconds are bounds there, not sums of what is least.
  highest->prefill_seconds = most_of(prefill_rows_, highest->shares);
  highest->decode_seconds = most_of(decode_rows_, highest->shares);
  return highest;
}

}  // namespace sluice::policy
