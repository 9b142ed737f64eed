#include "policy/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "policy/expert_traffic.h"
#include "policy/fitter.h"
#include "policy/infeasible.h"
#include "policy/pass_classes.h"
#include "policy/placement_lp.h"
#include "policy/plan_rows.h"
#include "policy/search_space.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
using Clock = std::chrono::steady_clock;

// Realised, predicted and simulated beyond the LP: so many times the candidates that are simulated.
constexpr size_t kRealisedPerSimulated = 4;
// Larger passes multiply no smaller share of the weights in place than this.
constexpr double kLeastInplace = 5e-3;
// Other prefills of the best block that are simulated.
constexpr int kVariants = 5;
constexpr int kVariantsOfSecond = 2;
constexpr size_t kVariedForms = 2;
// Of a mixture with few sequences: candidates that are simulated, times those of other models; of
// any mixture those of one form.
constexpr size_t kMoreOfMixtures = 4;
constexpr int64_t kFewSequences = 64;
constexpr int kOfOneForm = 2;
// Candidates of a mixture whose experts are moved, of the best.
constexpr size_t kMovedForms = 8;
// Candidates with fuller memory that are simulated.
constexpr size_t kFuller = 3;
// The best candidate's passes are made larger or smaller so often, while that gains as much.
constexpr int kPassRounds = 3;
constexpr double kWorthARound = 0.99;
// Prefill micro-batches of fewer tokens than this waste a processor's arithmetic, smaller than the
// least its launches; beyond the most nothing is gained.
constexpr int64_t kFewTokens = 512;
constexpr int64_t kLeastTokens = 32;
constexpr int64_t kMostTokens = 64 << 10;
// The smallest prefill pass worth a trip of the streamed weights.
constexpr int64_t kPassMicroBatches = 8;
constexpr int64_t kPassTokens = 4096;
// Micro-batches of one pass, at most: each is tasks in every sublayer.
constexpr int64_t kMostMicroBatches = 256;
// With more tokens in its prefill passes a block has less room for weights, and its decode takes no
// smaller a share of what it takes with few.
constexpr double kLeastOfDecode = 0.97;
// A block is in time up to this share of its bound.
constexpr double kInTime = 1.02;
constexpr int kTighterBounds = 5;
constexpr double kTighter = 0.98;

struct Block {
  Policy policy;
  Placement placement;
  double job_seconds = 0;
  bool moves_experts = false;  // only: all else is on the device
  bool is_realised = false;    // or can't be
};

double job_rounds(const SearchRequest& request, int64_t block) {
  return std::ceil(static_cast<double>(std::max<int64_t>(request.job.sequences, 1)) /
                   static_cast<double>(std::max<int64_t>(block, 1)));
}

// Seconds on a scale of steps of 0.3 %: what is on one step is as fast.
int64_t step_of(double seconds) {
  return static_cast<int64_t>(std::floor(std::log(std::max(seconds, 1e-9)) / 0.003));
}

void stop_if_asked(const SearchRequest& request) {
  if (request.stop.stop_requested())
    throw Error(ErrorKind::kCancelled, "the search for a policy was stopped", "");
}

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request),
        has_device_(request.input.device_budget_bytes > 0),
        experts_below_(has_device_ && request.input.model->num_experts > 1 &&
                               !request.constraints.weights
                           ? 1 - share_of_every_token(*request.input.model)
                           : 1),
        demands_(demands_of(request)),
        make_plan_(request.input),
        fitter_(request, make_plan_),
        host_attention_tokens_(has_device_
                                   ? host_attention_tokens(*request.input.model, *request.profile,
                                                           request.input.kv_dtype, request.job)
                                   : 0),
        passes_(sampled_passes(*request.input.model, request.job)),
        fewest_passes_(fewest_passes(*request.input.model, request.job)) {}

  /// The best, or nothing where none fits the budgets and the bound.
  std::optional<SearchResult> run() {
    const auto started = Clock::now();
    const bool is_bounded = request_.objective == Objective::kThroughputUnderLatency;
    bound_seconds_ = is_bounded ? request_.latency_bound_seconds : 0;
    // What the linear program thinks is in time may be late when it is simulated: ask it for less.
    for (int round = 0; round < kTighterBounds; ++round) {
      blocks_.clear();
      realised_.clear();
      least_ = {};
      enumerate();
      std::stable_sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) {
        return std::pair{step_of(a.job_seconds), a.policy.micro_batch_tokens} <
               std::pair{step_of(b.job_seconds), b.policy.micro_batch_tokens};
      });
      realise();
      if (realised_.empty()) return std::nullopt;
      // With many sequences lanes are as busy as the linear program takes them.
      if (experts_below_ < 1 && most_sequences() <= kFewSequences) move_experts();
      rank();
      if (!is_late(realised_.front())) break;
      bound_seconds_ *=
          kTighter * request_.latency_bound_seconds / prediction_of(realised_.front()).seconds();
    }
    if (is_late(realised_.front())) return std::nullopt;
    drop_useless_guesses(realised_.front());
    place_borders(realised_.front());
    place_demand(realised_.front());
    result_.best = realised_.front();
    result_.ranked = std::move(realised_);
    result_.search_seconds = std::chrono::duration<double>(Clock::now() - started).count();
    return std::move(result_);
  }

 private:
  int64_t most_sequences() const {
    if (request_.objective == Objective::kLatency) return 1;
    return std::max<int64_t>(std::min(request_.job.sequences, request_.input.workload.sequences),
                             1);
  }

  void enumerate() {
    const SearchConstraints& fixed = request_.constraints;
    const int64_t most = most_sequences();
    // Without a device a micro-batch is bounded by its tokens alone: one shape of block.
    constexpr int64_t kMostCount = 32;
    constexpr int64_t kMostSize = 256;
    std::set<std::pair<int64_t, int64_t>> shapes;  // sequences of a micro-batch, micro-batches
    for (const int64_t block : even_blocks(most, has_device_ ? kMostSize * kMostCount : 512)) {
      std::vector<int64_t> counts{1};
      if (has_device_) counts = counts_up_to(std::min(kMostCount, block));
      if (fixed.micro_batches) counts = {*fixed.micro_batches};
      for (const int64_t count : counts) {
        const int64_t size = fixed.micro_batch_sequences.value_or((block + count - 1) / count);
        const bool is_small = !has_device_ || fixed.micro_batch_sequences || size <= kMostSize;
        if (is_small && (fixed.micro_batches || size * (count - 1) < most))
          shapes.emplace(size, count);
      }
    }
    // Large blocks first, of which one is the best of most: others are known to be worse then.
    std::vector<std::pair<int64_t, int64_t>> ordered(shapes.rbegin(), shapes.rend());
    std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
      return a.first * a.second > b.first * b.second;
    });
    for (const auto& [size, count] : ordered) add_block(size, count);
    std::stable_sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) {
      return std::pair{a.policy.micro_batch_sequences, a.policy.micro_batches} <
             std::pair{b.policy.micro_batch_sequences, b.policy.micro_batches};
    });
  }

  static void lower(double& least, double value) {
    if (least == 0 || value < least) least = value;
  }

  // Whether decode alone takes the block longer than another takes for all, with prefill passes so
  // small that the device has all its room for weights: then no way to cut its prompts is tried but
  // this one.
  bool is_hopeless(Policy block, int64_t size, int64_t sequences) {
    if (bound_seconds_ > 0 || least_.planned == 0) return false;
    for (const int64_t tokens : micro_batch_tokens(size))  // largest first
      if (tokens >= std::min(kFewTokens, prompt_tokens())) block.micro_batch_tokens = tokens;
    block.pass_tokens =
        request_.constraints.pass_tokens.value_or(std::max(block.micro_batch_tokens, sequences));
    const size_t before = blocks_.size();
    const double planned = least_.planned;
    least_.decode = 0;
    if (!try_block(block, sequences)) return false;
    if (kLeastOfDecode * least_.decode > planned) return true;
    blocks_.resize(before);
    return false;
  }

  void add_block(int64_t size, int64_t count) {
    Policy block = request_.start;
    block.micro_batch_sequences = size;
    block.micro_batches = count;
    const int64_t sequences = std::min(block.block_sequences(), most_sequences());
    std::vector<AttentionPlace> places{AttentionPlace::kDevice};
    if (request_.constraints.attention)
      places = {*request_.constraints.attention};
    else if (has_device_)
      places.push_back(AttentionPlace::kHost);
    for (const AttentionPlace place : places) {
      block.attention = place;
      block.host_attention_tokens = 0;
      block.larger_passes.clear();
      // Prefill computes in its own way where its passes have more tokens than those of decode.
      if (has_device_ && prompt_tokens() > 1) block.larger_passes = {{sequences + 1, 0, place, 0}};
      if (place == AttentionPlace::kHost) block.host_attention_tokens = host_attention_tokens_;
      if (is_hopeless(block, std::min(size, sequences), sequences)) continue;
      // What prompts bring up takes room on the device.
      if (!add_prefills(block, std::min(size, sequences), sequences) &&
          block.host_attention_tokens > 0) {
        block.host_attention_tokens = 0;
        add_prefills(block, std::min(size, sequences), sequences);
      }
    }
  }

  bool add_prefills(Policy block, int64_t size, int64_t sequences) {
    bool is_found = false;
    for (const int64_t tokens : micro_batch_tokens(size)) {
      // Tiny micro-batches only where nothing else fits.
      if (is_found && tokens < kFewTokens && tokens < prompt_tokens()) break;
      block.micro_batch_tokens = tokens;
      is_found = add_passes(block, sequences) || is_found;
    }
    return is_found;
  }

  int64_t prompt_tokens() const {
    return std::max<int64_t>(std::llround(request_.job.prompt_tokens), 1);
  }

  // Tokens of a micro-batch, largest first: whole prompts of `sequences` sequences, 1, 4, 16, ...
  // of them (fewer than 512 tokens only where more would be too many), the longest prompt, and
  // parts of one prompt.
  std::vector<int64_t> micro_batch_tokens(int64_t sequences) const {
    if (request_.constraints.micro_batch_tokens) return {*request_.constraints.micro_batch_tokens};
    const int64_t prompt = prompt_tokens();
    std::vector<int64_t> out{kLeastTokens, 4 * kLeastTokens};
    for (int64_t part = kFewTokens; part < prompt && part <= kMostTokens; part *= 4)
      out.push_back(part);
    for (int64_t count = std::max<int64_t>(kFewTokens / prompt, 1);; count *= 4) {
      count = std::min(count, sequences);
      if (count * prompt > kMostTokens) break;
      out.push_back(count * prompt);
      if (count == sequences) break;
    }
    const int64_t longest = request_.input.workload.max_prompt_tokens;
    if (longest > prompt && longest <= kMostTokens) out.push_back(longest);
    // More than all prompts of a micro-batch together is as much.
    for (int64_t& tokens : out)
      tokens = std::min(tokens, std::max(sequences * std::max(longest, prompt), kLeastTokens));
    std::sort(out.begin(), out.end(), std::greater<>());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // Fewer prefill passes read the streamed weights less often and hold more hidden states.
  bool add_passes(Policy block, int64_t sequences) {
    if (request_.constraints.pass_tokens) {
      block.pass_tokens = *request_.constraints.pass_tokens;
      return try_block(block, sequences);
    }
    const int64_t tokens = block.micro_batch_tokens;
    const int64_t prompt = prompt_tokens();
    const int64_t all = sequences * std::max<int64_t>(request_.input.workload.max_prompt_tokens, 1);
    const int64_t least = std::min(
        all, std::max({std::min(kPassMicroBatches * tokens, kPassTokens), tokens, sequences}));
    bool is_found = false;
    for (int64_t passes = 1;; passes *= 4) {
      // Whole micro-batches of whole prompts.
      const int64_t wanted = std::max((all + passes - 1) / passes, least);
      const int64_t unit = tokens >= prompt || wanted < prompt ? tokens : prompt;
      block.pass_tokens = std::max(std::min(round_up(wanted, unit), all), sequences);
      if (is_sensible(block)) is_found = try_block(block, sequences) || is_found;
      if (wanted == least || (is_found && passes >= 16)) break;
    }
    return is_found;
  }

  // Whether a pass can be held and simulated at all.
  bool is_sensible(const Policy& block) const {
    const PlanInput& input = request_.input;
    const double bytes = static_cast<double>(block.pass_tokens * input.model->hidden_row_bytes());
    const double room = static_cast<double>(input.device_budget_bytes) +
                        static_cast<double>(input.memory_budget_bytes) +
                        static_cast<double>(input.disk_budget_bytes);
    return (input.disk_budget_bytes <= 0 || bytes <= room) &&
           block.pass_tokens <= kMostMicroBatches * block.micro_batch_tokens;
  }

  bool try_block(Policy block, int64_t sequences) {
    bool is_found = false;
    for (const int64_t demand : demands_) {
      block.demand_tokens = demand;
      is_found = try_demand(block, sequences) || is_found;
    }
    return is_found;
  }

  bool try_demand(const Policy& block, int64_t sequences) {
    stop_if_asked(request_);
    ++result_.candidates;
    bool is_found = false;
    std::vector<double> bounds{1};
    if (experts_below_ < 1) bounds.insert(bounds.begin(), experts_below_);
    for (const double most_below : bounds) {
      const PlacementLp lp(request_, block, make_plan_, passes_, most_below, &known_);
      ++result_.linear_programs;
      const auto placement = lp.solve(bound_seconds_);
      if (!placement) continue;
      is_found = true;
      const double rounds = job_rounds(request_, sequences);
      const double seconds = placement->prefill_seconds + placement->decode_seconds;
      blocks_.push_back({block, *placement, seconds * rounds, most_below < 1});
      lower(least_.planned, seconds * rounds);
      lower(least_.decode, placement->decode_seconds * rounds);
    }
    return is_found;
  }

  // Sequences, micro-batches, place of attention and which passes ask for experts: what a block
  // looks like in decode.
  using BlockForm = std::array<int64_t, 4>;
  static BlockForm form_of(const Policy& policy) {
    return {policy.micro_batch_sequences, policy.micro_batches,
            static_cast<int64_t>(policy.attention), policy.demand_tokens};
  }
  // Of a mixture, by either of its linear programs.
  using Realised = std::pair<BlockForm, bool>;

  std::optional<Candidate> realise(Block& block) {
    stop_if_asked(request_);
    block.is_realised = true;
    Policy policy = PlacementLp::policy_with(block.policy, block.placement.shares, has_device_);
    // A rest of rows in place would keep the host waiting for a large pass, and its work space.
    for (PassExecution& one : policy.larger_passes)
      if (one.inplace_host_fraction < kLeastInplace) one.inplace_host_fraction = 0;
    drop_equal_classes(policy);
    auto plan = fitter_.shrink(policy);
    if (!plan) return std::nullopt;
    plan = fitter_.grow(std::move(*plan));
    return candidate_of(std::move(*plan));
  }

  Candidate candidate_of(Plan plan) {
    if (!request_.constraints.inplace_host_fraction)
      plan = make_plan_(with_fastest_shares(request_.input, make_plan_, fewest_passes_, plan.policy,
                                            *request_.profile, request_.job, known_));
    Candidate candidate;
    candidate.policy = plan.policy;
    candidate.predicted =
        predict(*request_.input.model, plan, *request_.profile, request_.input.kv_dtype,
                request_.job, passes_(plan), nullptr, &known_);
    candidate.plan = std::move(plan);
    return candidate;
  }

  // The best of each form, best forms first.
  void realise() {
    const size_t most = demands_.size() * kRealisedPerSimulated *
                        static_cast<size_t>(std::max(request_.simulated_candidates, 2));
    std::set<Realised> forms;
    for (Block& block : blocks_) {
      if (realised_.size() >= most) break;
      const Realised form{form_of(block.policy), block.moves_experts};
      if (forms.contains(form)) continue;
      auto candidate = realise(block);
      if (!candidate) continue;
      forms.insert(form);
      realised_.push_back(std::move(*candidate));
    }
  }

  // The forms of the best candidates, with other micro-batches and passes of their prompts. Which
  // is better of two ways to load experts is for these to say, where simulations take no time.
  void add_variants_of_best() {
    const bool tries_all = demands_.size() > 1 && most_sequences() <= kFewSequences;
    std::vector<BlockForm> forms;
    for (const Candidate& one : realised_) {
      const BlockForm form = form_of(one.policy);
      if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(form);
      if (forms.size() == kVariedForms) break;
    }
    for (size_t i = 0; i < forms.size(); ++i)
      add_variants_of(forms[i], i == 0 || tries_all ? kVariants : kVariantsOfSecond);
  }

  void add_variants_of(const BlockForm& form, int left) {
    left = std::min(request_.simulated_candidates, left);
    for (Block& block : blocks_) {
      if (left <= 0) return;
      if (form_of(block.policy) != form) continue;
      --left;
      if (block.is_realised) continue;
      auto candidate = realise(block);
      if (!candidate) continue;
      simulate_promising(*candidate);
      realised_.push_back(std::move(*candidate));
    }
  }

  // Of a mixture, each form with other shares of its experts on the device, where the cost model,
  // whose lines are not straight, finds it faster; and, whatever the linear program thinks of them,
  // the blocks of all sequences in one and two micro-batches: experts are read once for each.
  void move_experts() {
    std::vector<Candidate> moved;
    std::stable_sort(realised_.begin(), realised_.end(), [this](const auto& a, const auto& b) {
      return job_seconds(a) < job_seconds(b);
    });
    const size_t most = std::min(realised_.size(), kMovedForms);
    for (const Candidate& one : std::span(realised_).first(most))
      for (const double filled : {1.0, 0.6, 0.3})
        if (auto other = fuller_than(one, false, true, filled);
            other && other->predicted.seconds() < one.predicted.seconds())
          moved.push_back(std::move(*other));
    for (Candidate& one : whole_blocks()) moved.push_back(std::move(one));
    for (Candidate& one : moved) realised_.push_back(std::move(one));
  }

  std::vector<Candidate> whole_blocks() {
    std::vector<Candidate> out;
    const SearchConstraints& fixed = request_.constraints;
    if (fixed.micro_batches || fixed.micro_batch_sequences || fixed.attention) return out;
    for (const int64_t count : {1, 2})
      for (const int64_t demand : demands_) {
        Candidate block = realised_.front();
        block.policy.micro_batch_sequences = (most_sequences() + count - 1) / count;
        block.policy.micro_batches = count;
        block.policy.attention = AttentionPlace::kDevice;
        block.policy.host_attention_tokens = 0;
        block.policy.demand_tokens = demand;
        if (!fixed.pass_tokens)
          block.policy.pass_tokens =
              std::max(block.policy.pass_tokens, block.policy.block_sequences());
        for (const bool has_kv : {false, true})
          for (const double filled : {1.0, 0.6, 0.3})
            if (auto one = fuller_than(block, has_kv, true, filled)) out.push_back(std::move(*one));
      }
    return out;
  }

  // The linear program takes lanes for as long as the slowest of them, and experts for as often
  // asked for as all else: neither holds for few sequences of a mixture. So the best candidates are
  // tried with the device's memory full, of weights or of KV first, and with all of the host's
  // weights multiplied there, which wants no ring; the very best also with less on the device,
  // where both multiply at once.
  void add_fuller() {
    const SearchConstraints& fixed = request_.constraints;
    if (!has_device_ || fixed.weights) return;
    std::vector<const Candidate*> bases;
    std::set<int64_t> demands;
    for (const Candidate& one : realised_)
      if (bases.size() < kVariedForms || !demands.contains(one.policy.demand_tokens)) {
        bases.push_back(&one);
        demands.insert(one.policy.demand_tokens);
      }
    const bool is_large = most_sequences() > kFewSequences;
    if (is_large) bases.resize(1);
    std::vector<Candidate> fuller;
    for (const Candidate* base : bases)
      for (const bool has_kv : {false, true})
        for (const bool multiplies_all : {false, true})
          for (const double filled : {1.0, 0.85, 0.7, 0.55, 0.4, 0.25}) {
            if (filled < 1 && (is_large || base != bases.front() || has_kv)) continue;
            if (auto one = fuller_than(*base, has_kv, multiplies_all, filled))
              fuller.push_back(std::move(*one));
          }
    add_best_of(std::move(fuller));
  }

  // Adds the best candidate with larger and smaller passes of prompts, with its KV where it lies
  // and with all KV where the device computes: linear programs misjudge passes that load experts.
  // Says whether one of these candidates is faster.
  bool add_other_passes() {
    const SearchConstraints& fixed = request_.constraints;
    const Candidate best = realised_.front();
    const double before = job_seconds(best);
    const int64_t least = std::max(best.policy.micro_batch_tokens, best.policy.block_sequences());
    const int64_t most = best.policy.block_sequences() * request_.input.workload.max_prompt_tokens;
    if (fixed.pass_tokens || experts_below_ >= 1) return false;
    bool is_faster = false;
    for (const double times : {0.5, 1.0, 2.0, 4.0})
      for (const bool has_kv : {false, true}) {
        if (has_kv ? fixed.kv || best.policy.kv.device >= 1 : times == 1.0) continue;
        Policy policy = best.policy;
        const double wanted = times * static_cast<double>(best.plan.pass_tokens);
        policy.pass_tokens =
            std::clamp(static_cast<int64_t>(std::llround(wanted)), least, std::max(least, most));
        if (has_kv) policy.kv = {1, 0, 0};
        auto plan = fitter_.shrink(policy);
        if (!plan) continue;
        Candidate one = candidate_of(fitter_.grow(std::move(*plan)));
        simulate_promising(one);
        if (!one.simulated || is_late(one)) continue;
        is_faster = is_faster || job_seconds(one) < kWorthARound * before;
        realised_.push_back(std::move(one));
      }
    return is_faster;
  }

  void add_best_of(std::vector<Candidate> candidates) {
    std::stable_sort(candidates.begin(), candidates.end(), [this](const auto& a, const auto& b) {
      return job_seconds(a) < job_seconds(b);
    });
    candidates.resize(std::min(candidates.size(), kFuller));
    for (Candidate& one : candidates) {
      simulate_promising(one);
      realised_.push_back(std::move(one));
    }
  }

  // `filled`: so much of the device's memory has weights, at most.
  std::optional<Candidate> fuller_than(const Candidate& base, bool has_kv, bool multiplies_all,
                                       double filled) {
    const SearchConstraints& fixed = request_.constraints;
    Policy policy = base.policy;
    if (has_kv && (fixed.kv || policy.kv.device >= 1)) return std::nullopt;
    if (has_kv) policy.kv = {1, 0, 0};
    // From above: what does not fit goes down.
    const double device =
        filled * std::min(static_cast<double>(request_.input.device_budget_bytes) /
                              static_cast<double>(request_.input.model->weight_bytes()),
                          1.0);
    policy.weights = {device, 1 - device, 0};
    if (multiplies_all) {
      if (fixed.inplace_host_fraction) return std::nullopt;
      policy.larger_passes.clear();
      policy.inplace_host_fraction = policy.weights.host;
    }
    Fitter::keep_inplace_in_host(policy);
    auto plan = fitter_.shrink(policy);
    if (!plan || (has_kv && plan->policy.kv.device < 1)) return std::nullopt;
    Plan grown = fitter_.grow(std::move(*plan));
    if (filled >= 1) grown = fitter_.fill_device(std::move(grown));
    if (multiplies_all) {
      grown.policy.inplace_host_fraction = grown.policy.weights.host;
      grown = make_plan_(grown.policy);
      if (!policy::fits(request_.input, grown)) return std::nullopt;
    }
    if (grown.policy == base.policy) return std::nullopt;
    return candidate_of(std::move(grown));
  }

  bool is_late(const Candidate& candidate) const {
    return request_.objective == Objective::kThroughputUnderLatency &&
           prediction_of(candidate).seconds() > request_.latency_bound_seconds * kInTime;
  }

  double job_seconds(const Candidate& candidate) const {
    const Prediction& prediction = prediction_of(candidate);
    return prediction.seconds() * job_rounds(request_, prediction.block_sequences);
  }

  void rank() {
    // Over the bound: after everything that keeps it. Of those that are as fast, the one that
    // writes less to disk, then the one with smaller micro-batches.
    const auto key = [&](const Candidate& one) {
      return std::tuple{is_late(one), step_of(job_seconds(one)), one.plan.disk_bytes(),
                        one.policy.micro_batch_tokens};
    };
    const auto better = [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); };
    std::stable_sort(realised_.begin(), realised_.end(), better);
    keep_best(static_cast<size_t>(std::max(request_.simulated_candidates, 0)));
    if (request_.simulated_candidates <= 0) return;
    for (Candidate& candidate : realised_) simulate_promising(candidate);
    std::stable_sort(realised_.begin(), realised_.end(), better);
    add_variants_of_best();
    std::stable_sort(realised_.begin(), realised_.end(), better);
    add_fuller();
    std::stable_sort(realised_.begin(), realised_.end(), better);
    for (int round = 0; round < kPassRounds && add_other_passes(); ++round)
      std::stable_sort(realised_.begin(), realised_.end(), better);
    std::erase_if(realised_, [](const Candidate& one) { return !one.simulated; });
  }

  // Keeps the best `most` candidates, which are simulated next; all of them where `most` is 0. Of a
  // mixture it keeps more, but few of each form: a form has many candidates, by where experts lie.
  void keep_best(size_t most) {
    if (most == 0) return;
    if (experts_below_ >= 1) {
      realised_.resize(std::min(realised_.size(), most));
      return;
    }
    // With many sequences lanes are as busy as the linear program takes them, and a simulation
    // long.
    const size_t more = most_sequences() <= kFewSequences ? kMoreOfMixtures : 1;
    std::map<BlockForm, int> of_form;
    std::vector<Candidate> kept;
    for (Candidate& one : realised_)
      if (kept.size() < more * most && ++of_form[form_of(one.policy)] <= kOfOneForm)
        kept.push_back(std::move(one));
    realised_ = std::move(kept);
  }

  // Its passes stay in their classes; those of sizes between them are dealt to whom they suit.
  void place_borders(Candidate& candidate) {
    candidate.policy =
        with_borders(request_.input, make_plan_, candidate.policy, *request_.profile, request_.job);
    candidate.plan = make_plan_(candidate.policy);
  }

  // Beside a device the host multiplies the rows of passes that ask: up to how many is for the
  // machine's rates to say. Their answers take memory.
  void place_demand(Candidate& candidate) {
    const Plan& plan = candidate.plan;
    if (!has_device_ || candidate.policy.demand_tokens >= 0 || plan.demand_tokens == 0) return;
    Policy policy = candidate.policy;
    policy.demand_tokens = fastest_demand(*request_.input.model, plan, *request_.profile,
                                          request_.input.kv_dtype, request_.job);
    auto shrunk = fitter_.shrink(policy);
    if (!shrunk) return;
    Candidate other = candidate;
    other.plan = fitter_.grow(std::move(*shrunk));
    other.policy = other.plan.policy;
    other.predicted =
        predict(*request_.input.model, other.plan, *request_.profile, request_.input.kv_dtype,
                request_.job, passes_(other.plan), nullptr, &known_);
    if (candidate.simulated) simulate(other);
    if (step_of(job_seconds(other)) <= step_of(job_seconds(candidate)))
      candidate = std::move(other);
  }

  // Guesses take memory, and of the disk what wrong ones cost: they have to be worth it.
  void drop_useless_guesses(Candidate& candidate) {
    if (request_.start.guess_slots >= 0 || candidate.plan.guess_slot_bytes == 0) return;
    constexpr double kWorth = 0.99;
    Candidate without = candidate;
    without.policy.guess_slots = 0;
    without.plan = make_plan_(without.policy);
    if (!candidate.simulated) simulate(candidate);
    simulate(without);
    if (candidate.simulated->seconds() > kWorth * without.simulated->seconds())
      candidate = std::move(without);
  }

  // The cost model's seconds are a bound below the simulation's, which lanes' waits are added to: a
  // candidate that is no faster by them than one that was simulated can't be the best.
  void simulate_promising(Candidate& candidate) {
    if (least_.simulated > 0 && job_seconds(candidate) >= least_.simulated) return;
    for (const Candidate& other : realised_)
      if (other.simulated && other.policy == candidate.policy) {
        candidate.simulated = other.simulated;
        return;
      }
    simulate(candidate);
    if (is_late(candidate)) return;
    lower(least_.simulated, job_seconds(candidate));
  }

  void simulate(Candidate& candidate) const {
    stop_if_asked(request_);
    candidate.simulated = simulate_block(*request_.input.model, candidate.plan, *request_.profile,
                                         request_.input.kv_dtype, request_.job);
  }

  const SearchRequest& request_;
  bool has_device_;
  // Where experts may lie below the device and all else on it, their share of all weights; else 1.
  double experts_below_;
  std::vector<int64_t> demands_;
  PlanMaker make_plan_;
  Fitter fitter_;
  int64_t host_attention_tokens_;  // of attention on the host, where it is chosen
  double bound_seconds_ = 0;       // that the linear programs keep to; 0: none
  // Seconds of the job, 0: none yet.
  struct {
    double planned = 0;    // by the linear programs
    double decode = 0;     // likewise, of what was tried last
    double simulated = 0;  // in time
  } least_;
  KnownCosts known_;
  PassMaker passes_, fewest_passes_;
  std::vector<Block> blocks_;
  std::vector<Candidate> realised_;
  SearchResult result_;
};

void check(const SearchRequest& request) {
  const auto refuse = [](const char* what, const char* mend) {
    throw Error(ErrorKind::kUser, what, mend);
  };
  if (request.input.device_budget_bytes > 0 && !request.profile->device)
    refuse("a device budget on a machine without a device", "leave `device_budget_bytes` out");
  if (request.job.sequences < 1 || !(request.job.prompt_tokens >= 1) ||
      !(request.job.new_tokens >= 1))
    refuse("a job has at least one sequence of one prompt token and one new token",
           "mend `sequences`, `prompt_tokens` or `new_tokens`");
  if (request.objective == Objective::kThroughputUnderLatency &&
      !(request.latency_bound_seconds > 0))
    refuse("throughput under a latency bound needs the bound", "give `latency_bound_seconds`");
  if (request.constraints.attention == AttentionPlace::kHost &&
      request.input.device_budget_bytes <= 0)
    refuse("attention on the host needs a device to be beside", "leave that constraint out");
}

std::string count_of(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Seconds as one writes them, never less.
std::string rounded_up(double seconds) {
  const double unit = std::pow(10, std::floor(std::log10(std::max(seconds, 1e-9))) - 2);
  return fmt::format("{:.6g}", std::ceil(seconds / unit) * unit);
}

// The fastest block of one sequence (or of those that the constraints name), whatever the
// objective.
std::optional<SearchResult> fastest_block(const SearchRequest& request) {
  SearchRequest fastest = request;
  fastest.objective = Objective::kLatency;
  return Search(fastest).run();
}
}  // namespace

const Prediction& prediction_of(const Candidate& candidate) noexcept {
  return candidate.simulated ? *candidate.simulated : candidate.predicted;
}

SearchResult search_policy(const SearchRequest& request) {
  check(request);
  validate(*request.profile);
  if (auto found = Search(request).run()) return std::move(*found);
  if (request.objective != Objective::kThroughputUnderLatency) {
    // Blocks that the LP's straight lines leave no room for.
    if (const auto least = least_that_fits(request)) return evaluate_policy(request, *least);
    explain_infeasible(request);
  }
  auto fastest = fastest_block(request);
  if (!fastest) explain_infeasible(request);
  const double least = prediction_of(fastest->best).seconds();
  if (least <= request.latency_bound_seconds * kInTime) return std::move(*fastest);
  throw Error(ErrorKind::kResource,
              fmt::format("no policy answers within {}: the fastest block, of {}, takes {}",
                          format_seconds(request.latency_bound_seconds),
                          count_of(fastest->best.policy.block_sequences(), "sequence"),
                          format_seconds(least)),
              fmt::format("the smallest bound that can be kept: `latency_bound_seconds` {}",
                          rounded_up(least)));
}

SearchResult evaluate_policy(const SearchRequest& request, const Policy& policy) {
  check(request);
  validate(*request.profile);
  validate(policy);
  const auto started = Clock::now();
  Candidate one;
  one.plan = make_plan(request.input, policy);
  one.policy = one.plan.policy;
  require_fit(request.input, one.plan);
  const ModelShape& model = *request.input.model;
  one.predicted = predict(model, one.plan, *request.profile, request.input.kv_dtype, request.job);
  stop_if_asked(request);
  if (request.simulated_candidates > 0)
    one.simulated =
        simulate_block(model, one.plan, *request.profile, request.input.kv_dtype, request.job);
  SearchResult out;
  out.best = one;
  out.ranked = {std::move(one)};
  out.candidates = 1;
  out.search_seconds = std::chrono::duration<double>(Clock::now() - started).count();
  return out;
}

}  // namespace sluice::policy
