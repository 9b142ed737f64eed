#include "src/model/planning_shapes.h"

#include <algorithm>

#include "src/model/builtin.h"
#include "src/model/family.h"

namespace sluice {

namespace {
// Decoder-only models as their config.json files say. A mixture of experts has `experts` > 1 of
// `inter` columns each, `shared` of them always used; the first `dense_layers` have one of
// `dense_inter`.
struct Row {
  const char* name;
  int64_t layers, hidden, inter, heads, kv_heads, head_dim, vocab, positions;
  int64_t experts = 1, active = 1, shared = 0, dense_layers = 0, dense_inter = 0;
  int64_t q_rank = 0, kv_rank = 0, rope_dim = 0, v_dim = 0;  // multi-head latent attention
};

constexpr Row kRows[] = {{"qwen3-30b-a3b", 48, 2048, 768, 32, 4, 128, 151936, 40960, 128, 8},
                         {"qwen3-235b-a22b", 94, 4096, 1536, 64, 4, 128, 151936, 40960, 128, 8},
                         {"mixtral-8x7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768, 8, 2},
                         {"mixtral-8x22b", 56, 6144, 16384, 48, 8, 128, 32768, 65536, 8, 2},
                         {"deepseek-v3", 61, 7168, 2048, 128, 128, 192, 129280, 163840, 256, 8, 1,
                          3, 18432, 1536, 512, 64, 128}};

WeightShape planned_matrix(std::string role, int64_t rows, int64_t cols) {
  WeightShape weight;
  weight.role = std::move(role);
  weight.kind = WeightKind::kMatrix;
  weight.rows = rows;
  weight.cols = cols;
  return weight;
}

WeightShape planned_vector(std::string role, int64_t cols) {
  WeightShape weight;
  weight.role = std::move(role);
  weight.kind = WeightKind::kVector;
  weight.cols = cols;
  return weight;
}

void add_attention(const Row& row, SublayerShape& out) {
  out.weights.push_back(planned_vector("norm", row.hidden));
  if (row.kv_rank > 0) {  // DeepSeek's latent attention: low-rank q, one latent row for k and v
    const int64_t nope = row.head_dim - row.rope_dim;
    out.weights.push_back(planned_matrix("q_a", row.q_rank, row.hidden));
    out.weights.push_back(planned_matrix("q_b", row.heads * row.head_dim, row.q_rank));
    out.weights.push_back(planned_matrix("kv_a", row.kv_rank + row.rope_dim, row.hidden));
    out.weights.push_back(planned_matrix("kv_b", row.heads * (nope + row.v_dim), row.kv_rank));
    out.weights.push_back(planned_matrix("o", row.hidden, row.heads * row.v_dim));
    return;
  }
  out.weights.push_back(planned_matrix("q", row.heads * row.head_dim, row.hidden));
  out.weights.push_back(planned_matrix("k", row.kv_heads * row.head_dim, row.hidden));
  out.weights.push_back(planned_matrix("v", row.kv_heads * row.head_dim, row.hidden));
  out.weights.push_back(planned_matrix("o", row.hidden, row.heads * row.head_dim));
}

// The routed experts' matrices lie one below the other: a shard is a run of their rows.
void add_mlp(const Row& row, int64_t layer, SublayerShape& out) {
  out.weights.push_back(planned_vector("norm", row.hidden));
  const bool is_dense = layer < row.dense_layers;
  const int64_t inter = is_dense ? row.dense_inter : row.inter;
  const int64_t routed = is_dense ? 1 : row.experts;
  const auto add = [&](const std::string& suffix, int64_t count) {
    const auto stack = [&](const char* role, int64_t rows, int64_t cols) {
      WeightShape weight = planned_matrix(role + suffix, count * rows, cols);
      weight.experts = count > 1 ? count : 0;
      out.weights.push_back(std::move(weight));
    };
    stack("gate", inter, row.hidden);
    stack("up", inter, row.hidden);
    stack("down", row.hidden, inter);
  };
  if (routed > 1) out.weights.push_back(planned_matrix("router", routed, row.hidden));
  add("", routed);
  if (!is_dense && row.shared > 0) add(".shared", row.shared);
}

// As the programs of families have it: norm, rotation, activation, addition.
SublayerWork work_of(SublayerKind kind, const Row& row, const ModelShape& shape) {
  const auto bytes = [](int64_t columns) { return 4 * static_cast<double>(columns); };
  const int64_t hidden = row.hidden;
  switch (kind) {
    case SublayerKind::kEmbed:
      return {{bytes(3 * hidden) + 2 * static_cast<double>(hidden), 2}, {}};
    case SublayerKind::kAttention:
      return {{bytes(2 * hidden + 2 * (row.heads + row.kv_heads) * row.head_dim), 3},
              {bytes(3 * hidden), 1}};
    case SublayerKind::kMlp: return {{bytes(5 * hidden + 3 * shape.intermediate_size), 3}, {}};
    case SublayerKind::kHead: return {{bytes(4 * hidden), 2}, {}};
  }
  return {};
}

ModelShape shape_of(const Row& row) {
  ModelShape shape;
  shape.family = row.name;
  shape.weight_dtype = DType::kBF16;
  shape.num_layers = row.layers;
  shape.hidden_size = row.hidden;
  shape.intermediate_size = row.dense_inter > 0 ? row.dense_inter : row.inter * row.active;
  shape.num_heads = row.heads;
  shape.num_kv_heads = row.kv_heads;
  shape.head_dim = row.head_dim;
  shape.vocab_size = row.vocab;
  shape.max_positions = row.positions;
  shape.num_experts = row.experts;
  shape.experts_per_token = row.active;
  const int64_t q = row.heads * row.head_dim;
  const int64_t kv = row.kv_heads * row.head_dim;
  shape.workspace_columns =
      std::max(row.hidden + 2 * q + 2 * kv, row.hidden + 2 * shape.intermediate_size);
  WeightShape tokens = planned_matrix("tokens", row.vocab, row.hidden);
  tokens.kind = WeightKind::kTable;
  shape.sublayers.push_back({SublayerKind::kEmbed, -1, {tokens}});
  for (int64_t layer = 0; layer < row.layers; ++layer) {
    SublayerShape attention{SublayerKind::kAttention, layer, {}};
    add_attention(row, attention);
    shape.sublayers.push_back(std::move(attention));
    SublayerShape mlp{SublayerKind::kMlp, layer, {}};
    add_mlp(row, layer, mlp);
    shape.sublayers.push_back(std::move(mlp));
  }
  WeightShape logits = planned_matrix("logits", row.vocab, row.hidden);
  shape.sublayers.push_back(
      {SublayerKind::kHead, -1, {planned_vector("norm", row.hidden), logits}});
  for (SublayerShape& sublayer : shape.sublayers) {
    sublayer.work = work_of(sublayer.kind, row, shape);
    for (WeightShape& weight : sublayer.weights) weight.is_after_cut = weight.role == "o";
  }
  shape.set_states(row.kv_rank > 0
                       ? LayerState{LayerState::Kind::kLatentRow, 1, row.kv_rank + row.rope_dim, 0}
                       : LayerState{.heads = row.kv_heads, .width = row.head_dim});
  shape.note = "a shape to plan with: no family here runs it yet";
  return shape;
}
}  // namespace

std::vector<std::string> planning_model_names() {
  std::vector<std::string> names = builtin_model_names();
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

bool is_runnable_model(std::string_view name) { return builtin_config(name).has_value(); }

std::optional<ModelShape> planning_shape(std::string_view name) {
  if (const auto config = builtin_config(name))
    return make_family_model(ModelConfig(*config, std::string(name)))->shape();
  for (const Row& row : kRows)
    if (name == row.name) return shape_of(row);
  return std::nullopt;
}

}  // namespace sluice
