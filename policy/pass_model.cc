#include "policy/pass_model.h"

#include <algorithm>
#include <cmath>

#include "src/base/bytes.h"
#include "src/schedule/pass_cut.h"

namespace sluice::policy {

namespace {
// Of the first `items`, how many a share takes when it is dealt evenly.
int64_t dealt(double share, int64_t items) {
  return static_cast<int64_t>(std::floor(share * static_cast<double>(items) + 1e-9));
}

// (query, key) pairs of tokens [first, first + count) where each sees `window` positions (0: all).
double visible_pairs(int64_t first, int64_t count, int64_t window) {
  const int64_t growing = window > 0 ? std::clamp<int64_t>(window - first, 0, count) : count;
  const auto rows = static_cast<double>(growing);
  return rows * static_cast<double>(first) + rows * (rows + 1) / 2 +
         static_cast<double>(count - growing) * static_cast<double>(window);
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

// `wanted` of `count` positions, spread evenly: the middle of each of as many equal runs.
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
        prompt_(prompt) {
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
        at = past(runs_from(at));
      }
    } else {  // so many that where each is cut makes no difference
      tokens_a_pass_ = plan.pass_tokens;
      count_ = cut;
    }
  }

  int64_t count() const { return count_; }

  /// Adds the micro-batches of a pass to it, as its class wants them.
  void add(int64_t index, PassWork& pass) const {
    const std::vector<TokenRun> runs = runs_of_pass(index);
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
  }

 private:
  static constexpr int64_t kWalked = 4096;
  struct Place {
    int64_t sequence = 0;
    int64_t first = 0;
  };

  static int64_t runs_of(int64_t items, int64_t each) { return (items + each - 1) / each; }

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
};
}  // namespace

int64_t PassWork::tokens() const noexcept {
  int64_t sum = 0;
  for (const BatchWork& one : work) sum += one.tokens;
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
  const auto chosen = spread(prefill.count(), most_prefill);
  for (const int64_t index : chosen) {
    PassWork& pass = out.passes.emplace_back();
    pass.is_prefill = true;
    prefill.add(index, pass);
  }
  out.prefill_passes = out.passes.size();
  out.prefill_scale = static_cast<double>(prefill.count()) / static_cast<double>(chosen.size());

  const size_t decode_class = policy.pass_class_of(out.sequences);
  const PassLimits limits = pass_limits(plan, decode_class);
  const auto steps = spread(decodes, most_decode);
  for (const int64_t step : steps) {
    PassWork& pass = out.passes.emplace_back();
    pass.pass_class = decode_class;
    MicroBatchCutter cutter(limits);
    for (int64_t s = 0; s < out.sequences; ++s)
      cutter.add({s, prompt + step, 1, false, loads.is_lower(s, prompt + step + 1)});
    loads.add(cutter.take(), pass);
  }
  if (!steps.empty())
    out.decode_scale = static_cast<double>(decodes) / static_cast<double>(steps.size());
  out.passes.back().more_follow = false;
  return out;
}

PassMaker::Input PassMaker::input_of(const Plan& plan) {
  Input out{plan.policy, plan.has_device, plan.paths.state.crosses_link(), plan.pass_tokens, {}};
  out.policy.weights = {};
  out.policy.inplace_host_fraction = 0;
  for (PassExecution& one : out.policy.larger_passes) one.inplace_host_fraction = 0;
  for (const KvPlan& kv : plan.kv)
    out.pages.push_back({kv.pages(), kv.lower_pages(), kv.disk_pages, kv.page_bytes});
  return out;
}

const BlockPasses& PassMaker::operator()(const Plan& plan) {
  Input input = input_of(plan);
  if (passes_.passes.empty() || !(input == last_)) {
    passes_ = block_passes(model_, plan, job_, most_prefill_, most_decode_);
    last_ = std::move(input);
  }
  return passes_;
}

}  // namespace sluice::policy
