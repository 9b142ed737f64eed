#include "policy/alike_sublayers.h"

#include <algorithm>
#include <unordered_map>

namespace sluice::policy {

namespace {
// A token table's costs depend on what of it lies on disk; a model has one, and it is nobody's
// like.
bool is_shaped_alike(const ModelShape& model, size_t a, size_t b) {
  const SublayerShape& one = model.sublayers[a];
  const SublayerShape& other = model.sublayers[b];
  if (one.kind != other.kind || one.kind == SublayerKind::kEmbed ||
      one.weights.size() != other.weights.size() || one.work != other.work ||
      one.state.group != other.state.group || one.state.is_reader != other.state.is_reader)
    return false;
  for (size_t w = 0; w < one.weights.size(); ++w) {
    const WeightShape& x = one.weights[w];
    const WeightShape& y = other.weights[w];
    if (x.rows != y.rows || x.cols != y.cols || x.kind != y.kind ||
        x.is_after_cut != y.is_after_cut || x.experts != y.experts ||
        model.format_of(x) != model.format_of(y))
      return false;
  }
  return true;
}

// FNV-1a over words.
size_t hash_of(size_t shape, const std::vector<int64_t>& rows) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t hash = 0xcbf29ce484222325 ^ shape;
  for (const int64_t count : rows) hash = (hash ^ static_cast<uint64_t>(count)) * kPrime;
  return hash;
}
}  // namespace

std::vector<size_t> shaped_alike(const ModelShape& model) {
  std::vector<size_t> distinct;
  std::vector<size_t> out;
  for (size_t i = 0; i < model.sublayers.size(); ++i) {
    const auto found = std::find_if(distinct.begin(), distinct.end(),
                                    [&](size_t other) { return is_shaped_alike(model, i, other); });
    out.push_back(found == distinct.end() ? i : *found);
    if (out.back() == i) distinct.push_back(i);
  }
  return out;
}

AlikeSublayers alike_sublayers(std::span<const size_t> shapes, const InplaceRows& inplace) {
  AlikeSublayers out;
  out.kind.reserve(shapes.size());
  std::unordered_multimap<size_t, size_t> known;  // hash to a place in `distinct`
  for (size_t i = 0; i < shapes.size(); ++i) {
    const size_t hash = hash_of(shapes[i], inplace[i]);
    const auto [begin, end] = known.equal_range(hash);
    const auto found = std::find_if(begin, end, [&](const auto& one) {
      const size_t other = out.distinct[one.second].sublayer;
      return shapes[other] == shapes[i] && inplace[other] == inplace[i];
    });
    if (found == end) {
      known.emplace(hash, out.distinct.size());
      out.kind.push_back(out.distinct.size());
      out.distinct.push_back({i, 1});
      continue;
    }
    out.kind.push_back(found->second);
    out.distinct[found->second].count += 1;
  }
  return out;
}

}  // namespace sluice::policy
