#pragma once
// The operators of layer programs, as runners implement them: for one (sublayer, micro-batch) at a
// time. Rows are those of the operator's views; its weights are indices of the sublayer's. Only
// attend() knows where one sequence ends. All values f32.
#include <cstdint>

#include "src/layer/layer_program.h"

namespace sluice {

/// A matrix of work space [rows, cols] f32, row stride `stride` floats.
struct Rows {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  /// Columns [begin, begin + count) of all rows.
  Rows columns(int64_t begin, int64_t count) const noexcept {
    return {data + begin, rows, count, stride};
  }
};

class LayerOps {
 public:
  virtual ~LayerOps() = default;

  /// Rows of the table op.weight chosen by token id.
  virtual void gather_tokens(const Operator& op, Rows out) = 0;
  /// Rows of the table op.weight chosen by position + op.offset.
  virtual void gather_positions(const Operator& op, Rows out) = 0;

  /// The residual stream [rows, hidden_size]: written, read through a norm (or as it is), added to;
  /// of norm_hidden `in` may be nothing.
  virtual void set_hidden(Rows in) = 0;
  virtual void read_hidden(Rows out) = 0;
  virtual void norm_hidden(const Operator& op, Rows in, Rows out) = 0;
  virtual void norm_hidden_in_place(const Operator& op) = 0;
  virtual void add_to_hidden(Rows in) = 0;
  virtual void scale_hidden(const Operator& op) = 0;
  /// Rows beside the residual stream: written, and op.offset and what follows of them read.
  virtual void carry(Rows in) = 0;
  virtual void read_carried(const Operator& op, Rows out) = 0;
  /// Head only: the rows of the residual stream that need logits.
  virtual void read_needed_hidden(Rows out) = 0;

  /// More rows than the micro-batch's where they are its rows' heads.
  virtual void norm(const Operator& op, Rows in_out) = 0;
  virtual void add(Rows in_out, Rows in) = 0;
  /// out = in W^T (+ bias). `out` must not overlap `in`.
  virtual void linear(const Operator& op, Rows in, Rows out) = 0;
  /// in_out *= op.factor, or by the rows' positions.
  virtual void scale(const Operator& op, Rows in_out) = 0;
  virtual void scale_by_position(const Operator& op, Rows in_out) = 0;
  virtual void scale_columns(const Operator& op, Rows in_out) = 0;
  /// in_out between -op.factor and op.factor.
  virtual void clamp(const Operator& op, Rows in_out) = 0;
  /// Groups of heads to q, k and v.
  virtual void regroup(const Operator& op, Rows in, Rows out) = 0;
  /// Some of the heads.
  virtual void take_heads(const Operator& op, Rows in, Rows out) = 0;
  /// Of a layer with latent rows: queries to their width, answers back (Operator::Kind).
  virtual void absorb(const Operator& op, Rows in, Rows out) = 0;
  virtual void expand(const Operator& op, Rows in, Rows out) = 0;
  /// Of a layer with a recurrent state, which they read and leave.
  virtual void convolve(const Operator& op, Rows in, Rows out) = 0;
  virtual void time_steps(const Operator& op, Rows in_out) = 0;
  virtual void decay(const Operator& op, Rows steps, Rows out) = 0;
  virtual void recurrent_rule(const Operator& op, Rows qkv, Rows learned, Rows kept, Rows out) = 0;
  /// Rotary embedding on the heads of in_out at the rows' positions.
  virtual void rope(const Operator& op, Rows in_out) = 0;
  /// Stores k and v in the KV cache and attends causally with q, as op.attend says. `kept` (may be
  /// nothing) is there behind a cut as it was before.
  virtual void attend(const Operator& op, Rows q, Rows k, Rows v, Rows kept, Rows out) = 0;
  /// Which experts rows go to: choices are kept on the host until the next router's.
  virtual void route(const Operator& op, Rows scores) = 0;
  virtual void experts(const Operator& op, Rows in, Rows work, Rows out) = 0;
  /// in_out += in times each row's value in `by`.
  virtual void add_weighted(Rows in_out, Rows in, Rows by) = 0;
  /// What the rows' adapters add to a product, or without `in` to rows of a table; out has it.
  virtual void add_low_rank(const Operator& op, Rows in, Rows out) = 0;
  virtual void activate(const Operator& op, Rows in_out) = 0;
  /// out = activation(gate) * up; `out` may be `gate`.
  virtual void gate(const Operator& op, Rows gate, Rows up, Rows out) = 0;
  /// Head only: logits of the rows against the matrix op.weight, handed to whoever asked for them.
  virtual void logits(const Operator& op, Rows in) = 0;
};

}  // namespace sluice
