// The passes that the engine would make of a block of equal sequences (src/engine/pass_plan.cc cuts
// real ones; the tests hold the two against each other).
#include <algorithm>
#include <cmath>

#include "policy/simulator.h"
#include "src/base/bytes.h"

namespace sluice::policy {

namespace {
struct Chunk {
  int64_t sequence;
  int64_t first;
  int64_t count;
};
struct Batch {
  std::vector<Chunk> chunks;
  int64_t rows = 0;
  bool continues_previous = false;
};

// Appends to the last micro-batch, or opens a new one when it is full, or has no room for all of a
// chunk that stays whole.
void add_tokens(std::vector<Batch>& batches, const Policy& policy, Chunk chunk, bool is_whole) {
  bool is_split = false;
  while (chunk.count > 0) {
    const int64_t rows = is_whole ? chunk.count : 1;
    if (batches.empty() || batches.back().rows + rows > policy.micro_batch_tokens ||
        static_cast<int64_t>(batches.back().chunks.size()) >= policy.micro_batch_sequences)
      batches.emplace_back();
    Batch& batch = batches.back();
    batch.continues_previous = batch.continues_previous || is_split;
    const int64_t piece = std::min(chunk.count, policy.micro_batch_tokens - batch.rows);
    batch.chunks.push_back({chunk.sequence, chunk.first, piece});
    batch.rows += piece;
    chunk.first += piece;
    chunk.count -= piece;
    is_split = true;
  }
}

// Of the first `items`, how many a share takes when it is dealt evenly.
int64_t dealt(double share, int64_t items) {
  return static_cast<int64_t>(std::floor(share * static_cast<double>(items) + 1e-9));
}

class Loads {
 public:
  Loads(const ModelShape& model, const Plan& plan, int64_t prompt)
      : model_(model), plan_(plan), policy_(plan.policy), prompt_(prompt) {
    const auto pages = static_cast<double>(plan.memory_pages + plan.lower_pages());
    lower_ = pages > 0 ? static_cast<double>(plan.lower_pages()) / pages : 0;
    disk_ = pages > 0 ? static_cast<double>(plan.disk_pages) / pages : 0;
    host_attends_ = plan.has_device && policy_.attention == AttentionPlace::kHost;
  }

  /// Whether every sequence's chunk that ends there does what is_lower() says of the first's.
  bool are_alike() const { return !host_attends_ || lower_ <= 0 || lower_ >= 1; }
  /// Whether a chunk that ends there works on pages below the compute tier.
  bool is_lower(int64_t sequence, int64_t end) const {
    if (host_attends_) return dealt(lower_, sequence + 1) > dealt(lower_, sequence);
    return dealt(lower_, (end + policy_.page_tokens - 1) / policy_.page_tokens) > 0;
  }

  void add(const Batch& batch, PassWork& pass) const {
    MicroBatchLoad& load = pass.loads.emplace_back();
    BatchWork& work = pass.work.emplace_back();
    load.continues_previous = batch.continues_previous;
    work.tokens = batch.rows;
    for (const Chunk& chunk : batch.chunks) add_chunk(chunk, load, work);
    const int64_t row = model_.hidden_size * 4;
    const auto rows = static_cast<double>(batch.rows);
    const auto on_disk = static_cast<int64_t>(std::ceil(policy_.activations.disk * rows - 1e-9));
    load.activation_bytes = round_up(on_disk * row, kDiskBlock);
    if (plan_.has_device) {
      const double lower = policy_.activations.disk + policy_.activations.host;
      load.activation_up_bytes = static_cast<int64_t>(std::ceil(lower * rows - 1e-9)) * row;
    }
  }

 private:
  void add_chunk(const Chunk& chunk, MicroBatchLoad& load, BatchWork& work) const {
    const int64_t end = chunk.first + chunk.count;
    if (end >= prompt_) ++work.logit_rows;
    const auto first = static_cast<double>(chunk.first);
    const auto count = static_cast<double>(chunk.count);
    const double pairs = count * first + count * (count + 1) / 2;
    const bool is_lower = host_attends_ && this->is_lower(chunk.sequence, end);
    const bool is_fresh = chunk.first == 0 && chunk.count > 1;
    if (is_lower) {
      const int64_t q = model_.num_heads * model_.head_dim;
      const int64_t kv = model_.num_kv_heads * model_.head_dim;
      load.query_bytes += 4 * chunk.count * (2 * kv + (is_fresh ? 0 : q));
      if (!is_fresh) load.output_bytes += 4 * chunk.count * q;
      if (!is_fresh) work.host_rows += chunk.count;
    }
    if (is_lower && !is_fresh && chunk.count > 1) {
      work.host_prefill_pairs += pairs;
      work.host_prefill_tokens += static_cast<double>(end);
    } else if (is_lower && !is_fresh)
      work.host_history_tokens += pairs;
    else if (chunk.count > 1)
      work.prefill_pairs += pairs;
    else
      work.device_history_tokens += pairs;
    if (host_attends_ && !is_lower) return;
    const int64_t page = policy_.page_tokens;
    const int64_t pages = (end + page - 1) / page;
    const int64_t with_history = (chunk.first + page - 1) / page;
    const int64_t first_changed = chunk.first / page;
    const double lower = host_attends_ ? 1 : lower_;
    const double disk = host_attends_ && lower_ > 0 ? disk_ / lower_ : disk_;
    const int64_t staged = plan_.disk_pages > 0 ? round_up(plan_.page_bytes, kDiskBlock) : 0;
    // Pages are dealt over all sequences: a mean, since passes are sampled and sequences are equal.
    // Whole pages would be none at all, or one of every sequence.
    const auto bytes = [](double share, int64_t count, int64_t each) {
      return std::llround(share * static_cast<double>(count * each));
    };
    load.kv_load_bytes += bytes(disk, with_history, staged);
    load.kv_store_bytes += bytes(disk, pages - first_changed, staged);
    if (!plan_.has_device || host_attends_) return;
    load.kv_up_bytes += bytes(lower, with_history, plan_.page_bytes);
    load.kv_down_bytes += bytes(lower, pages - first_changed, plan_.page_bytes);
  }

  const ModelShape& model_;
  const Plan& plan_;
  const Policy& policy_;
  int64_t prompt_;
  double lower_ = 0;
  double disk_ = 0;
  bool host_attends_ = false;
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
      : loads_(loads), plan_(plan), sequences_(sequences), prompt_(prompt) {
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
        at = walk(at, nullptr);
      }
    } else {  // so many that where each is cut makes no difference
      tokens_a_pass_ = plan.pass_tokens;
      count_ = cut;
    }
  }

  int64_t count() const { return count_; }

  std::vector<Batch> batches(int64_t pass) const {
    std::vector<Batch> out;
    if (!begins_.empty()) {
      walk(begins_[static_cast<size_t>(pass)], &out);
      return out;
    }
    const int64_t end = std::min((pass + 1) * tokens_a_pass_, sequences_ * prompt_);
    for (int64_t token = pass * tokens_a_pass_; token < end;) {
      const int64_t first = token % prompt_;
      const int64_t count = std::min(prompt_ - first, end - token);
      add({token / prompt_, first, count}, out);
      token += count;
    }
    return out;
  }

 private:
  static constexpr int64_t kWalked = 4096;
  struct Place {
    int64_t sequence = 0;
    int64_t first = 0;
  };

  static int64_t runs_of(int64_t items, int64_t each) { return (items + each - 1) / each; }

  void add(const Chunk& chunk, std::vector<Batch>& out) const {
    add_tokens(
        out, plan_.policy, chunk,
        loads_.is_lower(chunk.sequence, prompt_) && chunk.count <= plan_.policy.micro_batch_tokens);
  }

  // Past one pass; its micro-batches go to `out`, where given.
  Place walk(Place at, std::vector<Batch>* out) const {
    int64_t room = plan_.pass_tokens;
    while (at.sequence < sequences_ && room > 0) {
      const int64_t pending = prompt_ - at.first;
      const int64_t count = std::min(pending, room);
      if (count < pending && pending <= plan_.pass_tokens && loads_.is_lower(at.sequence, prompt_))
        break;
      if (out) add({at.sequence, at.first, count}, *out);
      room -= count;
      at.first += count;
      if (at.first == prompt_) at = {at.sequence + 1, 0};
    }
    return at;
  }

  const Loads& loads_;
  const Plan& plan_;
  int64_t sequences_;
  int64_t prompt_;
  int64_t count_ = 0;
  int64_t tokens_a_pass_ = 0;  // where all passes but the last have as many
  std::vector<Place> begins_;  // else: where each begins
};
}  // namespace

BlockPasses block_passes(const ModelShape& model, const Plan& plan, KvFormat, const JobShape& job,
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
    for (const Batch& batch : prefill.batches(index)) loads.add(batch, pass);
  }
  out.prefill_passes = out.passes.size();
  out.prefill_scale = static_cast<double>(prefill.count()) / static_cast<double>(chosen.size());

  const auto steps = spread(decodes, most_decode);
  for (const int64_t step : steps) {
    PassWork& pass = out.passes.emplace_back();
    std::vector<Batch> batches;
    for (int64_t s = 0; s < out.sequences; ++s)
      add_tokens(batches, policy, {s, prompt + step, 1}, false);
    for (const Batch& batch : batches) loads.add(batch, pass);
  }
  if (!steps.empty())
    out.decode_scale = static_cast<double>(decodes) / static_cast<double>(steps.size());
  out.passes.back().more_follow = false;
  return out;
}

}  // namespace sluice::policy
