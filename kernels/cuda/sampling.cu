#include "kernels/cuda/sampling.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPivots = 7;  // values that a pass of the search looks at
static_assert(2 * kPivots <= kWarps, "a warp adds up each sum");
constexpr int kByValue = 4;  // first passes of the search, which halve distances instead of ranks
constexpr int kMostPasses = kByValue + 12;  // 32 bits, at least 3 a pass; and what rounding costs
constexpr int kSampledWords = sizeof(SampledRow) / sizeof(uint32_t);
constexpr int64_t kSumBytes = (2 * kPivots + 1) * kWarps * static_cast<int64_t>(sizeof(uint64_t));
constexpr int kMostListed = 4096;  // keys that the search keeps in shared memory
constexpr int64_t kScratchBytes = kSumBytes + (kMostListed + 1) * int64_t{sizeof(uint32_t)};

// Floats as integers of the same order; both zeros are one.
SLUICE_DEVICE uint32_t key_of(float value) {
  const uint32_t bits = float_to_bits(value + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
SLUICE_DEVICE float value_of(uint32_t key) {
  return bits_to_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t kNothingKey = 0x007fffffu;   // -inf
constexpr uint32_t kInfinityKey = 0xff800000u;  // +inf; NaN is above it or below kNothingKey

// weight * 2^40, rounded down, for 0 <= weight <= 1.
SLUICE_DEVICE uint64_t fixed_point(float weight) {
  const uint32_t bits = float_to_bits(weight);
  const int shift = static_cast<int>(bits >> 23) - 110;  // of a mantissa of 24 bits
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  if (shift >= 0) return mantissa << shift;
  return shift > -24 ? mantissa >> -shift : 0;
}

struct Sum {
  SLUICE_DEVICE static uint64_t of(uint64_t a, uint64_t b) { return a + b; }
};
struct Larger {
  SLUICE_DEVICE static uint64_t of(uint64_t a, uint64_t b) { return a > b ? a : b; }
};

SLUICE_DEVICE uint64_t shuffle_xor_64(uint64_t value, int mask) {
  const auto low = static_cast<uint32_t>(shuffle_xor(static_cast<int>(value), mask));
  const auto high = static_cast<uint32_t>(shuffle_xor(static_cast<int>(value >> 32), mask));
  return (uint64_t{high} << 32) | low;
}

template <class Op>
SLUICE_DEVICE uint64_t over_warp(uint64_t value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    value = Op::of(value, shuffle_xor_64(value, mask));
  return value;
}

// Over the block, of kCount values at once; all threads get them. `scratch` may be used again at
// once.
template <class Op, int kCount>
SLUICE_DEVICE void over_block(uint64_t (&values)[kCount], uint64_t* scratch) {
  static_assert(kCount <= kWarps);
  uint64_t* totals = scratch + kCount * kWarps;
  SLUICE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const uint64_t value = over_warp<Op>(values[i]);
    if (lane_index() == 0) scratch[i * kWarps + warp_index()] = value;
  }
  block_sync();
  if (warp_index() < kCount) {
    const uint64_t value =
        over_warp<Op>(lane_index() < kWarps ? scratch[warp_index() * kWarps + lane_index()] : 0);
    if (lane_index() == 0) totals[warp_index()] = value;
  }
  block_sync();
  SLUICE_UNROLL
  for (int i = 0; i < kCount; ++i) values[i] = totals[i];
  block_sync();
}

// A row as the search sees it.
struct RowView {
  const float* logits;
  int32_t vocab_size;
  const uint32_t* mask;  // null: none
  int32_t mask_words;

  SLUICE_DEVICE uint32_t key(int32_t token) const {
    if (mask && (token / 32 >= mask_words || (mask[token / 32] >> (token % 32) & 1) == 0))
      return kNothingKey;
    return key_of(logits[token]);
  }
};

// Larger values first, of equals the lower token: as one number.
SLUICE_DEVICE uint64_t rank_of(uint32_t key, int32_t token) {
  return (uint64_t{key} << 32) | (0xffffffffu - static_cast<uint32_t>(token));
}
SLUICE_DEVICE int32_t token_of(uint64_t rank) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
}

struct Survey {
  uint64_t best;   // rank
  uint32_t least;  // key above -inf
  uint32_t count;  // of tokens above -inf
  bool is_unusable;
};

SLUICE_DEVICE Survey survey(const RowView& row, uint64_t* scratch) {
  uint64_t best[2] = {0, 0};
  uint64_t counts[2] = {0, 0};
  for (int32_t token = thread_index(); token < row.vocab_size; token += kThreads) {
    const uint32_t key = row.key(token);
    if (key == kNothingKey) continue;
    counts[0] += 1;
    counts[1] += key >= kInfinityKey || key < kNothingKey ? 1 : 0;
    best[0] = Larger::of(best[0], rank_of(key, token));
    best[1] = Larger::of(best[1], static_cast<uint32_t>(~key));
  }
  over_block<Larger>(best, scratch);
  over_block<Sum>(counts, scratch);
  return {best[0], ~static_cast<uint32_t>(best[1]), static_cast<uint32_t>(counts[0]),
          counts[1] != 0};
}

SLUICE_DEVICE uint64_t weight_of(uint32_t key, float largest, float temperature) {
  if (key <= kNothingKey) return 0;
  return fixed_point(exp_of((value_of(key) - largest) / temperature));
}

// Tokens at or above a key.
struct Above {
  uint32_t key;
  uint64_t count;
  uint64_t weight;
};

struct Between {
  Above low;   // reaches what is searched
  Above high;  // does not
  uint64_t target = 0;
};

// Where between `low` and `high` the sum over the tokens from there up reaches a target: of their
// weights, or their number. Ends when no token or one value only is between. What all weigh, which
// the target may depend on, comes with the first pass; once few tokens are between, a pass over the
// row makes a list of them, and the passes after it look at no others.
template <bool kByWeight, class TargetOf>
SLUICE_DEVICE Between search(const RowView& row, Between range, const TargetOf& target_of,
                             float largest, float temperature, uint64_t* scratch) {
  auto* listed = reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(scratch) + kSumBytes);
  uint32_t* list = listed + 1;
  bool is_listed = false;
  if (!kByWeight) range.target = target_of(0);
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const uint32_t width = range.high.key - range.low.key;
    const uint64_t between = range.low.count - range.high.count;
    const bool weighs_all = kByWeight && pass == 0;
    if (!weighs_all && (width <= 1 || between <= 1)) break;
    const bool makes_list = !is_listed && between <= kMostListed;
    if (makes_list) {
      if (thread_index() == 0) *listed = 0;
      block_sync();
    }
    uint32_t pivots[kPivots];
    const float low = value_of(range.low.key);
    const float step = (value_of(range.high.key) - low) / (kPivots + 1);
    SLUICE_UNROLL
    for (int i = 0; i < kPivots; ++i) {
      const auto by_rank =
          range.low.key + static_cast<uint32_t>(uint64_t{width} * (i + 1) / (kPivots + 1));
      const uint32_t by_value = key_of(low + step * static_cast<float>(i + 1));
      pivots[i] = pass < kByValue ? by_value : by_rank;
      if (pivots[i] < range.low.key || pivots[i] > range.high.key) pivots[i] = by_rank;
    }
    if (weighs_all) pivots[0] = range.low.key;
    // Tokens at or above each pivot, and their weights.
    constexpr int kSums = kByWeight ? 2 * kPivots : kPivots;
    uint64_t sums[kSums] = {};
    const int32_t count = is_listed ? static_cast<int32_t>(*listed) : row.vocab_size;
    for (int32_t i = thread_index(); i < count; i += kThreads) {
      const uint32_t key = is_listed ? list[i] : row.key(i);
      if (key < range.low.key || key >= range.high.key) continue;
      if (makes_list) list[add_shared(listed, 1)] = key;
      const uint64_t weight = kByWeight ? weight_of(key, largest, temperature) : 0;
      SLUICE_UNROLL
      for (int p = 0; p < kPivots; ++p) {
        if (key < pivots[p]) continue;
        sums[p] += 1;
        if constexpr (kByWeight) sums[kPivots + p] += weight;
      }
    }
    over_block<Sum>(sums, scratch);
    is_listed = is_listed || makes_list;
    if constexpr (kByWeight) {
      if (weighs_all) {
        range.low.weight = range.high.weight + sums[kPivots];
        range.target = target_of(range.low.weight);
      }
    }
    const Above high = range.high;
    SLUICE_UNROLL
    for (int i = 0; i < kPivots; ++i) {
      Above one{pivots[i], high.count + sums[i], 0};
      if constexpr (kByWeight) one.weight = high.weight + sums[kPivots + i];
      if ((kByWeight ? one.weight : one.count) >= range.target) {
        if (one.key > range.low.key) range.low = one;
      } else if (one.key < range.high.key) {
        range.high = one;
      }
    }
  }
  return range;
}

// The token at which the sum of weights by rising token exceeds `target`, which is less than the
// sum of all: halves of the range are narrowed down by warps, then by lanes.
template <class WeightOf>
SLUICE_DEVICE int32_t reach(int32_t vocab_size, uint64_t target, const WeightOf& weight_at,
                            uint64_t* scratch) {
  int32_t begin = 0;
  int32_t length = vocab_size;
  while (length > 1) {
    // Each warp has a slice of the range, whole lanes of it where there are as many.
    int32_t slice = (length + kWarps - 1) / kWarps;
    if (length > kThreads) slice = (slice + kWarp - 1) / kWarp * kWarp;
    const int32_t from = begin + warp_index() * slice;
    uint64_t weight = 0;
    for (int32_t i = lane_index(); i < slice; i += kWarp)
      if (from + i < begin + length) weight += weight_at(from + i);
    weight = over_warp<Sum>(weight);
    if (lane_index() == 0) scratch[warp_index()] = weight;
    block_sync();
    int32_t chosen = 0;
    for (; chosen < kWarps - 1 && target >= scratch[chosen]; ++chosen) target -= scratch[chosen];
    block_sync();
    length = chosen * slice + slice < length ? slice : length - chosen * slice;
    begin += chosen * slice;
  }
  return begin;
}

SLUICE_DEVICE float changed(float logit, const LogitChange& change) {
  logit += change.bias;
  logit = logit < 0 ? logit * change.repetition : logit / change.repetition;
  return change.is_banned != 0 ? value_of(kNothingKey) : logit - change.penalty;
}

// A token of the changed row.
SLUICE_DEVICE int32_t draw(const SamplingRow& how, const RowView& row, const Survey& all,
                           uint64_t* scratch) {
  const float largest = value_of(static_cast<uint32_t>(all.best >> 32));
  const float temperature = how.temperature;
  const Above none{static_cast<uint32_t>(all.best >> 32) + 1, 0, 0};
  Above kept{all.least, all.count, 0};
  if (how.top_k > 0 && static_cast<uint32_t>(how.top_k) < all.count)
    kept = search<false>(
               row, {kept, none}, [&](uint64_t) { return static_cast<uint64_t>(how.top_k); },
               largest, temperature, scratch)
               .low;
  // Of tokens with the least kept value, those up to `last_equal` are.
  int32_t last_equal = row.vocab_size;
  const auto weight_at = [&](int32_t token) {
    const uint32_t key = row.key(token);
    if (key < kept.key || (key == kept.key && token > last_equal)) return uint64_t{0};
    const float weight = exp_of((value_of(key) - largest) / temperature);
    return weight < how.min_p ? uint64_t{0} : fixed_point(weight);
  };
  const auto sum = [&](const auto& weight) {
    uint64_t total[1] = {0};
    for (int32_t token = thread_index(); token < row.vocab_size; token += kThreads)
      total[0] += weight(token);
    over_block<Sum>(total, scratch);
    return total[0];
  };
  if (how.top_p < 1.0f) {
    const auto target_of = [&](uint64_t all_weigh) {
      const double share = static_cast<double>(how.top_p) - 1e-7;
      const double wanted = share > 0 ? share * static_cast<double>(all_weigh) : 0;
      return wanted >= 1 ? static_cast<uint64_t>(wanted) : uint64_t{1};
    };
    const Between edge = search<true>(row, {kept, none}, target_of, largest, temperature, scratch);
    kept = edge.low;
    const uint64_t equals = edge.low.count - edge.high.count;
    if (equals > 1) {
      const uint64_t each = (edge.low.weight - edge.high.weight) / equals;
      const uint64_t missing = edge.target - edge.high.weight;
      const uint64_t needed = each > 0 ? (missing + each - 1) / each : equals;
      if (needed < equals) {
        last_equal = reach(
            row.vocab_size, needed - 1,
            [&](int32_t token) { return row.key(token) == kept.key ? uint64_t{1} : uint64_t{0}; },
            scratch);
        kept.weight = edge.high.weight + needed * each;
      }
    }
  }
  // What top-p keeps has been weighed, but for what min-p takes of it.
  const uint64_t total = how.top_p < 1.0f && how.min_p <= 0 ? kept.weight : sum(weight_at);
  const auto target = static_cast<uint64_t>(how.uniform * static_cast<double>(total));
  return reach(row.vocab_size, target < total ? target : total - 1, weight_at, scratch);
}

// A block a row.
SLUICE_KERNEL(kThreads) sample_kernel(SamplingArguments arguments) {
  auto* scratch = reinterpret_cast<uint64_t*>(shared_memory());
  const SamplingRow how = arguments.rows[block_x()];
  SampledRow& out = arguments.sampled[block_x()];
  for (int i = thread_index(); i < kSampledWords; i += kThreads)
    reinterpret_cast<uint32_t*>(&out)[i] = 0;
  float* logits = arguments.logits + int64_t{how.row} * arguments.vocab_size;
  RowView row{logits, arguments.vocab_size, nullptr, 0};
  Survey all = survey(row, scratch);
  if (all.is_unusable || all.count == 0) {
    if (thread_index() == 0) out.state = SampledState::kUnusable;
    return;
  }
  const float largest = value_of(static_cast<uint32_t>(all.best >> 32));
  if (how.alternatives >= 0) {
    uint64_t total[1] = {0};
    for (int32_t token = thread_index(); token < row.vocab_size; token += kThreads)
      total[0] += weight_of(row.key(token), largest, 1.0f);
    over_block<Sum>(total, scratch);
    if (thread_index() == 0) out.sum = total[0];
  }
  uint64_t before = ~uint64_t{0};
  for (int i = 0; i < how.alternatives && i < row.vocab_size; ++i) {
    uint64_t next[1] = {0};
    for (int32_t token = thread_index(); token < row.vocab_size; token += kThreads) {
      const uint64_t rank = rank_of(row.key(token), token);
      if (rank < before) next[0] = Larger::of(next[0], rank);
    }
    over_block<Larger>(next, scratch);
    before = next[0];
    if (thread_index() == 0) {
      out.tokens[i] = token_of(before);
      out.logits[i] = value_of(static_cast<uint32_t>(before >> 32));
    }
  }

  LogitChange* changes = arguments.changes + how.first_change;
  for (int i = thread_index(); i < how.changes; i += kThreads) {
    float& logit = logits[changes[i].token];
    changes[i].unchanged = logit;
    logit = changed(logit, changes[i]);
  }
  if (how.mask >= 0) {
    row.mask = arguments.masks + int64_t{how.mask} * arguments.mask_words;
    row.mask_words = arguments.mask_words;
  }
  if (how.changes > 0 || how.mask >= 0) {
    block_sync();
    all = survey(row, scratch);
  }
  SampledState state = SampledState::kChosen;
  if (all.is_unusable)
    state = SampledState::kUnusable;
  else if (all.count == 0)
    state = SampledState::kNothingLeft;
  int32_t token = token_of(all.best);
  if (state == SampledState::kChosen && how.temperature > 0) token = draw(how, row, all, scratch);
  block_sync();
  for (int i = thread_index(); i < how.changes; i += kThreads)
    logits[changes[i].token] = changes[i].unchanged;
  block_sync();
  if (thread_index() != 0) return;
  out.state = state;
  out.token = token;
  out.logit = state == SampledState::kChosen ? logits[token] : 0.0f;
  out.largest = largest;
}
}  // namespace

void sample(const SamplingArguments& arguments, int64_t count, Stream stream) {
  if (count == 0) return;
  launch("sample", sample_kernel, Grid{static_cast<int>(count)}, kThreads, kScratchBytes, stream,
         arguments);
}

}  // namespace sluice::cuda
