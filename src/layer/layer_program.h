#pragma once
// What a sublayer computes, as a value: operators on slots of rows, with indices of weights. A
// family writes it once, when the model is opened (src/layer/layer_builder.h); runners execute it,
// whole or one side of the cut at its attention. Rows are a micro-batch's tokens, of all its
// sequences one after another (in the head: those that need logits); all values f32.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/activation.h"
#include "src/base/rope_layout.h"
#include "src/base/router_spec.h"

namespace sluice {

/// RMSNorm (arXiv:1910.07467) or LayerNorm (arXiv:1607.06450).
enum class NormKind : uint8_t { kRms, kLayer };

/// A gate whose inputs are clamped (gpt-oss): of g = min(gate, limit) and u = clamp(up, -limit,
/// limit) it makes (u + 1) g sigmoid(alpha g). limit 0: there is none, the activation gates.
struct ClampedGate {
  float limit = 0;
  float alpha = 0;

  bool operator==(const ClampedGate&) const = default;
};

/// How a layer attends (kernels/attention.h); what it sees is its state's (LayerState::window).
struct AttendSpec {
  float scale = 0;                ///< of q k; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;             ///< of scaled scores; 0: none
  std::span<const float> slopes;  ///< ALiBi's, one a head, the family's; empty: none

  bool operator==(const AttendSpec& other) const noexcept;
};

/// Columns [begin, begin + cols) of a slot's rows.
struct View {
  int32_t slot = -1;  ///< -1: none
  int64_t begin = 0;
  int64_t cols = 0;

  View columns(int64_t first, int64_t count) const noexcept { return {slot, begin + first, count}; }
  bool operator==(const View&) const = default;
};
/// Whether they have a column in common; whether `outer` has all columns of `inner`.
bool overlap(const View& a, const View& b) noexcept;
bool covers(const View& outer, const View& inner) noexcept;

/// Who has made the copy of its input rows that a product takes: nobody yet, the operator that
/// wrote them, or a product before.
enum class InputCopy : uint8_t { kMake, kByWriter, kByProduct };

/// One operator; which members count depends on its kind.
struct Operator {
  enum class Kind : uint8_t {
    kGatherTokens,       ///< out = rows of the table `weight` by token id
    kGatherPositions,    ///< out = rows of the table `weight` by position + `offset`
    kSetHidden,          ///< the residual stream [rows, hidden_size] = in
    kReadHidden,         ///< out = the residual stream
    kReadNeededHidden,   ///< head only: out = its rows that need logits
    kNormHidden,         ///< out = norm of the residual stream (+ in, which is added to it first)
    kNormHiddenInPlace,  ///< the residual stream = norm of itself
    kAddToHidden,        ///< the residual stream += in
    kScaleHidden,        ///< the residual stream *= the one element of the vector `weight`
    kCarry,              ///< what is carried beside the residual stream = in
    kReadCarried,        ///< out = columns of what is carried, from `offset` on
    kNorm,               ///< out = norm of out
    kNormHeads,          ///< out = norm of each of its `heads` heads
    kAdd,                ///< out += in
    kLinear,             ///< out = in W^T + bias, W the matrix `weight` [out.cols, in.cols]
    kScale,              ///< out *= `factor`
    kScaleByPosition,    ///< out *= 1 + `factor` ln(1 + floor(the row's position / `offset`))
    kClamp,              ///< out = out, between -`factor` and `factor`
    kScaleColumns,       ///< out *= the vector `weight`, element by element
    kRegroup,  ///< out = in, in `heads` groups of some heads of q, one of k, one of v, as all of q,
               ///< then k, then v; heads of `offset` columns
    kTakeHeads,  ///< out = `heads` heads of in: its `offset`th and every so manieth as it is wider
    kRope,       ///< out rotated, `heads` heads at the rows' positions (RoFormer, arXiv:2104.09864)
    kAttend,  ///< K and V (in[1], in[2]) into the KV cache, causally attended with q (in[0]): out =
              ///< softmax(q k) v as `attend` says; with frequencies q and k are rotated before,
              ///< `heads` heads of q; in[3] is kept for what is behind the cut; without in[1]
              ///< another layer has written K and V (StatePlace::is_reader); the vector `weight`
              ///< has sinks, one a head of q
    kAbsorb,  ///< of each of `heads` heads: out = in's columns from the `offset`th on, then its
              ///< first `offset` times that many of the head's rows of the matrix `weight`
              ///< (latent attention's queries; arXiv:2405.04434)
    kExpand,  ///< of each head: out = the rows behind these times in's last columns, as many as
              ///< the matrix has (latent attention's answers)
    kConvolve,   ///< out = silu of the causal convolution of in with the vector `weight`, and the
                 ///< vector `bias` (kernels/delta_rule.h); the layer's recurrent state keeps its
                 ///< window
    kTimeSteps,  ///< out = softplus(out + `bias`), from `low` to `high`; one column a head
    kDecay,      ///< out = exp(-exp(`weight`) in), one column a head; out may be in
    kRecurrentRule,  ///< out = what the layer's recurrent state answers to in[0], having kept in[2]
                     ///< of itself and learned in[1] of what is new, as its shape says; the vector
                     ///< `weight` has how much of its values each head adds to that
    kRoute,    ///< out = the experts that each row of in goes to, and their weights (RoutedTo,
               ///< `router.chosen` of them), in's columns being scores; `weight` corrects these
    kExperts,  ///< out = of each row of in[0], the sum over the experts that in[1] says of their
               ///< weight times W_down (activation(W_gate x) * W_up x), W the expert's rows of
               ///< `weight`, `up` and `down`, experts rising; computed in `work`. Where they are
               ///< there, `bias` is added to W_gate x and W_up x (of each expert their elements
               ///< by turns), `down_bias` to what is weighted, and `clamp` gates
    kAddWeighted,  ///< out += in[0] times the row's value in in[1]
    kActivate,     ///< out = activation(out)
    kGate,         ///< out = activation(in[0]) * in[1]; out may be in[0]
    kLogits  ///< head only: in W^T + bias, capped softly by `factor` unless it is 0, to whoever
             ///< asked for logits
  };

  Kind kind = Kind::kAdd;
  View out;
  std::array<View, 4> in;
  int32_t weight = -1;  ///< of SublayerShape::weights: matrix, table or gain; -1: none
  int32_t bias = -1;
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kRelu;
  float eps = 0;
  int64_t offset = 0;
  int64_t heads = 0;
  RopeLayout rope = RopeLayout::kHalves;
  AttendSpec attend;
  RouterSpec router;
  int32_t up = -1;  ///< of kExperts, as `weight`
  int32_t down = -1;
  int32_t down_bias = -1;
  ClampedGate clamp;
  bool weighs_inputs = false;  ///< of kExperts: weights are factors of rows that go in
  int32_t shift = 0;           ///< of kScaleByPosition: added to positions
  View work;         ///< columns that an operator computes in, which hold nothing before and behind
  float factor = 1;  ///< of kRope: of the rotated values
  float low = 0;     ///< of kTimeSteps
  float high = 0;
  std::span<const float> frequencies;  ///< of kRope: inverse, [rotated columns / 2]; the family's
  // Put in by fused() (src/layer/fuse.h).
  int32_t narrow_for = -1;  ///< copies of `out` that are made with it: as the product with this
  int32_t codes_for = -1;   ///< matrix takes them, in 16 bits or as codes
  InputCopy narrow = InputCopy::kMake;  ///< of a product: the copies that it takes
  InputCopy codes = InputCopy::kMake;

  bool is_product() const noexcept { return kind == Kind::kLinear || kind == Kind::kLogits; }
  /// A product of each head with rows of its own.
  bool is_by_head() const noexcept { return kind == Kind::kAbsorb || kind == Kind::kExpand; }
  /// Of the sublayer's weights those that it uses; -1: none.
  std::array<int32_t, 5> weights() const noexcept { return {weight, bias, up, down, down_bias}; }
  /// Whether it reads `out` before it writes it.
  bool is_in_place() const noexcept;
  bool operator==(const Operator& other) const noexcept;
};

struct LayerProgram {
  std::vector<int64_t> slots;   ///< columns of each
  std::vector<int64_t> places;  ///< and where they begin in a row of work space (work_space.h)
  std::vector<Operator> operators;
  int32_t cut = -1;  ///< the operator that may be elsewhere (kAttend); -1: none
  /// The operator whose matrices may be asked for by what is before it (kExperts); null: none.
  const Operator* experts() const noexcept;

  /// f32 columns of work space that a row takes.
  int64_t columns() const noexcept;
  /// What is computed up to the cut, and from it on: the cut operator is in both, as it hands over
  /// in the one and takes back in the other. Without a cut: everything, and nothing.
  std::span<const Operator> before_cut() const noexcept;
  std::span<const Operator> after_cut() const noexcept;
  /// What is computed until the experts are known, and when all of them have answered.
  std::span<const Operator> before_experts() const noexcept;
  std::span<const Operator> after_experts() const noexcept;
  bool operator==(const LayerProgram&) const = default;
};

}  // namespace sluice
