#pragma once
// What a sequence keeps in a layer from pass to pass, as a value. Families say it for each layer;
// layers that keep the same are a group: they share a pool of pages and a page table. Plain values;
// thread safe.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/kv_format.h"
#include "src/base/recurrent_shape.h"

namespace sluice {

struct LayerState {
  enum class Kind : uint8_t {
    kKeysAndValues,  ///< of each token a key and a value a head
    kLatentRow,      ///< of each token one row for both (multi-head latent attention)
    kRecurrent       ///< of all tokens so far one block of a fixed size (RecurrentShape)
  };
  /// Blocks of a recurrent state that a sequence has at a time: the one it works on, and the one it
  /// left at the border of a page before.
  static constexpr int64_t kRecurrentPages = 2;

  Kind kind = Kind::kKeysAndValues;
  int64_t heads = 1;   ///< of keys and values; a latent row is one
  int64_t width = 0;   ///< elements of a key, of a value, or of the row
  int64_t window = 0;  ///< a token sees itself and the window - 1 before it; 0: all before it
  RecurrentShape recurrent{};  ///< of kRecurrent, whose other sizes are recurrent_state()'s
  int64_t key_columns = 0;  ///< of a latent row, at its beginning: what is the key's and no value's
  /// With a window: a token sees itself and those before it from the last whole multiple of the
  /// window on (Llama 4's chunks), which are window - 1 at most.
  bool is_chunked = false;

  bool operator==(const LayerState&) const = default;
  /// Rows of `width` elements that a token adds.
  int64_t rows_per_token() const noexcept {
    return kind == Kind::kLatentRow ? 1 : kind == Kind::kRecurrent ? 0 : 2 * heads;
  }
  bool is_recurrent() const noexcept { return kind == Kind::kRecurrent; }
  bool is_latent() const noexcept { return kind == Kind::kLatentRow; }
  int64_t elements_per_token() const noexcept { return rows_per_token() * width; }
  /// Bytes of a token in a page.
  int64_t token_bytes(const KvFormat& format) const noexcept {
    if (kind == Kind::kKeysAndValues) return heads * format.pair_bytes(width);
    return is_latent() ? format.keys().row_bytes(width) : 0;
  }
  /// Bytes of a page of one layer. A page of a recurrent state is the state behind the last of the
  /// page's tokens that have been computed, f32.
  int64_t page_bytes(const KvFormat& format, int64_t page_tokens) const noexcept {
    return is_recurrent() ? 4 * recurrent.floats() : page_tokens * token_bytes(format);
  }
  /// The first position that a token at `position`, or a later one, sees.
  int64_t first_seen(int64_t position) const noexcept {
    return window > 0 ? std::max<int64_t>(position - window + 1, 0) : 0;
  }
};

/// A token sees what the one before it left: a window of two.
constexpr LayerState recurrent_state(const RecurrentShape& shape) noexcept {
  return {LayerState::Kind::kRecurrent, 1, 0, 2, shape};
}

/// A row of [key_columns | value_columns]: the key is all of it, the value its end.
constexpr LayerState latent_state(int64_t key_columns, int64_t value_columns) noexcept {
  return {LayerState::Kind::kLatentRow, 1, key_columns + value_columns, 0, {}, key_columns};
}

/// Layers that keep the same.
struct StateGroup {
  LayerState state;
  int64_t num_layers = 0;
  int64_t num_readers = 0;           ///< further layers, which attend to what one of these keeps
  std::vector<int64_t> read_layers;  ///< of the group's, those that such a layer reads; rising

  bool operator==(const StateGroup&) const = default;
};

/// A layer's place among those that keep state: its group, and the how manieth there.
struct StatePlace {
  int32_t group = -1;  ///< index into ModelShape::state_groups; -1: keeps nothing
  int64_t layer = 0;
  /// The place is another layer's, which has written it when this one attends; this keeps nothing.
  bool is_reader = false;

  bool operator==(const StatePlace&) const = default;
};

}  // namespace sluice
