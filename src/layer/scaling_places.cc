#include "src/layer/scaling_places.h"

#include <algorithm>
#include <optional>

namespace sluice {

using Kind = Operator::Kind;

namespace {
class Places {
 public:
  Places(const LayerProgram& program, bool attention_is_column_wise)
      : operators_(program.operators), attention_is_column_wise_(attention_is_column_wise) {}

  std::vector<ScalingPlace> find() const {
    std::vector<ScalingPlace> out;
    for (size_t i = 0; i < operators_.size(); ++i) {
      const std::vector<size_t> readers = readers_of(i);
      if (readers.empty() || !std::all_of(readers.begin(), readers.end(), [&](size_t reader) {
            return operators_[reader].kind == Kind::kLinear &&
                   operators_[reader].in[0] == operators_[i].out;
          }))
        continue;
      const std::optional<size_t> producer = producer_of(i);
      if (!producer) continue;
      ScalingPlace place{operators_[*producer].weight, operators_[*producer].bias, {}};
      for (const size_t reader : readers) place.consumers.push_back(operators_[reader].weight);
      out.push_back(std::move(place));
    }
    return out;
  }

 private:
  // Operators that read what `writer` wrote, until all of it is written anew.
  std::vector<size_t> readers_of(size_t writer) const {
    std::vector<size_t> out;
    const View& written = operators_[writer].out;
    if (written.slot < 0) return out;
    for (size_t i = writer + 1; i < operators_.size(); ++i) {
      const Operator& op = operators_[i];
      const bool reads = op.is_in_place() && overlap(op.out, written);
      if (reads || std::any_of(op.in.begin(), op.in.end(),
                               [&](const View& in) { return overlap(in, written); }))
        out.push_back(i);
      if (reads || covers(op.out, written)) break;
    }
    return out;
  }

  // The product before `reader` that makes `view`, which nothing else reads.
  std::optional<size_t> product_of(const View& view, size_t reader) const {
    for (size_t i = reader; i-- > 0;) {
      if (!overlap(operators_[i].out, view)) continue;
      const bool is_it = operators_[i].kind == Kind::kLinear && operators_[i].out == view &&
                         readers_of(i) == std::vector<size_t>{reader};
      return is_it ? std::optional(i) : std::nullopt;
    }
    return {};
  }

  // Whose rows of weights stand one for one for the columns that operator `i` writes.
  std::optional<size_t> producer_of(size_t i) const {
    const Operator& op = operators_[i];
    switch (op.kind) {
      case Kind::kNormHidden:
      case Kind::kNorm: return op.weight < 0 ? std::nullopt : std::optional(i);
      case Kind::kLinear: return i;
      case Kind::kActivate:  // relu(s x) is s relu(x)
        return op.activation == Activation::kRelu ? product_of(op.out, i) : std::nullopt;
      case Kind::kGate: return product_of(op.in[1], i);
      case Kind::kAttend:  // weighted sums of v's rows
        return attention_is_column_wise_ ? product_of(op.in[2], i) : std::nullopt;
      default: return {};
    }
  }

  const std::vector<Operator>& operators_;
  bool attention_is_column_wise_;
};
}  // namespace

std::vector<ScalingPlace> scaling_places(const LayerProgram& program,
                                         bool attention_is_column_wise) {
  return Places(program, attention_is_column_wise).find();
}

}  // namespace sluice
