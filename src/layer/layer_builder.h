#pragma once
// What a family writes a sublayer's program with. Each method adds one operator; weights are named
// by their roles in the sublayer, "" for none. What does not fit together is a fault of the family:
// an assertion.
#include <span>
#include <string_view>

#include "src/layer/layer_program.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// A norm with its weights' roles.
struct NormSpec {
  NormKind kind = NormKind::kRms;
  std::string_view gain;  ///< roles of vectors; bias only for kLayer
  std::string_view bias;
  float eps = 1e-5f;
};

/// What experts are made of, by roles.
struct ExpertsSpec {
  std::string_view gate = "experts.gate";
  std::string_view up = "experts.up";
  std::string_view down = "experts.down";
  Activation activation = Activation::kSilu;
  ClampedGate clamp;              ///< in its place
  std::string_view gate_up_bias;  ///< vectors of all experts; only with a clamp
  std::string_view down_bias;
  bool weighs_inputs = false;  ///< weights are factors of what goes in, not of what comes out
};

class LayerBuilder {
 public:
  /// Of a sublayer of a model whose residual stream has `hidden_size` columns. `sublayer` stays
  /// while the builder is used.
  LayerBuilder(const SublayerShape& sublayer, int64_t hidden_size)
      : sublayer_(sublayer), hidden_size_(hidden_size) {}

  /// A new slot.
  View workspace(int64_t cols);

  void gather_tokens(std::string_view role, View out);
  void gather_positions(std::string_view role, int64_t offset, View out);
  void set_hidden(View in);
  void read_hidden(View out);
  void read_needed_hidden(View out);
  void norm_hidden(const NormSpec& norm, View out);
  void norm_hidden_in_place(const NormSpec& norm);
  void add_to_hidden(View in);
  /// By a vector of one element.
  void scale_hidden(std::string_view role);
  /// Rows that later sublayers find beside the residual stream (ModelShape::carried_columns), and
  /// some of their columns.
  void carry(View in);
  void read_carried(int64_t first, View out);
  void norm(const NormSpec& norm, View in_out);
  /// Of each head by itself, the gain as wide as one; `in_out` is a slot.
  void norm_heads(const NormSpec& norm, View in_out, int64_t heads);
  void add(View in_out, View in);
  /// `out` must not overlap `in`.
  void linear(std::string_view role, std::string_view bias, View in, View out);
  void scale(View in_out, float factor);
  /// `in_out` *= 1 + factor ln(1 + floor((position + shift) / period)), by row.
  void scale_by_position(View in_out, float factor, int64_t period, int32_t shift = 0);
  /// `in_out` between -most and most.
  void clamp(View in_out, float most);
  /// Each row of a slot, by a vector.
  void scale_columns(std::string_view gains, View in_out);
  /// `groups` groups of heads of q, one of k and one of v; both are slots.
  void regroup(View in, View out, int64_t groups, int64_t head_dim);
  /// Every (in.cols / out.cols)-th head of `in` from the `first`; `in` is a slot.
  void take_heads(View in, View out, int64_t heads, int64_t first);
  /// Of `heads` heads, each with as many rows of the matrix, `keys` of them first: queries
  /// [keys | turned] become [turned | columns of the matrix], answers [.. | columns of the matrix]
  /// the rest of the rows. Both are slots.
  void absorb(std::string_view role, int64_t heads, int64_t keys, View in, View out);
  void expand(std::string_view role, int64_t heads, int64_t keys, View in, View out);
  /// Of a layer with a recurrent state of that shape. The convolution's weights are a vector,
  /// [columns, taps].
  void convolve(std::string_view role, std::string_view bias, const RecurrentShape& shape, View in,
                View out);
  void time_steps(std::string_view bias, float low, float high, View in_out);
  /// `out` is `steps`, or another slot's.
  void decay(std::string_view a_log, View steps, View out);
  /// `learned` and `kept` [rows, value heads]; `skip`: a vector of as many, or none.
  void recurrent_rule(const RecurrentShape& shape, View qkv, View learned, View kept,
                      std::string_view skip, View out);
  /// `frequencies` stay with the model.
  void rope(View in_out, int64_t heads, std::span<const float> frequencies, float factor,
            RopeLayout layout = RopeLayout::kHalves);
  /// At most one in a sublayer: the cut. What is behind it finds nothing of what was before but
  /// `out` and `kept`, a slot or none. `v` is none where keys are the values too,
  /// `k` where the layer reads what another keeps. `sinks`: a vector, one a head of q, or none.
  void attend(View q, View k, View v, View out, const AttendSpec& how = {}, View kept = {},
              std::string_view sinks = {});
  /// `in` has a column an expert, `out` route_columns(); both are slots. `correction` is a vector,
  /// or none.
  void route(const RouterSpec& router, std::string_view correction, View in, View out);
  static int64_t route_columns(const RouterSpec& router) noexcept { return 2 * router.chosen; }
  /// Of the experts that `choices`, made by route(), says of each row; all are slots. The matrices
  /// are of all experts: of each, gate and up have as many rows as down has columns.
  void experts(const ExpertsSpec& of, View in, View choices, View out);
  /// in_out += in times `by`, a column.
  void add_weighted(View in_out, View in, View by);
  void activate(Activation activation, View in_out);
  void gate(Activation activation, View gate, View up, View out);
  /// `soft_cap`: 0 for none.
  void logits(std::string_view role, View in, std::string_view bias = {}, float soft_cap = 0);

  /// Which layer's it is; -1 for none.
  int64_t layer_index() const noexcept { return sublayer_.layer_index; }
  /// What was written, with places for its slots.
  LayerProgram take();

 private:
  /// The index of a weight of that kind; -1 for no role.
  int32_t weight(std::string_view role, WeightKind kind) const;
  const WeightShape& shape_of(int32_t weight) const;
  void set_norm(const NormSpec& norm, int64_t cols, Operator& out) const;
  void check_hidden(const View& view) const;
  void check_slot(const View& view) const;
  /// Reads its inputs (of in place operators `out` too), writes `out`.
  void append(const Operator& op);
  void check_read(const View& view) const;
  void check_cut() const;
  /// Of absorb and expand: columns of a head in a view.
  int64_t head_cols(const View& view, int64_t heads) const;
  Operator by_head(Operator::Kind kind, std::string_view role, int64_t heads, int64_t keys, View in,
                   View out) const;

  const SublayerShape& sublayer_;
  int64_t hidden_size_;
  LayerProgram program_;
  std::vector<std::vector<View>> written_;  // [slot]
};

}  // namespace sluice
