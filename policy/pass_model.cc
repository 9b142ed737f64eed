#include "policy/pass_model.h"

#include <algorithm>
#include <cmath>

#include "policy/pass_samples.h"
#include "src/base/bytes.h"
#include "src/schedule/pass_cut.h"

namespace sluice::policy {

namespace {
// Of the first `items`, how many a share takes when it is dealt evenly.
int64_t dealt(double share, int64_t items) {
  return static_cast<int64_t>(std::floor(share * static_cast<double>(items) + 1e-9));
}

class Loads {
 public:
  Loads(const ModelShape& model, const Plan& plan, int64_t prompt)
      : model_(model), plan_(plan), policy_(plan.policy), prompt_(prompt) {
    for (const KvPlan& kv : plan.kv) {
      const auto pages = static_cast<double>(kv.pages());
      const auto lower = static_cast<double>(kv.lower_pages());
      shares_.push_back(
          pages > 0 ? Shares{lower / pages, static_cast<double>(kv.disk_pages) / pages} : Shares{});
      lower_ = std::max(lower_, shares_.back().lower);
    }
    keeps_whole_ = plan.host_attends();
  }

  /// Whether every sequence's chunk that ends there does what is_lower() says of the first's.
  bool are_alike() const { return !keeps_whole_ || lower_ <= 0 || lower_ >= 1; }
  /// Whether a chunk that ends there works on pages below the compute tier.
  bool is_lower(int64_t sequence, int64_t end) const {
    if (keeps_whole_) return dealt(lower_, sequence + 1) > dealt(lower_, sequence);
    return dealt(lower_, pages_of_run(0, end, policy_.page_tokens).end) > 0;
  }

  void add(const std::vector<MicroBatchCut>& batches, PassWork& pass) const {
    pass.loads.reserve(batches.size());
    pass.work.reserve(batches.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      if (i == 0 || !is_like(batches[i - 1], batches[i])) {
        add_one(batches[i], pass);
        continue;
      }
      pass.loads.push_back(pass.loads.back());
      pass.work.push_back(pass.work.back());
      pass.loads.back().continues_previous = batches[i].continues_previous;
    }
  }

 private:
  // Of a group's pages, those below the compute tier, and of these those on disk.
  struct Shares {
    double lower = 0;
    double disk = 0;
  };

  // Whether both load and compute the same: their sequences are equal, and so are their runs.
  static bool is_like(const MicroBatchCut& one, const MicroBatchCut& other) {
    const auto is_like_run = [](const TokenRun& a, const TokenRun& b) {
      return a.first == b.first && a.count == b.count && a.is_lower == b.is_lower;
    };
    return one.lower == other.lower &&
           std::equal(one.runs.begin(), one.runs.end(), other.runs.begin(), other.runs.end(),
                      is_like_run);
  }

  void add_one(const MicroBatchCut& batch, PassWork& pass) const {
    MicroBatchLoad& load = pass.loads.emplace_back();
    BatchWork& work = pass.work.emplace_back();
    load.continues_previous = batch.continues_previous;
    work.pass_class = pass.pass_class;
    load.state.resize(plan_.kv.size());
    if (model_.has_readers()) load.shared.resize(plan_.kv.size());
    work.attention.resize(plan_.kv.size());
    work.tokens = batch.rows;
    const bool on_host =
        plan_.host_attends(work.pass_class) && batch.lower != LowerAttention::kDevice;
    int64_t lower_rows = 0;
    for (const TokenRun& run : batch.runs) lower_rows += add_run(run, on_host, load, work);
    for (size_t group = 0; group < plan_.kv.size(); ++group) {
      const LayerState& state = plan_.kv[group].state;
      const ExchangedBytes exchanged = exchanged_bytes(
          lower_rows, work.host_rows, model_.num_heads * state.width, state.elements_per_token());
      load.state[group].queries = exchanged.queries;
      load.state[group].outputs = exchanged.outputs;
      if (load.shared.empty()) continue;
      const ExchangedBytes asked = exchanged_bytes(
          0, work.host_rows, model_.num_heads * state.width, state.elements_per_token());
      load.shared[group].queries = asked.queries;
      load.shared[group].outputs = asked.outputs;
    }
    const int64_t row = model_.hidden_row_bytes();
    const auto rows = static_cast<double>(batch.rows);
    const auto on_disk = static_cast<int64_t>(std::ceil(policy_.activations.disk * rows - 1e-9));
    load.activation_bytes = round_up(on_disk * row, kDiskBlock);
    if (plan_.paths.state.crosses_link()) {
      const double lower = policy_.activations.disk + policy_.activations.host;
      load.activation_up_bytes = static_cast<int64_t>(std::ceil(lower * rows - 1e-9)) * row;
    }
  }

  // How many of its rows have their KV below a device, where the host attends.
  int64_t add_run(const TokenRun& run, bool host_attends, MicroBatchLoad& load,
                  BatchWork& work) const {
    const int64_t end = run.first + run.count;
    if (end >= prompt_) ++work.logit_rows;
    work.independent_tokens += independent_tokens(run.count);
    const bool is_below = !keeps_whole_ || this->is_lower(run.sequence, end);
    const bool is_lower = host_attends && is_below;
    const bool is_host = is_lower && !is_fresh_run(run.first, run.count);
    if (is_host) work.host_rows += run.count;
    for (size_t group = 0; group < plan_.kv.size(); ++group) {
      add_attention(run, is_host, plan_.kv[group].state, work.attention[group]);
      if (is_below)
        add_pages(run, host_attends, group, load.state[group],
                  load.shared.empty() || (is_lower && !is_host) ? nullptr : &load.shared[group]);
    }
    return is_lower ? run.count : 0;
  }

  static void add_attention(const TokenRun& run, bool is_host, const LayerState& state,
                            AttentionWork& work) {
    const double pairs = visible_pairs(run.first, run.count, state.window);
    if (is_host && run.count > 1) {
      work.host_prefill_pairs += pairs;
      work.host_prefill_tokens +=
          static_cast<double>(run.first + run.count - state.first_seen(run.first));
    } else if (is_host) {
      work.host_history_tokens += pairs;
    } else if (run.count > 1) {
      work.prefill_pairs += pairs;
    } else {
      work.device_history_tokens += pairs;
    }
  }

  // `shared`: of layers that read what others keep, null where they find it on the device.
  void add_pages(const TokenRun& run, bool host_attends, size_t group, StateBytes& load,
                 StateBytes* shared) const {
    const KvPlan& kv = plan_.kv[group];
    const Shares& shares = shares_[group];
    const PagesOfRun pages =
        pages_of_run(run.first, run.count, policy_.page_tokens, kv.state.first_seen(run.first));
    const bool is_recurrent = kv.state.is_recurrent();
    const int64_t history = std::max<int64_t>(pages.with_history - pages.begin, 0);
    const int64_t changed = std::min(pages.end - pages.first_changed,
                                     is_recurrent ? LayerState::kRecurrentPages : INT64_MAX);
    const double lower = keeps_whole_ ? 1 : shares.lower;
    const double disk = keeps_whole_ && shares.lower > 0 ? shares.disk / shares.lower : shares.disk;
    const int64_t staged = kv.disk_pages > 0 ? round_up(kv.page_bytes, kDiskBlock) : 0;
    // Pages are dealt over all sequences: a mean, since passes are sampled and sequences are equal.
    // Whole pages would be none at all, or one of every sequence.
    const auto bytes = [](double share, int64_t count, int64_t each) {
      return std::llround(share * static_cast<double>(count * each));
    };
    load.load += bytes(disk, history, staged);
    load.store += bytes(disk, changed, staged);
    if (shared) shared->load += bytes(disk, pages.end - pages.begin, staged);
    // What the host does not attend to comes up.
    if (!plan_.paths.state.crosses_link() || (host_attends && !is_recurrent)) return;
    load.up += bytes(lower, history, kv.page_bytes);
    load.down += bytes(lower, changed, kv.page_bytes);
    if (shared) shared->up += bytes(lower, pages.end - pages.begin, kv.page_bytes);
  }

  const ModelShape& model_;
  const Plan& plan_;
  const Policy& policy_;
  int64_t prompt_;
  std::vector<Shares> shares_;  // by group
  double lower_ = 0;            // the most of any group
  bool keeps_whole_ = false;    // a sequence's pages are all on the device or all below it
};

// `wanted` of `count` positions, spread evenly: the middle of each of as many equal runs. What a
// decode pass takes is linear in its position.
std::vector<int64_t> spread(int64_t count, int64_t wanted) {
  std::vector<int64_t> out;
  const int64_t taken = std::min(count, wanted);
  for (int64_t i = 0; i < taken; ++i) out.push_back((2 * i + 1) * count / (2 * taken));
  return out;
}

// The prefill passes of a block. Sequences that have their prompt behind them decode beside the
// others' prefill; those tokens are counted with the decode passes, where all sequences decode
// together.
class PrefillPasses {
 public:
  PrefillPasses(const Loads& loads, const Plan& plan, int64_t sequences, int64_t prompt)
      : loads_(loads),
        plan_(plan),
        limits_(pass_limits(plan, plan.policy.pass_class_of(plan.pass_tokens))),
        sequences_(sequences),
        prompt_(prompt),
        tallies_(plan.kv, limits_.micro_batch_tokens) {
    const int64_t cut = runs_of(sequences * prompt, plan.pass_tokens);
    if (loads.are_alike() && !loads.is_lower(0, prompt)) {
      // Wherever a pass is full.
      tokens_a_pass_ = plan.pass_tokens;
      count_ = cut;
    } else if (loads.are_alike() && prompt <= plan.pass_tokens) {
      tokens_a_pass_ = plan.pass_tokens / prompt * prompt;
      count_ = runs_of(sequences * prompt, tokens_a_pass_);
    } else if (cut <= kWalked) {
      for (Place at; at.sequence < sequences_; ++count_) {
        begins_.push_back(at);
        const std::vector<TokenRun> runs = runs_from(at);
        tallies_.open(count_);
        // What is on the device has nothing to move.
        for (const TokenRun& run : runs)
          tallies_.add_run(run.first, run.count, prompt_, 1,
                           loads.are_alike() || loads.is_lower(run.sequence, prompt_));
        at = past(runs);
      }
    } else {  // so many that where each is cut makes no difference
      tokens_a_pass_ = plan.pass_tokens;
      count_ = cut;
    }
    if (begins_.empty()) tally_some();
  }

  /// Of the full ones `most`, and the last.
  std::vector<PassSample> samples(int64_t most) const {
    return choose_samples(tallies_, plan_.kv, count_, most, sequences_, prompt_);
  }

  /// Adds the micro-batches of a pass to it, as its class wants them, with the work of the passes
  /// that it stands for.
  void add(const PassSample& sample, PassWork& pass) const {
    pass.passes = sample.passes;
    const std::vector<TokenRun> runs = runs_of_pass(sample.pass);
    int64_t tokens = 0;
    for (const TokenRun& run : runs) tokens += run.count;
    pass.pass_class = plan_.policy.pass_class_of(tokens);
    const PassLimits limits = pass_limits(plan_, pass.pass_class);
    MicroBatchCutter cutter(limits);
    for (TokenRun run : runs) {
      run.is_whole = run.is_whole && run.count <= limits.micro_batch_tokens;
      cutter.add(run);
    }
    loads_.add(cutter.take(), pass);
    stand_for(sample, pass);
  }

 private:
  static constexpr int64_t kWalked = 4096;
  // Passes that are tallied where they are cut evenly, about.
  static constexpr int64_t kTallied = 256;
  struct Place {
    int64_t sequence = 0;
    int64_t first = 0;
  };

  static int64_t runs_of(int64_t items, int64_t each) { return (items + each - 1) / each; }

  void tally_some() {
    const int64_t tallied = std::min(count_ - 1, kTallied);
    for (int64_t i = 0; i < tallied; ++i) tally(i * (count_ - 1) / tallied);
    tally(count_ - 1);
  }

  // The end of a prompt, whole ones, the beginning of one: whichever there are.
  void tally(int64_t pass) {
    tallies_.open(pass);
    const int64_t end = std::min((pass + 1) * tokens_a_pass_, sequences_ * prompt_);
    for (int64_t token = pass * tokens_a_pass_; token < end;) {
      const int64_t first = token % prompt_;
      const int64_t count = std::min(prompt_ - first, end - token);
      const int64_t times = first == 0 ? std::max<int64_t>((end - token) / prompt_, 1) : 1;
      tallies_.add_run(first, count, prompt_, times);
      token += times * count;
    }
  }

  // Attention, and what it reads of its history, becomes that of a mean pass of these; logits those
  // of one in which as many prompts end.
  static void stand_for(const PassSample& sample, PassWork& pass) {
    int64_t ended = 0;
    for (BatchWork& work : pass.work) {
      ended += work.logit_rows;
      for (size_t group = 0; group < work.attention.size(); ++group)
        work.attention[group].scale(sample.pairs[group]);
    }
    const auto wanted = static_cast<int64_t>(std::ceil(sample.prompts - 1e-6));
    pass.work.back().logit_rows += std::max<int64_t>(wanted - ended, 0);
    for (MicroBatchLoad& load : pass.loads)
      for (auto* all : {&load.state, &load.shared})
        for (size_t group = 0; group < all->size(); ++group) {
          const auto scale = [&](int64_t& bytes) {
            bytes = std::llround(sample.history[group] * static_cast<double>(bytes));
          };
          scale((*all)[group].load);
          scale((*all)[group].up);
        }
  }

  std::vector<TokenRun> runs_of_pass(int64_t pass) const {
    if (!begins_.empty()) return runs_from(begins_[static_cast<size_t>(pass)]);
    std::vector<TokenRun> out;
    const int64_t end = std::min((pass + 1) * tokens_a_pass_, sequences_ * prompt_);
    for (int64_t token = pass * tokens_a_pass_; token < end;) {
      const int64_t sequence = token / prompt_;
      const int64_t first = token % prompt_;
      const int64_t count = std::min(prompt_ - first, end - token);
      const bool is_lower = loads_.is_lower(sequence, prompt_);
      out.push_back(
          {sequence, first, count, is_lower && count <= limits_.micro_batch_tokens, is_lower});
      token += count;
    }
    return out;
  }

  // What the engine takes when these are the sequences that wait: as many as may fill a pass.
  std::vector<TokenRun> runs_from(Place at) const {
    std::vector<PendingTokens> pending;
    int64_t tokens = 0;
    for (Place next = at; next.sequence < sequences_ && tokens < limits_.pass_tokens;
         next = {next.sequence + 1, 0}) {
      pending.push_back(
          {next.first, prompt_ - next.first, false, loads_.is_lower(next.sequence, prompt_)});
      tokens += pending.back().count;
    }
    std::vector<TokenRun> runs = take_tokens(pending, limits_).runs;
    for (TokenRun& run : runs) run.sequence += at.sequence;
    return runs;
  }

  Place past(const std::vector<TokenRun>& runs) const {
    const TokenRun& last = runs.back();
    const int64_t end = last.first + last.count;
    return end == prompt_ ? Place{last.sequence + 1, 0} : Place{last.sequence, end};
  }

  const Loads& loads_;
  const Plan& plan_;
  PassLimits limits_;  // of full passes
  int64_t sequences_;
  int64_t prompt_;
  int64_t count_ = 0;
  int64_t tokens_a_pass_ = 0;  // where all passes but the last have as many
  std::vector<Place> begins_;  // else: where each begins
  PassTallies tallies_;        // of all, or of some spread evenly
};
}  // namespace

RoutedTokens PassWork::routed() const noexcept {
  RoutedTokens sum;
  for (const BatchWork& one : work) {
    sum.all += one.tokens;
    sum.independent += one.independent_tokens;
  }
  return sum;
}

BlockPasses block_passes(const ModelShape& model, const Plan& plan, const JobShape& job,
                         int64_t most_prefill, int64_t most_decode) {
  const Policy& policy = plan.policy;
  BlockPasses out;
  out.sequences = std::clamp<int64_t>(job.sequences, 1, policy.block_sequences());
  const int64_t prompt = std::max<int64_t>(std::llround(job.prompt_tokens), 1);
  const int64_t decodes = std::max<int64_t>(std::llround(job.new_tokens), 1) - 1;
  const Loads loads(model, plan, prompt);

  const PrefillPasses prefill(loads, plan, out.sequences, prompt);
  for (const PassSample& sample : prefill.samples(most_prefill)) {
    PassWork& pass = out.passes.emplace_back();
    pass.is_prefill = true;
    prefill.add(sample, pass);
  }
  out.prefill_passes = out.passes.size();

  const size_t decode_class = policy.pass_class_of(out.sequences);
  const PassLimits limits = pass_limits(plan, decode_class);
  const auto steps = spread(decodes, most_decode);
  for (const int64_t step : steps) {
    PassWork& pass = out.passes.emplace_back();
    pass.pass_class = decode_class;
    pass.passes = static_cast<double>(decodes) / static_cast<double>(steps.size());
    MicroBatchCutter cutter(limits);
    for (int64_t s = 0; s < out.sequences; ++s)
      cutter.add({s, prompt + step, 1, false, loads.is_lower(s, prompt + step + 1)});
    loads.add(cutter.take(), pass);
  }
  out.passes.back().more_follow = false;
  return out;
}

PassMaker::Input PassMaker::input_of(const Plan& plan) {
  Input out{plan.policy, plan.has_device, plan.paths.state.crosses_link(), plan.pass_tokens, {}};
  out.policy.weights = {};
  out.policy.inplace_host_fraction = 0;
  out.policy.demand_tokens = 0;
  out.policy.guess_slots = 0;
  for (PassExecution& one : out.policy.larger_passes) one.inplace_host_fraction = 0;
  for (const KvPlan& kv : plan.kv)
    out.pages.push_back({kv.pages(), kv.lower_pages(), kv.disk_pages, kv.page_bytes});
  return out;
}

const BlockPasses& PassMaker::operator()(const Plan& plan) {
  Input input = input_of(plan);
  const auto known =
      std::find_if(made_.begin(), made_.end(), [&](const Made& one) { return one.input == input; });
  if (known != made_.end()) {
    made_.splice(made_.begin(), made_, known);
  } else {
    made_.push_front(
        {std::move(input), block_passes(model_, plan, job_, most_prefill_, most_decode_)});
    if (made_.size() > kKept) made_.pop_back();
  }
  return made_.front().passes;
}

}  // namespace sluice::policy
