#include "src/layer/fuse.h"

#include <algorithm>
#include <utility>

#include "src/layer/work_space.h"

namespace sluice {

using Kind = Operator::Kind;

namespace {

bool reads(const Operator& op, const View& view) {
  return (op.is_in_place() && overlap(op.out, view)) ||
         std::any_of(op.in.begin(), op.in.end(), [&](const View& in) { return overlap(in, view); });
}

// The last rotation of `view` before the cut, if nothing but it touches the view up to there.
int32_t rotation_before_cut(const LayerProgram& program, const View& view) {
  for (int32_t i = program.cut; i-- > 0;) {
    const Operator& op = program.operators[static_cast<size_t>(i)];
    if (op.kind == Kind::kRope && op.out == view) return i;
    if (reads(op, view) || overlap(op.out, view)) return -1;
  }
  return -1;
}

void join_rotations(LayerProgram& program) {
  if (program.cut < 0) return;
  Operator& attend = program.operators[static_cast<size_t>(program.cut)];
  const int32_t of_q = rotation_before_cut(program, attend.in[0]);
  const int32_t of_k = rotation_before_cut(program, attend.in[1]);
  if (of_q < 0 || of_k < 0 || of_q == of_k) return;
  const Operator& q = program.operators[static_cast<size_t>(of_q)];
  const Operator& k = program.operators[static_cast<size_t>(of_k)];
  for (const View& one : {attend.in[0], attend.in[1]})
    if (overlap(one, attend.in[2])) return;
  const bool are_alike = q.frequencies.data() == k.frequencies.data() &&
                         q.frequencies.size() == k.frequencies.size() && q.factor == k.factor &&
                         q.rope == k.rope && q.out.cols / q.heads == k.out.cols / k.heads;
  if (!are_alike) return;
  attend.frequencies = q.frequencies;
  attend.factor = q.factor;
  attend.rope = q.rope;
  attend.heads = q.heads;
  for (const int32_t at : {std::max(of_q, of_k), std::min(of_q, of_k)})
    program.operators.erase(program.operators.begin() + at);
  program.cut -= 2;
}

// Whose rows a place for copies has.
struct Copy {
  View of;
  WeightFormat format;  // of a copy that depends on it
  ProductInput::Narrow narrow = ProductInput::Narrow::kNone;
  InputCopy maker = InputCopy::kMake;

  InputCopy found(const Copy& wanted) const {
    return of == wanted.of && format == wanted.format && narrow == wanted.narrow ? maker
                                                                                 : InputCopy::kMake;
  }
  void written(const View& rows) {
    if (overlap(of, rows)) *this = {};
  }
};

class CopyPlanner {
 public:
  CopyPlanner(LayerProgram& program, const SublayerShape& sublayer, const Fusing& fusing)
      : operators_(program.operators), sublayer_(sublayer), fusing_(fusing) {}

  void plan() {
    for (size_t i = 0; i < operators_.size(); ++i) {
      Operator& op = operators_[i];
      if (op.is_product()) take(op);
      if (op.kind == Kind::kExperts) narrow_ = codes_ = {};  // it makes copies of its own there
      if (op.out.slot < 0) continue;
      narrow_.written(op.out);
      codes_.written(op.out);
      if (!op.is_product()) make(i);
    }
  }

 private:
  WeightFormat format_of(int32_t weight) const {
    return sublayer_.weights[static_cast<size_t>(weight)].quantised;
  }
  Copy narrow_of(const View& rows, int32_t weight, InputCopy maker) const {
    const ProductInput::Narrow narrow = fusing_.input_of(weight).narrow;
    const bool is_fp8 = narrow == ProductInput::Narrow::kFp8;
    return {rows, is_fp8 ? format_of(weight) : WeightFormat{}, narrow, maker};
  }
  Copy codes_of(const View& rows, int32_t weight, InputCopy maker) const {
    return {rows, format_of(weight), ProductInput::Narrow::kNone, maker};
  }

  void take(Operator& op) {
    const ProductInput input = fusing_.input_of(op.weight);
    if (input.narrow != ProductInput::Narrow::kNone) {
      const Copy mine = narrow_of(op.in[0], op.weight, InputCopy::kByProduct);
      op.narrow = narrow_.found(mine);
      if (op.narrow == InputCopy::kMake) narrow_ = mine;
    }
    if (input.codes) {
      const Copy mine = codes_of(op.in[0], op.weight, InputCopy::kByProduct);
      op.codes = codes_.found(mine);
      codes_ = mine;
    }
  }

  // Copies of what operator `i` writes, as the first products want them that read just that.
  void make(size_t i) {
    Operator& op = operators_[i];
    for (size_t j = i + 1; j < operators_.size(); ++j) {
      const Operator& reader = operators_[j];
      if (reader.is_product() && reader.in[0] == op.out) {
        const ProductInput input = fusing_.input_of(reader.weight);
        const bool is_16_bit = input.narrow == ProductInput::Narrow::kF16 ||
                               input.narrow == ProductInput::Narrow::kBF16;
        if (op.narrow_for < 0 && is_16_bit && fusing_.writes_narrow(op.kind, reader.weight))
          op.narrow_for = reader.weight;
        if (op.codes_for < 0 && input.codes && fusing_.writes_codes(op.kind, reader.weight))
          op.codes_for = reader.weight;
      }
      if (overlap(reader.out, op.out)) break;
    }
    if (op.narrow_for >= 0) narrow_ = narrow_of(op.out, op.narrow_for, InputCopy::kByWriter);
    if (op.codes_for >= 0) codes_ = codes_of(op.out, op.codes_for, InputCopy::kByWriter);
  }

  std::vector<Operator>& operators_;
  const SublayerShape& sublayer_;
  const Fusing& fusing_;
  Copy narrow_;
  Copy codes_;
};

// Whether the rows of the addition lie where the next program writes nothing before its norm has
// read them, or just them.
bool may_be_put_off(const LayerProgram& program, const LayerProgram& next, int64_t hidden_size) {
  if (program.operators.empty() || next.operators.empty()) return false;
  const Operator& last = program.operators.back();
  const Operator& first = next.operators.front();
  if (last.kind != Kind::kAddToHidden || first.kind != Kind::kNormHidden || first.in[0].slot >= 0)
    return false;
  const auto is_at_beginning = [&](const LayerProgram& of, const View& view) {
    const auto slot = static_cast<size_t>(view.slot);
    return of.places[slot] == 0 && of.slots[slot] == hidden_size && view.cols == hidden_size;
  };
  return is_at_beginning(program, last.in[0]) && is_at_beginning(next, first.out);
}
}  // namespace

LayerProgram fused(LayerProgram program, const SublayerShape& sublayer, const Fusing& fusing) {
  if (fusing.has_rotating_attention) join_rotations(program);
  CopyPlanner(program, sublayer, fusing).plan();
  return program;
}

std::vector<LayerProgram> with_additions_put_off(std::vector<LayerProgram> programs,
                                                 int64_t hidden_size) {
  for (size_t i = 0; i + 1 < programs.size(); ++i) {
    LayerProgram& next = programs[i + 1];
    if (!may_be_put_off(programs[i], next, hidden_size)) continue;
    programs[i].operators.pop_back();
    const View left{static_cast<int32_t>(next.slots.size()), 0, hidden_size};
    next.slots.push_back(hidden_size);
    next.places.push_back(0);
    next.operators.front().in[0] = left;
  }
  return programs;
}

}  // namespace sluice
