#include "policy/pass_classes.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "policy/cost_model.h"

namespace sluice::policy {

namespace {
// Sizes of passes that estimates are made for grow by one of so many parts.
constexpr int64_t kEstimateSteps = 4;
// A class between two others is worth having from this gain on, where they cross.
constexpr double kWorthAClass = 0.95;
// Another share is worth having from this gain on.
constexpr double kWorthAShare = 0.995;
// Steps of the search for its share, at most: times are almost straight lines, so it takes one or
// two.
constexpr int kShareSteps = 4;
// Of a pass's time, what its lanes may differ by where they are called equal.
constexpr double kEqualLanes = 0.02;

// Passes that ask wait for their routes, which lanes do not show: they ask from this gain on.
constexpr double kWorthAsking = 0.9;
// The border between passes that ask and larger ones is found to one of so many parts.
constexpr int64_t kDemandSteps = 16;

// `plan` with passes of all sizes in one class.
Plan as_class(Plan plan, size_t pass_class) {
  for (size_t i = 0; i < plan.policy.larger_passes.size(); ++i)
    plan.policy.larger_passes[i].from_tokens = i < pass_class ? 0 : INT64_MAX;
  return plan;
}

class PassTimes {
 public:
  PassTimes(const ModelShape& model, const Profile& profile, KvFormat kv_dtype, const JobShape& job)
      : model_(model), profile_(profile), kv_dtype_(kv_dtype), job_(job) {}

  /// Of a plan with one class in use.
  double seconds(const Plan& plan, int64_t tokens) const { return estimate(plan, tokens).seconds; }
  PassEstimate estimate(const Plan& plan, int64_t tokens) const {
    tokens = std::clamp<int64_t>(tokens, 1, plan.pass_tokens);
    JobShape job = job_;
    const int64_t sequences = sequences_of(plan);
    if (tokens <= sequences) {
      job.sequences = tokens;
      job.new_tokens = 2;
      return estimate_of(predict(model_, plan, profile_, kv_dtype_, job), tokens, false);
    }
    const auto prompt = std::min(std::max(job.prompt_tokens, 1.0), static_cast<double>(tokens));
    const double prompts = std::ceil(static_cast<double>(tokens) / prompt);
    job.sequences = std::min(sequences, static_cast<int64_t>(prompts));
    job.prompt_tokens = static_cast<double>(tokens) / static_cast<double>(job.sequences);
    job.new_tokens = 1;
    return estimate_of(predict(model_, plan, profile_, kv_dtype_, job), tokens, true);
  }
  int64_t sequences_of(const Plan& plan) const {
    return std::clamp<int64_t>(job_.sequences, 1, plan.policy.block_sequences());
  }
  /// The fewest tokens in (few, many] of which a pass takes no longer in `larger` than in
  /// `smaller`; `many` where there are none.
  int64_t border(const Plan& plan, size_t smaller, size_t larger, int64_t few, int64_t many) const {
    const Plan one = as_class(plan, smaller);
    const Plan other = as_class(plan, larger);
    // A pass's times are almost straight lines of its tokens: where those of the last two sizes
    // meet, then the middle, in turn.
    std::optional<double> at_few, at_many;  // seconds that `larger` takes more
    for (bool halves = true; few + 1 < many; halves = !halves) {
      const auto [a, b] = std::pair{static_cast<double>(few), static_cast<double>(many)};
      const bool knows_ends = at_few && at_many && *at_few > *at_many;
      const double tokens =
          halves || !knows_ends ? std::sqrt(a * b) : a + (b - a) * *at_few / (*at_few - *at_many);
      const auto next = std::clamp(static_cast<int64_t>(std::llround(tokens)), few + 1, many - 1);
      const double more = seconds(other, next) - seconds(one, next);
      (more <= 0 ? many : few) = next;
      (more <= 0 ? at_many : at_few) = more;
    }
    return many;
  }

 private:
  static PassEstimate estimate_of(const Prediction& of, int64_t tokens, bool is_prefill) {
    const PerLane<double>& lanes = is_prefill ? of.prefill_lanes : of.decode_lanes;
    PassEstimate out{static_cast<double>(tokens),
                     is_prefill ? of.prefill_seconds : of.decode_seconds,
                     is_prefill ? of.prefill_held_seconds : of.decode_held_seconds,
                     lanes[Lane::kDeviceCompute],
                     is_prefill ? of.prefill_inplace_seconds : of.decode_inplace_seconds,
                     lanes[Lane::kHostToDevice],
                     0};
    for (size_t i = 0; i < lanes.size(); ++i) {
      const Lane lane(i);
      if (lane == Lane::kDeviceCompute || lane == Lane::kHostToDevice) continue;
      const double seconds = lane == Lane::kHostCompute ? lanes[lane] - out.inplace : lanes[lane];
      out.others = std::max(out.others, seconds);
    }
    return out;
  }

  const ModelShape& model_;
  const Profile& profile_;
  KvFormat kv_dtype_;
  JobShape job_;
};

// What passes take with a share of the host's rows in place.
struct AtShare {
  double share;
  double seconds;
  double excess;  // of the lane that computes over the link
};

AtShare at_share(double share, const PassEstimate& pass) {
  return {share, pass.seconds, pass.held - pass.up};
}

// The share from one to another with which passes are fastest: with more the link has less to do
// and the lane that computes more, so it is an end or where the two take as long, by secants.
// `at` is asked for the shares between.
template <typename At>
AtShare fastest_share(AtShare less, AtShare more, const At& at) {
  AtShare best = more.seconds <= less.seconds ? more : less;
  for (int step = 0; step < kShareSteps && less.excess < 0 && more.excess > 0; ++step) {
    const double way = -less.excess / (more.excess - less.excess);
    const AtShare between = at(less.share + way * (more.share - less.share));
    if (between.seconds < best.seconds) best = between;
    if (std::abs(between.excess) < kEqualLanes * between.seconds) break;
    (between.excess < 0 ? less : more) = between;
  }
  return best;
}

// A class between the two of `policy` for passes around `tokens`, with the share in place that is
// fastest there.
Policy with_middle(const PassTimes& times, PlanMaker& make_plan, Policy policy, int64_t tokens) {
  PassExecution middle = policy.larger_passes.front();
  middle.micro_batch_tokens = std::min(policy.micro_batch_tokens, 4 * tokens);
  policy.larger_passes.insert(policy.larger_passes.begin(), middle);
  policy.larger_passes[1].from_tokens = tokens + 1;
  double& share = policy.larger_passes[0].inplace_host_fraction;
  const auto at = [&](double of) {
    share = of;
    return at_share(of, times.estimate(as_class(make_plan(policy), 1), tokens));
  };
  const double smaller = policy.inplace_host_fraction;
  const double larger = policy.larger_passes[1].inplace_host_fraction;
  share = fastest_share(at(std::min(smaller, larger)), at(std::max(smaller, larger)), at).share;
  return policy;
}

// A class for passes of few of the `decoding` sequences: with less to multiply, more is fastest in
// place. As given where that gains nothing or does not fit.
Policy with_fewest(const PlanInput& input, const PassTimes& times, PlanMaker& make_plan,
                   const Policy& given, int64_t decoding) {
  if (decoding < 2 || given.pass_classes() >= kMostPassClasses ||
      given.inplace_host_fraction >= given.weights.host)
    return given;
  Policy policy = given;
  policy.larger_passes.insert(policy.larger_passes.begin(), given.execution(0));
  policy.larger_passes[0].from_tokens = decoding;
  policy.larger_passes[0].micro_batch_tokens = 0;
  const auto at = [&](double share) {
    policy.inplace_host_fraction = share;
    return at_share(share, times.estimate(as_class(make_plan(policy), 0), 1));
  };
  policy.inplace_host_fraction =
      fastest_share(at(given.inplace_host_fraction), at(given.weights.host), at).share;
  const Plan plan = make_plan(policy);
  if (!fits(input, plan) || times.seconds(as_class(plan, 0), 1) >
                                kWorthAClass * times.seconds(as_class(make_plan(given), 0), 1))
    return given;
  policy.larger_passes[0].from_tokens = times.border(plan, 0, 1, 1, decoding);
  return policy;
}
}  // namespace

void drop_equal_classes(Policy& policy) {
  PassExecution before = policy.execution(0);
  std::erase_if(policy.larger_passes, [&](const PassExecution& one) {
    const bool is_equal =
        std::abs(one.inplace_host_fraction - before.inplace_host_fraction) < 1e-4 &&
        one.attention == before.attention && one.micro_batch_tokens == 0;
    if (!is_equal) before = one;
    return is_equal;
  });
}

int64_t host_attention_tokens(const ModelShape& model, const Profile& profile, KvFormat kv_dtype,
                              const JobShape& job) {
  constexpr double kMost = 4096;
  const double context = job.prompt_tokens + job.new_tokens / 2;
  int64_t width = model.head_dim;
  for (const StateGroup& group : model.state_groups)
    if (group.state.is_latent()) width = group.state.width;  // queries come to the latent rows'
  const double q_cols = static_cast<double>(model.num_heads) * static_cast<double>(width);
  // Of a mean layer.
  double seen = 0;
  double bytes = 0;
  for (const StateGroup& group : model.state_groups) {
    const double share = static_cast<double>(group.num_layers + group.num_readers) /
                         static_cast<double>(model.num_layers);
    const auto window = static_cast<double>(group.state.window);
    const double visible = window > 0 ? std::min(context, window) : context;
    seen += share * visible;
    bytes += share * visible * static_cast<double>(group.state.token_bytes(kv_dtype));
  }
  const Link& link = profile.link;
  const double up = bytes / link.to_device.value;
  const double of_token = prefill_attention_seconds(profile.host, kv_dtype, 4 * seen * q_cols) +
                          4 * q_cols * (1 / link.to_host.value + 1 / link.to_device.value);
  return static_cast<int64_t>(std::clamp(up / of_token, 1.0, kMost));
}

double pass_seconds(const ModelShape& model, const Plan& plan, const Profile& profile,
                    KvFormat kv_dtype, const JobShape& job, size_t pass_class, int64_t tokens) {
  return PassTimes(model, profile, kv_dtype, job).seconds(as_class(plan, pass_class), tokens);
}

int64_t fastest_demand(const ModelShape& model, const Plan& plan, const Profile& profile,
                       KvFormat kv_dtype, const JobShape& job) {
  const PassTimes times(model, profile, kv_dtype, job);
  Plan asks = plan, loads = plan;
  asks.demand_tokens = plan.pass_tokens;
  loads.demand_tokens = 0;
  const auto is_asking_faster = [&](int64_t tokens) {
    const size_t pass_class = plan.policy.pass_class_of(tokens);
    return times.seconds(as_class(asks, pass_class), tokens) <
           kWorthAsking * times.seconds(as_class(loads, pass_class), tokens);
  };
  if (is_asking_faster(plan.pass_tokens)) return plan.pass_tokens;
  int64_t few = 1, many = plan.pass_tokens;
  while (few + few / kDemandSteps + 1 < many) {
    const double middle = std::sqrt(static_cast<double>(few) * static_cast<double>(many));
    const auto next = std::clamp(static_cast<int64_t>(std::llround(middle)), few + 1, many - 1);
    (is_asking_faster(next) ? few : many) = next;
  }
  return few;
}

PassEstimates pass_estimates(const ModelShape& model, const Plan& plan, const Profile& profile,
                             KvFormat kv_dtype, const JobShape& job) {
  PassEstimates out;
  if (plan.classes.size() < 2) return out;
  out.up_rate = profile.link.to_device.value;
  const PassTimes times(model, profile, kv_dtype, job);
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const Plan one = as_class(plan, i);
    std::vector<PassEstimate>& of = out.classes.emplace_back();
    for (int64_t tokens = 1; tokens < plan.pass_tokens; tokens += 1 + tokens / kEstimateSteps)
      of.push_back(times.estimate(one, tokens));
    of.push_back(times.estimate(one, plan.pass_tokens));
  }
  return out;
}

PassMaker fewest_passes(const ModelShape& model, const JobShape& job) noexcept {
  return {model, job, 1, 1};
}

Policy with_fastest_shares(const PlanInput& input, PlanMaker& make_plan, PassMaker& make_passes,
                           const Policy& given, const Profile& profile, const JobShape& job,
                           KnownCosts& known) {
  const double most = given.weights.host;
  if (input.device_budget_bytes <= 0 || most <= 0) return given;
  Policy best = given;
  const size_t last = given.larger_passes.size();
  for (size_t pass_class = 0; pass_class <= last; pass_class += std::max<size_t>(last, 1)) {
    Policy policy = best;
    double& share = pass_class == 0 ? policy.inplace_host_fraction
                                    : policy.larger_passes[pass_class - 1].inplace_host_fraction;
    const auto at = [&](double of) {
      share = of;
      const Plan plan = make_plan(policy);
      const Prediction whole = predict(*input.model, plan, profile, input.kv_dtype, job,
                                       make_passes(plan), nullptr, &known);
      double held = 0, up = 0;
      if (pass_class == last) {
        held += whole.prefill_held_seconds;
        up += whole.prefill_lanes[Lane::kHostToDevice];
      }
      if (pass_class == 0) {
        held += whole.decode_held_seconds;
        up += whole.decode_lanes[Lane::kHostToDevice];
      }
      return AtShare{of, whole.seconds(), held - up};
    };
    const AtShare now = at(share);
    const AtShare found =
        now.excess < 0 ? fastest_share(now, at(most), at) : fastest_share(at(0), now, at);
    share = found.share;
    if (found.seconds < kWorthAShare * now.seconds && fits(input, make_plan(policy))) best = policy;
  }
  return best;
}

namespace {
// Of the two classes given: the border between them, and a class between where it is worth one.
Policy with_larger(const PlanInput& input, const PassTimes& times, PlanMaker& make_plan,
                   const Policy& given, const JobShape& job) {
  Policy policy = given;
  Plan plan = make_plan(policy);
  // Decode passes stay below the border by more than a class is kept for (ClassChooser).
  const int64_t decoding = times.sequences_of(plan);
  const int64_t few = decoding + decoding / 8 + 1;
  const double prompts = static_cast<double>(decoding) * std::max(job.prompt_tokens, 1.0);
  const int64_t many = std::min(plan.pass_tokens, static_cast<int64_t>(std::llround(prompts)));
  if (many <= few + 1) return given;
  int64_t& border = policy.larger_passes[0].from_tokens;
  border = times.border(plan, 0, 1, few, many);
  if (policy.larger_passes[0].attention != policy.attention || border <= few + 1) return policy;
  const Policy three = with_middle(times, make_plan, policy, border);
  plan = make_plan(three);
  const double now = times.seconds(as_class(make_plan(policy), 1), border);
  if (!fits(input, plan) || times.seconds(as_class(plan, 1), border) > kWorthAClass * now)
    return policy;
  Policy out = three;
  out.larger_passes[0].from_tokens = times.border(plan, 0, 1, few, border);
  out.larger_passes[1].from_tokens =
      times.border(plan, 1, 2, std::max(border, out.larger_passes[0].from_tokens + 1), many);
  out.larger_passes[0].micro_batch_tokens =
      std::min(out.larger_passes[0].micro_batch_tokens, 2 * out.larger_passes[1].from_tokens);
  return fits(input, make_plan(out)) ? out : policy;
}
}  // namespace

Policy with_borders(const PlanInput& input, PlanMaker& make_plan, const Policy& given,
                    const Profile& profile, const JobShape& job) {
  if (given.larger_passes.size() != 1) return given;
  const PassTimes times(*input.model, profile, input.kv_dtype, job);
  const Policy policy = with_larger(input, times, make_plan, given, job);
  return with_fewest(input, times, make_plan, policy, times.sequences_of(make_plan(policy)));
}

}  // namespace sluice::policy
