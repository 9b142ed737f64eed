#pragma once
// What a model is made of, as plain numbers: sublayers in the order in which a pass visits them,
// and the weights of each. Made by a family from config.json; read by policy, schedule, synth,
// convert and the engine. No files, no devices.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/kv_format.h"
#include "src/base/weight_format.h"
#include "src/shape/layer_state.h"

namespace sluice {

/// What a weight is to its sublayer.
enum class WeightKind : uint8_t {
  kMatrix,  ///< [rows, cols] row-major, a linear layer y = x W^T; sharded by rows, resident or
            ///< streamed
  kVector,  ///< [cols] norm gain or bias; always resident, kept in f32
  kTable,   ///< [rows, cols] gathered by row (embeddings); resident rows first, the others read one
            ///< by one
};

/// A weight in a GGUF file.
struct GgufTensor {
  std::string name;  ///< "blk.3.attn_q.weight"; empty: such files don't have it
  /// Heads whose rows the file has in pairs for its rotary positions (row 2 i + j of a head is the
  /// weight's row j half + i); 0: in order.
  int64_t paired_heads = 0;
};

/// A weight as some rows of a larger matrix: checkpoints that have q, k and v in one tensor. Of
/// experts: of each expert's part of a tensor [experts, tensor_rows, cols].
struct FusedRows {
  /// Names that checkpoints use for it, the first found wins; none: it is no such part.
  std::vector<std::string> tensors;
  int64_t first_row = 0;
  int64_t tensor_rows = 0;
  int64_t step = 1;            ///< from one of the rows to the next
  bool is_transposed = false;  ///< the tensor is [cols, tensor_rows], of experts [experts, ..]
  /// Whether its bytes are those of the rows, one behind the other.
  bool lies_together() const noexcept { return step == 1 && !is_transposed; }
};

/// One weight of a sublayer: its sizes and where checkpoints have it.
struct WeightShape {
  std::string role;  ///< the family's own word for it: "q", "q.bias", "gate"
  WeightKind kind = WeightKind::kMatrix;
  int64_t rows = 1;
  int64_t cols = 0;
  std::vector<std::string>
      names;  ///< tensor names that checkpoints use for it, the first found wins
  bool shares_table =
      false;  ///< a matrix that is the token table itself (tied embeddings): stored once
  /// Of a vector that checkpoints have in more dimensions; empty: in one.
  std::vector<int64_t> tensor_shape;
  /// Of a vector: what is used is its elements with this added (norms that store their gain less
  /// one). GGUF files have it added already.
  float added = 0;
  /// Of the matrices of all routed experts of a layer, one below the other: how many; 0: it is no
  /// such. A token is multiplied with ModelShape::experts_per_token of them, a large block touches
  /// all. Checkpoints have a tensor for each: `names` and `fused` are an expert's, whose number
  /// stands for "{e}".
  int64_t experts = 0;
  /// A matrix that decides rather than adds up (a router): always plain.
  bool is_never_quantised = false;
  /// Of a matrix: checkpoints of other tools have it as [cols, rows].
  bool is_transposed = false;
  /// A matrix whose rows are multiplied head by head (kernels/head_products.h): always plain, and
  /// never where the host computes beside a device.
  bool is_by_head = false;
  /// Used only behind its sublayer's attention, which may be elsewhere.
  bool is_after_cut = false;
  /// Of a quantised matrix; kPlain: plain elements.
  WeightFormat quantised;
  /// Of a plain matrix or table; none: ModelShape::weight_dtype.
  std::optional<DType> dtype;
  GgufTensor gguf;
  /// Where a checkpoint has it that has none of `names`; its tensor empty: nowhere.
  FusedRows fused;

  bool may_be_quantised() const noexcept {
    return kind == WeightKind::kMatrix && !shares_table && !is_by_head && !is_never_quantised;
  }
  /// Rows of one expert; all of them where there are none.
  int64_t expert_rows() const noexcept { return experts > 0 ? rows / experts : rows; }
  /// Tensors that checkpoints have it in.
  int64_t tensors() const noexcept { return experts > 0 ? experts : 1; }
  /// One expert's matrix as a weight of its own, with its names; itself where there are none.
  WeightShape of_expert(int64_t expert) const;
};

/// What a sublayer is.
enum class SublayerKind : uint8_t { kEmbed, kAttention, kMlp, kHead };

/// What rows pass through beside products and attention: norms, rotations, activations, additions.
struct RowWork {
  double bytes = 0;       ///< of a row, read and written
  int32_t operators = 0;  ///< each with a start of its own

  bool operator==(const RowWork&) const = default;
};
/// Of a sublayer's program, on the sides of its attention; all before where there is none.
struct SublayerWork {
  RowWork before_cut;
  RowWork after_cut;

  bool operator==(const SublayerWork&) const = default;
};

/// The unit of a pass: loaded, computed for each micro-batch, released.
struct SublayerShape {
  SublayerKind kind = SublayerKind::kMlp;
  int64_t layer_index = -1;  ///< of kAttention and kMlp; -1 for embed and head
  std::vector<WeightShape> weights;
  SublayerWork work;
  StatePlace state;  ///< of kAttention (ModelShape::set_states)

  const WeightShape* find(std::string_view role) const noexcept;
};

struct ModelShape {
  std::string family;                 ///< config.json's model_type
  DType weight_dtype = DType::kBF16;  ///< of what is not quantised, where the weight has none
                                      ///< of its own: of most bytes
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  ///< as config.json says; what a layer keeps is its state_groups entry
  int64_t head_dim = 0;      ///< likewise
  int64_t vocab_size = 0;
  int64_t max_positions = 0;      ///< longest sequence the model was made for
  int64_t num_experts = 1;        ///< routed experts of a mixture-of-experts layer
  int64_t experts_per_token = 1;  ///< of these, how many a token goes to
  int64_t workspace_columns =
      0;  ///< f32 columns a token takes in the widest sublayer, hidden state not counted
  int64_t kept_columns = 0;    ///< of these, what a sublayer keeps across its attention, at most
  bool rounds_slopes = false;  ///< ALiBi's (kernels/attention.h)
  int64_t carried_columns =
      0;             ///< f32 that a token has beside the residual stream in all sublayers
  std::string note;  ///< what a user should know of this checkpoint's shape; may be empty
  std::vector<SublayerShape> sublayers;
  std::vector<StateGroup> state_groups;  ///< different ones, in the order of their first layers

  /// What sequences keep in each layer [num_layers]: fills state_groups and the sublayers' places,
  /// which are there. `sources` [num_layers]: of a layer that attends to what an earlier one keeps,
  /// that one; else -1. Empty: all keep their own.
  void set_states(std::span<const LayerState> of_layers, std::span<const int64_t> sources = {});
  /// The same of layers that are all alike.
  void set_states(const LayerState& of_each);
  /// Whether some layers attend to what others keep.
  bool has_readers() const noexcept;
  const LayerState& state_of(const StatePlace& place) const noexcept {
    return state_groups[static_cast<size_t>(place.group)].state;
  }
  /// Elements and bytes that one token adds to all layers.
  int64_t state_elements_per_token() const noexcept;
  int64_t state_token_bytes(const KvFormat& format) const noexcept;
  /// Bytes that a sequence keeps in all layers however long it is.
  int64_t fixed_state_bytes() const noexcept;
  /// Of what a token has from sublayer to sublayer: its row of the residual stream, and what is
  /// carried beside it.
  int64_t hidden_row_bytes() const noexcept { return 4 * (hidden_size + carried_columns); }
  /// Parameters, tied tables counted once.
  int64_t num_parameters() const noexcept;
  /// How a weight's elements are stored (vectors as if in weight_dtype).
  WeightFormat format_of(const WeightShape& weight) const noexcept {
    return weight.quantised.is_quantised()
               ? weight.quantised
               : WeightFormat::plain(weight.dtype.value_or(weight_dtype));
  }
  /// Bytes from one row to the next.
  int64_t row_bytes(const WeightShape& weight) const noexcept {
    return format_of(weight).row_bytes(weight.cols);
  }
  /// Bytes of `rows` rows that begin at a multiple of the row granule, of experts at the first row
  /// of one: in memory each expert begins at a multiple of kExpertAlignment.
  int64_t rows_bytes(const WeightShape& weight, int64_t rows) const noexcept;
  /// Of one expert, in memory.
  int64_t expert_bytes(const WeightShape& weight) const noexcept;
  static constexpr int64_t kExpertAlignment = 64;
  /// Whether any matrix is quantised.
  bool is_quantised() const noexcept;
  /// "bf16", or "int4-g64" (of most bytes) where matrices are quantised.
  std::string weights_name() const;
  /// Whether any plain matrix or table has elements of this type.
  bool has_plain(DType dtype) const noexcept;
  /// Makes every matrix but tied tables `format`; plain formats change weight_dtype, and what had a
  /// type of its own has that.
  void set_weights(const WeightFormat& format);
  /// Bytes of all weights as stored, tied tables counted once.
  int64_t weight_bytes() const noexcept;
  /// Multiply-adds of all matrices for one token, times two (the head included once).
  double matmul_flops_per_token() const noexcept;
};

}  // namespace sluice
