#include <algorithm>

#include "policy/plan.h"

namespace sluice::policy {

namespace {
bool is_alike(const ModelShape& model, const Plan& plan, size_t a, size_t b) {
  const SublayerShape& one = model.sublayers[a];
  const SublayerShape& other = model.sublayers[b];
  if (one.kind != other.kind || one.weights.size() != other.weights.size() ||
      one.work != other.work || one.state.group != other.state.group)
    return false;
  for (size_t w = 0; w < one.weights.size(); ++w) {
    const WeightShape& x = one.weights[w];
    const WeightShape& y = other.weights[w];
    if (x.rows != y.rows || x.cols != y.cols || x.kind != y.kind ||
        x.is_after_cut != y.is_after_cut || x.is_routed_expert != y.is_routed_expert ||
        model.format_of(x) != model.format_of(y))
      return false;
    for (const PassClass& of_class : plan.classes)
      if (of_class.inplace_rows(a, w) != of_class.inplace_rows(b, w)) return false;
    if (one.kind == SublayerKind::kEmbed && plan.rows[a][w].disk != plan.rows[b][w].disk)
      return false;
  }
  return true;
}
}  // namespace

std::vector<size_t> alike_sublayers(const ModelShape& model, const Plan& plan) {
  std::vector<size_t> distinct;
  std::vector<size_t> out;
  for (size_t i = 0; i < model.sublayers.size(); ++i) {
    const auto found = std::find_if(distinct.begin(), distinct.end(),
                                    [&](size_t other) { return is_alike(model, plan, i, other); });
    out.push_back(found == distinct.end() ? i : *found);
    if (out.back() == i) distinct.push_back(i);
  }
  return out;
}

}  // namespace sluice::policy
