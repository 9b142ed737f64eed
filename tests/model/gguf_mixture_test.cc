// Mixtures of experts in GGUF files: what their keys and stacks mean, and what of either is damaged
// or not read. The files: scripts/golden/gguf_mixtures.py.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/model/bound_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// A file of tests/fixtures, changed in some bytes.
class ChangedGguf {
 public:
  explicit ChangedGguf(const std::string& fixture)
      : bytes_(read_file(fs::path(SLUICE_FIXTURES) / "models" / fixture / "model.gguf", 1 << 24)) {
    std::string pattern = ::testing::TempDir() + "/sluice_gguf_mixture_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ChangedGguf() { fs::remove_all(folder_); }
  ChangedGguf(const ChangedGguf&) = delete;
  ChangedGguf& operator=(const ChangedGguf&) = delete;

  // A key's u32.
  ChangedGguf& set(const std::string& key, uint32_t value) {
    std::memcpy(bytes_.data() + behind(key) + 4, &value, 4);
    return *this;
  }
  // The first letter of a key or tensor, so that nobody knows it.
  ChangedGguf& lose(const std::string& name) {
    bytes_[behind(name) - name.size()] = 'x';
    return *this;
  }
  // A dimension of a tensor, the innermost being 0.
  ChangedGguf& resize(const std::string& tensor, size_t dimension, uint64_t size) {
    std::memcpy(bytes_.data() + behind(tensor) + 4 + 8 * dimension, &size, 8);
    return *this;
  }

  BoundModel open() const {
    write_file(folder_ / "model.gguf", bytes_);
    return BoundModel::open(folder_ / "model.gguf");
  }
  nlohmann::json config() const { return nlohmann::json::parse(open().config_text()); }
  // What it is refused with.
  std::string refusal() const {
    try {
      open();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
      return error.what();
    }
    return "opened";
  }

 private:
  // Where a text with its length before it ends.
  size_t behind(const std::string& text) const {
    const auto length = static_cast<uint64_t>(text.size());
    std::string wanted(reinterpret_cast<const char*>(&length), 8);
    wanted += text;
    const size_t at = bytes_.find(wanted);
    if (at == std::string::npos) throw std::runtime_error("no " + text);
    return at + wanted.size();
  }

  std::string bytes_;
  fs::path folder_;
};

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

const WeightShape& first_named(const ModelShape& shape, std::string_view role) {
  for (const SublayerShape& sublayer : shape.sublayers)
    if (const WeightShape* found = sublayer.find(role)) return *found;
  throw std::runtime_error("no such weight");
}

TEST(GgufMixture, CountsWidthsAndRoutersAreTheKeys) {
  const nlohmann::json qwen = ChangedGguf("qwen3-moe-odd-gguf").config();
  EXPECT_EQ(qwen["num_experts"], 3);
  EXPECT_EQ(qwen["num_experts_per_tok"], 3);
  EXPECT_EQ(qwen["moe_intermediate_size"], 13);
  EXPECT_EQ(qwen["mlp_only_layers"], nlohmann::json({0}));
  EXPECT_EQ(qwen["norm_topk_prob"], false);
  EXPECT_EQ(ChangedGguf("qwen3-moe-tiny-gguf").config()["norm_topk_prob"], true)
      << "the family's, where a file says nothing";
  EXPECT_EQ(ChangedGguf("qwen2-moe-tiny-gguf").config()["norm_topk_prob"], false);
  EXPECT_EQ(ChangedGguf("qwen2-moe-odd-gguf").config()["shared_expert_intermediate_size"], 11);
  EXPECT_EQ(ChangedGguf("mixtral-odd-gguf").config()["model_type"], "mixtral");
  const nlohmann::json glm = ChangedGguf("glm4-moe-odd-gguf").config();
  EXPECT_EQ(glm["first_k_dense_replace"], 1);
  EXPECT_EQ(glm["n_group"], 3);
  EXPECT_EQ(glm["topk_group"], 2);
  EXPECT_EQ(glm["norm_topk_prob"], false);
}

// Where no key says how wide experts are, their matrices do.
TEST(GgufMixture, WidthsMayBeTheTensors) {
  ChangedGguf qwen("qwen2-moe-odd-gguf");
  qwen.lose("qwen2moe.expert_feed_forward_length");
  qwen.lose("qwen2moe.expert_shared_feed_forward_length");
  EXPECT_EQ(qwen.config()["moe_intermediate_size"], 13);
  EXPECT_EQ(qwen.config()["shared_expert_intermediate_size"], 11);
}

// An expert's bytes are a run of the stack's, so that it is read alone.
TEST(GgufMixture, AnExpertIsARunOfItsStack) {
  const BoundModel model = BoundModel::open(fs::path(SLUICE_FIXTURES) / "gguf" / "experts.gguf");
  const io::TensorEntry& stack = *model.checkpoint().find("blk.1.ffn_up_exps.weight");
  EXPECT_EQ(stack.shape, (std::vector<int64_t>{3, 32, 256}));
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i) {
    const SublayerShape& sublayer = model.shape().sublayers[i];
    if (sublayer.kind != SublayerKind::kMlp || sublayer.layer_index != 1) continue;
    for (size_t w = 0; w < sublayer.weights.size(); ++w) {
      if (sublayer.weights[w].role != "experts.up") continue;
      for (size_t expert = 0; expert < 3; ++expert) {
        const ForeignMatrix* matrix = model.foreign(i, w, expert);
        ASSERT_NE(matrix, nullptr);
        const ForeignMatrix::Run run = matrix->run_of(0, 32);
        EXPECT_EQ(run.bytes, stack.bytes / 3);
        EXPECT_EQ(run.offset, stack.offset + static_cast<int64_t>(expert) * run.bytes);
      }
      return;
    }
  }
  FAIL() << "no experts";
}

// Routers are f32 in files whose matrices are not; what runs is one type.
TEST(GgufMixture, RoutersBecomeWhatTheTableIs) {
  const BoundModel model = ChangedGguf("qwen3-moe-odd-gguf").open();
  EXPECT_EQ(model.shape().weight_dtype, DType::kBF16);
  EXPECT_NO_THROW(model.require_runnable());
  EXPECT_TRUE(model.notes().empty());
}

TEST(GgufMixture, CountsThatDoNotFitAreRefused) {
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_count", 0).refusal(),
               {"qwen3moe.expert_count is 0"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").lose("qwen3moe.expert_count").refusal(),
               {"qwen3moe.expert_count is missing"});
  expect_words(ChangedGguf("mixtral-tiny-gguf").set("llama.expert_count", 0).refusal(),
               {"blk.0.ffn_gate_exps.weight holds experts", "llama.expert_count"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_used_count", 9).refusal(),
               {"expert_used_count is 9", "8 experts"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_used_count", 0).refusal(),
               {"expert_used_count is 0"});
  expect_words(ChangedGguf("glm4-moe-odd-gguf").set("glm4moe.expert_group_count", 4).refusal(),
               {"9 experts in 4 groups"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.block_count", 1 << 30).refusal(),
               {"block_count"});
}

TEST(GgufMixture, RoutersOfAnotherKindAreRefused) {
  for (const uint32_t gating : {1u, 7u})
    expect_words(
        ChangedGguf("glm4-moe-odd-gguf").set("glm4moe.expert_gating_func", gating).refusal(),
        {"expert_gating_func is", "2 is read"});
  EXPECT_EQ(ChangedGguf("glm4-moe-odd-gguf").set("glm4moe.expert_gating_func", 0).refusal(),
            "opened")
      << "not said";
}

TEST(GgufMixture, TensorsThatAreMissingOrOfAnotherShapeAreNamed) {
  for (const char* name : {"blk.1.ffn_gate_inp.weight", "blk.1.ffn_up_exps.weight",
                           "blk.1.ffn_down_exps.weight", "blk.0.attn_k_norm.weight"})
    expect_words(ChangedGguf("qwen3-moe-tiny-gguf").lose(name).refusal(), {name, "missing"});
  expect_words(ChangedGguf("glm4-moe-odd-gguf").lose("blk.1.exp_probs_b.bias").refusal(),
               {"blk.1.exp_probs_b.bias", "missing"});
  const char* stack = "blk.1.ffn_down_exps.weight";
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").resize(stack, 2, 7).refusal(),
               {stack, "[7, 16, 12]", "[8, 16, 12]"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").resize(stack, 0, 11).refusal(), {stack, "11"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_count", 7).refusal(),
               {"exps.weight has shape [8, ", "[7, "});
}

TEST(GgufMixture, LayersThatDraftAreLeftOut) {
  ChangedGguf model("glm4-moe-odd-gguf");
  const BoundModel whole = model.open();
  EXPECT_EQ(whole.shape().num_layers, 3);
  EXPECT_EQ(first_named(whole.shape(), "router.bias").cols, 9);
  model.set("glm4moe.nextn_predict_layers", 1);
  EXPECT_EQ(model.open().shape().num_layers, 2);
  EXPECT_FALSE(model.open().notes().empty()) << "says what is not used";
  expect_words(model.set("glm4moe.nextn_predict_layers", 3).refusal(), {"nextn_predict_layers"});
}

}  // namespace
}  // namespace sluice
