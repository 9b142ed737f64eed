#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention_order.h"
#include "kernels/cpu/variant.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
// A context is split only into pieces of so many positions: less is not worth a merge.
constexpr int64_t kSplitPositions = 256;
// By row contexts are cut at multiples of so many positions, whoever attends.
constexpr int32_t kPiecePositions = 512;
// Items that each thread should find, so that none waits long for the last.
constexpr int64_t kItemsPerThread = 4;

int64_t slot_floats(const AttentionShape& shape) noexcept {  // one item's partial result
  return attention_most_rows(shape) * (shape.head_dim + 1);
}

// How the work of one sequence is cut: token blocks x KV heads, and each of those into splits of
// its context.
struct Cut {
  int32_t block_tokens;
  int32_t blocks;
  int32_t splits;
  int32_t piece_positions;  // of a split that is the same for all blocks; 0: even parts
  int64_t items;
};

// What items are cut by.
struct CutRules {
  SumOrder order;
  int64_t splits_wanted;  // of a context, in the fastest order
  bool joins_splits;      // an item's are one thread's, which merges them as they come
};

// By row, codes meet as many rows as kernels on integers take, and where an item's first position
// or the positions that it keeps are a token's own, tokens attend one by one.
int32_t block_tokens(const AttentionShape& shape, SumOrder order) noexcept {
  const int group = shape.num_heads / shape.num_kv_heads;
  int64_t rows = attention_block_rows(shape);
  if (order == SumOrder::kByRow) {
    if (shape.sliding_window > 0 || shape.sparsity < 1) return 1;
    if (shape.kv_dtype.is_quantised()) rows = std::min(rows, kCodeRows);
  }
  return std::max(1, static_cast<int32_t>(rows) / group);
}

Cut cut_sequence(const AttentionShape& shape, const AttentionSequence& sequence,
                 const CutRules& rules) noexcept {
  Cut cut{};
  cut.block_tokens = block_tokens(shape, rules.order);
  cut.blocks = (sequence.count + cut.block_tokens - 1) / cut.block_tokens;
  int64_t context = sequence.first_position + int64_t{sequence.count};
  if (shape.sliding_window > 0)
    context = std::min<int64_t>(context, int64_t{shape.sliding_window} + cut.block_tokens);
  cut.splits = 1;
  const bool is_by_row = rules.order == SumOrder::kByRow;
  if (is_by_row && shape.sliding_window == 0) cut.piece_positions = kPiecePositions;
  // The highest of a context are chosen from all of it.
  if (shape.sparsity == 1 && cut.piece_positions > 0)
    cut.splits = static_cast<int32_t>((context + kPiecePositions - 1) / kPiecePositions);
  else if (shape.sparsity == 1 && !is_by_row)
    cut.splits = static_cast<int32_t>(
        std::clamp<int64_t>(context / kSplitPositions, 1, rules.splits_wanted));
  cut.items = int64_t{cut.blocks} * shape.num_kv_heads * (rules.joins_splits ? 1 : cut.splits);
  return cut;
}

// Item `index` of a sequence: split fastest, then KV head, then blocks from the last (the longest
// context) to the first.
AttentionItem make_item(const AttentionShape& shape, const AttentionSequence& sequence,
                        const Cut& cut, int64_t index) noexcept {
  const int64_t split = index % cut.splits;
  const int64_t base = index / cut.splits;
  AttentionItem item{};
  item.sequence = &sequence;
  item.kv_head = static_cast<int>(base % shape.num_kv_heads);
  item.token_begin =
      (cut.blocks - 1 - static_cast<int32_t>(base / shape.num_kv_heads)) * cut.block_tokens;
  item.token_end = std::min(sequence.count, item.token_begin + cut.block_tokens);
  const int32_t whole_end = sequence.first_position + item.token_end;
  const int32_t unit = shape.kv_dtype.is_quantised() && has_whole_blocks(shape)
                           ? static_cast<int32_t>(KvFormat::kKeyBlock)
                           : 1;
  const int32_t first = sequence.first_position + item.token_begin;
  const int32_t window = shape.sliding_window;
  const int32_t oldest = shape.is_chunked ? first / window * window
                         : window > 0     ? std::max(0, first - window + 1)
                                          : 0;
  const int32_t whole_begin = oldest / unit * unit;
  const auto at = [&](int64_t i) {
    if (i == cut.splits) return whole_end;
    if (cut.piece_positions > 0)
      return std::min(whole_end, static_cast<int32_t>(i) * cut.piece_positions);
    return whole_begin +
           static_cast<int32_t>((whole_end - whole_begin) * i / cut.splits) / unit * unit;
  };
  item.position_begin = at(split);
  item.position_end = at(split + 1);
  return item;
}

// The items of all sequences in one row, numbered; a cursor finds rising numbers.
class ItemCursor {
 public:
  ItemCursor(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
             const CutRules& rules) noexcept
      : shape_(shape), sequences_(sequences), rules_(rules) {}

  /// False past the last item. Numbers must not fall.
  bool seek(int64_t number) noexcept {
    for (; at_ < sequences_.size(); ++at_) {
      cut_ = cut_sequence(shape_, sequences_[at_], rules_);
      if (number < first_ + cut_.items) {
        index_ = number - first_;
        return true;
      }
      first_ += cut_.items;
    }
    return false;
  }
  const AttentionSequence& sequence() const noexcept { return sequences_[at_]; }
  const Cut& cut() const noexcept { return cut_; }
  int64_t index() const noexcept { return index_; }
  AttentionItem item() const noexcept { return item(index_); }
  /// Where splits are joined.
  AttentionItem split(int64_t split) const noexcept { return item(index_ * cut_.splits + split); }

 private:
  AttentionItem item(int64_t index) const noexcept {
    AttentionItem item = make_item(shape_, sequence(), cut_, index);
    item.order = rules_.order;
    return item;
  }

  const AttentionShape& shape_;
  std::span<const AttentionSequence> sequences_;
  CutRules rules_;
  size_t at_ = 0;      // the sequence that holds item first_
  int64_t first_ = 0;  // number of its first item
  int64_t index_ = 0;
  Cut cut_{};
};

int64_t count_items(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
                    const CutRules& rules) noexcept {
  int64_t items = 0;
  for (const AttentionSequence& sequence : sequences)
    items += cut_sequence(shape, sequence, rules).items;
  return items;
}

int64_t rows_of(const AttentionShape& shape, const AttentionItem& item) noexcept {
  return int64_t{item.token_end - item.token_begin} * (shape.num_heads / shape.num_kv_heads);
}

// Where a split's partial result lies in a slot.
void put_into(float* slot, const AttentionShape& shape, AttentionItem& item) noexcept {
  item.out = slot;
  item.lse = slot + rows_of(shape, item) * shape.head_dim;
}

void merge_slots(const AttentionShape& shape, const AttentionItem& item, float* slot,
                 const float* other) noexcept {
  const int64_t rows = rows_of(shape, item), values = rows * shape.head_dim;
  merge_attention(slot, slot + values, other, other + values, rows, shape.head_dim);
}

// A slot with all splits of an item to the sequence's out.
void put_merged(const AttentionShape& shape, const AttentionSequence& sequence,
                const AttentionItem& item, float* slots) noexcept {
  const int group = shape.num_heads / shape.num_kv_heads;
  const int64_t rows = rows_of(shape, item);
  float* lse = slots + rows * shape.head_dim;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = item.token_begin + r / group;
    const int64_t head = int64_t{item.kv_head} * group + r % group;
    if (shape.sinks) {
      const float factor = add_sink(shape.sinks[head], lse[r]);
      for (int d = 0; d < shape.head_dim; ++d) slots[r * shape.head_dim + d] *= factor;
    }
    std::copy_n(slots + r * shape.head_dim, shape.head_dim,
                sequence.out + token * sequence.out_stride + head * shape.head_dim);
    if (sequence.lse) sequence.lse[token * shape.num_heads + head] = lse[r];
  }
}
// What the threads share while they work on the items of one call.
struct Items {
  const AttentionShape& shape;
  std::span<const AttentionSequence> sequences;
  CutRules rules;
  // Threads take their next item early, so that its K and V come while the last is finished; not
  // the last items, for which whoever is idle comes first.
  int64_t early;
  float* slots;
  std::atomic<int64_t> next = 0;
  std::atomic<int64_t> next_merge = 0;

  ItemCursor cursor() const noexcept { return {shape, sequences, rules}; }
  float* slot(int64_t number) const noexcept { return slots + number * slot_floats(shape); }
  AttentionItem at(const ItemCursor& cursor, int64_t number) const noexcept {
    AttentionItem item = cursor.item();
    if (cursor.cut().splits > 1) put_into(slot(number), shape, item);
    return item;
  }
};

// Items until there are none, or until the turn is over while no other is taken.
void attend_items(Items& items, const Team::Turn& turn, float* scratch) noexcept {
  const Variant& variant = active_variant();
  const auto take = [&] { return items.next.fetch_add(1, std::memory_order_relaxed); };
  ItemCursor cursor = items.cursor();
  for (int64_t number = take(); cursor.seek(number);) {
    AttentionItem item = items.at(cursor, number);
    if (number >= items.early) {
      variant.attend(items.shape, item, scratch);
      if (turn.is_over()) return;
      number = take();
      continue;
    }
    number = take();
    const bool has_following = cursor.seek(number);
    const AttentionItem following = has_following ? items.at(cursor, number) : AttentionItem{};
    if (has_following) item.next = &following;
    variant.attend(items.shape, item, scratch);
    if (!has_following) return;
  }
}

// The splits of an item lie in consecutive slots.
void merge_items(Items& items) noexcept {
  ItemCursor cursor = items.cursor();
  for (int64_t number;
       cursor.seek(number = items.next_merge.fetch_add(1, std::memory_order_relaxed));) {
    const int64_t splits = cursor.cut().splits;
    if (splits == 1 || cursor.index() % splits != 0) continue;
    const AttentionItem item = cursor.item();
    for (int64_t split = 1; split < splits; ++split)
      merge_slots(items.shape, item, items.slot(number), items.slot(number + split));
    put_merged(items.shape, cursor.sequence(), item, items.slot(number));
  }
}

// Items with all their splits, which this thread merges in two slots of its own, in the order that
// merge_items() has.
void attend_joined(Items& items, const Team::Turn& turn, float* scratch) noexcept {
  const Variant& variant = active_variant();
  float* const slot = items.slot(2 * turn.member());
  float* const other = items.slot(2 * turn.member() + 1);
  ItemCursor cursor = items.cursor();
  while (cursor.seek(items.next.fetch_add(1, std::memory_order_relaxed))) {
    const int64_t splits = cursor.cut().splits;
    AttentionItem following = cursor.split(0);
    for (int64_t split = 0; split < splits; ++split) {
      AttentionItem item = following;
      if (split + 1 < splits) {
        following = cursor.split(split + 1);
        item.next = &following;
      }
      if (splits > 1) put_into(split == 0 ? slot : other, items.shape, item);
      variant.attend(items.shape, item, scratch);
      if (split > 0) merge_slots(items.shape, item, slot, other);
    }
    if (splits > 1) put_merged(items.shape, cursor.sequence(), following, slot);
    if (turn.is_over()) return;
  }
}
}  // namespace

int64_t attention_scratch_floats(const AttentionShape& shape, int threads) noexcept {
  return threads * (attention_thread_floats(shape) + kItemsPerThread * slot_floats(shape));
}

void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               float* scratch, int64_t scratch_floats) noexcept {
  attention(shape, sequences, scratch, scratch_floats, SumOrder::kFastest);
}

void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               float* scratch, int64_t scratch_floats, SumOrder order) noexcept {
  const int64_t mine = attention_thread_floats(shape);
  const int threads = static_cast<int>(
      std::clamp<int64_t>(scratch_floats / attention_scratch_floats(shape, 1), 1, loop_threads()));
  // Contexts are split only when whole items would leave threads idle; all pieces then fit the
  // slots.
  const int64_t most_items = threads * kItemsPerThread;
  CutRules rules{order, 1, true};
  const int64_t whole = std::max<int64_t>(1, count_items(shape, sequences, rules));
  rules.joins_splits = false;
  if (order == SumOrder::kFastest && threads > 1 && whole < most_items)
    rules.splits_wanted = most_items / whole;
  int64_t count = count_items(shape, sequences, rules);
  const bool is_split = count > whole;
  if (is_split && count > most_items) {  // by row, where contexts say how many splits there are
    rules.joins_splits = true;
    count = whole;
  }
  Items items{shape, sequences, rules, count - most_items, scratch + threads * mine};
  const auto attend = [&](const Team::Turn& turn) {
    float* const own = scratch + turn.member() * mine;
    rules.joins_splits ? attend_joined(items, turn, own) : attend_items(items, turn, own);
  };
  run_loop(static_cast<int>(std::min<int64_t>(threads, count)), attend);
  if (is_split && !rules.joins_splits)
    run_loop(threads, [&](const Team::Turn&) { merge_items(items); });
}

namespace {
// A row of codes to its place among the turned ones of its head.
void put_codes(const AttentionShape& shape, bool is_value, int64_t in_page, const std::byte* row,
               std::byte* head) noexcept {
  const int64_t bytes = shape.rows_of(is_value).code_bytes(shape.head_dim);
  if (is_value) {
    for (int64_t i = 0; i < bytes; ++i)
      head[value_code_offset(bytes, shape.page_tokens, in_page, i)] = row[i];
  } else {
    for (int64_t i = 0; i < bytes; i += 4)
      std::memcpy(head + key_code_offset(bytes, shape.page_tokens, in_page, i), row + i, 4);
  }
}
}  // namespace

void kv_write(const AttentionShape& shape, const float* k, const float* v, int64_t stride,
              int32_t first_position, int32_t count, std::byte* const* pages) noexcept {
  const Variant& variant = active_variant();
  const KvRows formats[] = {shape.rows_of(false), shape.rows_of(true)};
  const int64_t head_bytes = shape.head_bytes(), values_at = shape.head_offset(0, true);
  constexpr int64_t kShareTokens = 32;
  deal_each(count, kShareTokens, [&](int64_t i) {
    const int32_t position = first_position + static_cast<int32_t>(i);
    const int64_t in_page = position % shape.page_tokens;
    for (int head = 0; head < shape.page_heads(); ++head) {
      const bool is_value = shape.has_values && head % 2 == 1;
      const int kv_head = shape.has_values ? head / 2 : head;
      const float* from = (is_value ? v : k) + i * stride + kv_head * shape.head_dim;
      std::byte* to =
          pages[position / shape.page_tokens] + kv_head * head_bytes + (is_value ? values_at : 0);
      const KvRows& format = formats[is_value];
      const int64_t row_bytes = format.code_bytes(shape.head_dim);
      if (!format.is_quantised()) {
        variant.from_f32(format.dtype, from, to + in_page * row_bytes, shape.head_dim);
        continue;
      }
      std::byte row[KvFormat::kMostHeadDim];
      variant.kv_quantise(format, from, shape.head_dim, row,
                          to + shape.page_tokens * row_bytes + in_page * 2,
                          4 * int64_t{shape.page_tokens});
      put_codes(shape, is_value, in_page, row, to);
    }
  });
}

float add_sink(float sink, float& lse) noexcept {
  const float maximum = std::max(sink, lse);
  const float mine = std::exp(lse - maximum);
  const float sum = mine + std::exp(sink - maximum);
  lse = maximum + std::log(sum);
  return mine / sum;
}

void merge_attention(float* out, float* lse, const float* other_out, const float* other_lse,
                     int64_t rows, int64_t cols) noexcept {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    if (other_lse[row] == kNothing) continue;
    const float maximum = std::max(lse[row], other_lse[row]);
    const float mine = lse[row] == kNothing ? 0.0f : std::exp(lse[row] - maximum);
    const float theirs = std::exp(other_lse[row] - maximum);
    const float sum = mine + theirs;
    for (int64_t col = 0; col < cols; ++col)
      out[row * cols + col] =
          (mine * out[row * cols + col] + theirs * other_out[row * cols + col]) / sum;
    lse[row] = maximum + std::log(sum);
  }
}

}  // namespace sluice::kernels
