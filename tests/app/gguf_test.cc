// GGUF models to packed stores: names, the order of rows, codes kept, values by the gguf package's
// formulas (scripts/golden/gguf_files.py), and the tokens of the model that one was written from.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <random>

#include "io/async/file_engine.h"
#include "io/checkpoint/packed_store.h"
#include "src/app/store_layout.h"
#include "src/base/error.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/app/repacked_run.h"
#include "tests/app/store_values.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;

class GgufModel : public ::testing::Test {
 protected:
  GgufModel() {
    std::string pattern = ::testing::TempDir() + "/sluice_gguf_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~GgufModel() override { fs::remove_all(folder_); }

  fs::path convert(const std::string& file, std::optional<WeightFormat> to = {}) {
    const BoundModel model = BoundModel::open(fs::path(SLUICE_FIXTURES) / "gguf" / file);
    const fs::path store = folder_ / (file + (to ? format_name(*to) : ""));
    io::ConvertOptions options;
    options.destination = store;
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    options.texts.emplace_back("config.json", model.config_text());
    io::convert_checkpoint(model.checkpoint(), store_groups(model, to), options);
    io::verify_store(store);
    return store;
  }

  // The largest difference from the golden rows, in steps of 8-bit codes of their 32 columns.
  double worst_steps(const fs::path& store, const std::string& name,
                     const char* golden = "mixed.safetensors") {
    return 127 * worst_share(store, fs::path(SLUICE_FIXTURES) / "gguf" / golden, name);
  }

  fs::path folder_;
};

// A file and the fixture that it was written from.
struct Written {
  const char *file, *fixture;
};
class WrittenModel : public GgufModel, public ::testing::WithParamInterface<Written> {};

TEST_P(WrittenModel, IsTheModelThatItWasWrittenFrom) {
  const auto& [file, fixture] = GetParam();
  const fs::path store = convert(file);
  // GPT-2's matrices lie turned in its folder.
  const bool is_turned = std::string_view(fixture).starts_with("gpt2-");
  const BoundModel original = BoundModel::open(
      testing::fixture_model(is_turned ? fixture + std::string(":store") : fixture));
  const BoundModel made = BoundModel::open(store);
  ASSERT_EQ(made.shape().sublayers.size(), original.shape().sublayers.size());
  for (size_t i = 0; i < original.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < original.shape().sublayers[i].weights.size(); ++w)
      // Gains are rounded with one added; q, k and v may lie in another order.
      if (const WeightShape& weight = original.shape().sublayers[i].weights[w];
          weight.added == 0 && !weight.role.starts_with("qkv"))
        EXPECT_EQ(bytes_of(made.checkpoint(), made.tensor(i, w)),
                  bytes_of(original.checkpoint(), original.tensor(i, w)))
            << original.tensor(i, w).name;
  EXPECT_EQ(made.shape().family, original.shape().family);
  for (const auto& golden : testing::golden_cases(fixture)) {
    const auto requests =
        testing::greedy_requests({golden.prompt}, static_cast<int>(golden.greedy.size()));
    const auto engine = Engine::open(store, testing::options_for(requests));
    testing::ListSource source(requests);
    testing::CollectingSink sink;
    engine->generate(source, sink);
    EXPECT_EQ(sink.answers[0].tokens, golden.greedy) << golden.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, WrittenModel,
    ::testing::Values(
        Written{"plain.gguf", "llama-tiny-gqa"}, Written{"qwen2.gguf", "qwen2-tiny"},
        Written{"qwen3.gguf", "qwen3-tiny"}, Written{"gemma.gguf", "gemma-tiny"},
        Written{"gemma2.gguf", "gemma2-tiny"}, Written{"gemma3.gguf", "gemma3-tiny"},
        Written{"granite.gguf", "granite-tiny"}, Written{"cohere.gguf", "cohere-tiny"},
        Written{"cohere2.gguf", "cohere2-tiny"}, Written{"olmo2.gguf", "olmo2-tiny"},
        Written{"smollm3.gguf", "smollm3-tiny"}, Written{"seed_oss.gguf", "seed-oss-tiny"},
        Written{"exaone4.gguf", "exaone4-tiny"}, Written{"ernie4_5.gguf", "ernie4-5-tiny"},
        Written{"starcoder2.gguf", "starcoder2-tiny"}, Written{"nemotron.gguf", "nemotron-tiny"},
        Written{"stablelm.gguf", "stablelm-tiny"}, Written{"phi.gguf", "phi-tiny"},
        Written{"gpt2.gguf", "gpt2-tiny"}, Written{"gpt_neox.gguf", "gpt-neox-tiny"},
        Written{"bloom.gguf", "bloom-tiny"}, Written{"falcon.gguf", "falcon-tiny"}),
    [](const auto& info) {
      return std::string(info.param.file, std::strcspn(info.param.file, "."));
    });

TEST_F(GgufModel, KeepsCodesWhereItCan) {
  const fs::path store = convert("mixed.gguf");
  const io::Checkpoint made = io::Checkpoint::open(store);
  struct Expected {
    const char *name, *format;
    double steps;
  };
  const auto layer = [](int i, const char* part) {
    return "model.layers." + std::to_string(i) + "." + part + ".weight";
  };
  // K types and their like are the file's values; f16 values: 2^-11 of the largest.
  const std::pair<std::string, Expected> cases[] = {
      {layer(0, "self_attn.q_proj"), {"q4_0", "q4_0", 0}},
      {layer(0, "self_attn.k_proj"), {"q4_k", "q4_k", 0}},
      {layer(0, "self_attn.v_proj"), {"q8_0", "int8-g32", 1e-4}},
      {layer(0, "self_attn.o_proj"), {"q5_0", "int8-g32", 1e-4}},
      {layer(0, "mlp.gate_proj"), {"q4_k", "q4_k", 0}},
      {layer(0, "mlp.up_proj"), {"q5_k", "q5_k", 0}},
      {layer(0, "mlp.down_proj"), {"q6_k", "q6_k", 0}},
      {layer(1, "self_attn.q_proj"), {"q4_1", "q4_1", 0}},
      {layer(1, "self_attn.k_proj"), {"q5_1", "q5_1", 0}},
      {layer(1, "self_attn.v_proj"), {"q2_k", "q2_k", 0}},
      {layer(1, "self_attn.o_proj"), {"f16", "f16", 0}},
      {layer(1, "mlp.gate_proj"), {"q3_k", "q3_k", 0}},
      {layer(1, "mlp.up_proj"), {"q4_0", "q4_0", 0}},
      {layer(1, "mlp.down_proj"), {"q8_0", "int8-g32", 1e-4}},
      {"model.embed_tokens.weight", {"q8_0", "f16", 0.07}},
      {"lm_head.weight", {"q6_k", "q6_k", 0}}};
  for (const auto& [name, expected] : cases) {
    ASSERT_NE(made.find(name), nullptr) << name;
    EXPECT_EQ(io::element_name(*made.find(name)), expected.format) << name;
    EXPECT_LE(worst_steps(store, name), expected.steps) << name << ", " << expected.name;
  }
  const auto requests = testing::greedy_requests({{5, 6, 7, 8}}, 6);
  const auto engine = Engine::open(store, testing::options_for(requests));
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  engine->generate(source, sink);
  EXPECT_EQ(sink.answers[0].tokens.size(), 6u);
}

TEST_F(GgufModel, KeepsTheValuesOfCodebooks) {
  const fs::path store = convert("codebooks.gguf");
  const io::Checkpoint made = io::Checkpoint::open(store);
  const char* const parts[] = {"self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o",
                               "mlp.gate",    "mlp.up",      "mlp.down"};
  const char* const formats[2][7] = {
      {"iq2", "iq2", "iq2", "q5_1", "iq1", "iq1", "q4_1"},
      {"int8-g32", "int8-g32", "int8-g32", "q4_1", "iq4", "q5_1", "int8-g32"}};
  std::map<std::string, std::string> expected{{"lm_head.weight", "iq2"}};
  for (int layer = 0; layer < 2; ++layer)
    for (int i = 0; i < 7; ++i)
      expected[fmt::format("model.layers.{}.{}_proj.weight", layer, parts[i])] = formats[layer][i];
  for (const auto& [name, format] : expected) {
    ASSERT_NE(made.find(name), nullptr) << name;
    EXPECT_EQ(io::element_name(*made.find(name)), format) << name;
    EXPECT_EQ(worst_steps(store, name, "codebooks.safetensors"), 0) << name;
  }
}

// Stacks of experts, each of a type: of every expert the rows that the gguf package gives.
TEST_F(GgufModel, KeepsCodesOfExpertsWhereItCan) {
  const fs::path store = convert("experts.gguf");
  const io::Checkpoint made = io::Checkpoint::open(store);
  struct Expected {
    int layer;
    const char *part, *format;
    double steps;
  };
  const Expected cases[] = {
      {0, "gate", "q4_k", 0},  {0, "up", "q6_k", 0},        {0, "down", "int8-g32", 1e-4},
      {1, "gate", "q4_0", 0},  {1, "up", "int8-g32", 1e-4}, {1, "down", "q4_0", 0},
      {2, "gate", "mxfp4", 0}, {2, "up", "q5_k", 0},        {2, "down", "int8-g32", 1e-4},
      {3, "gate", "f16", 0},   {3, "up", "q3_k", 0},        {3, "down", "mxfp4", 0}};
  for (const Expected& expected : cases)
    for (int expert = 0; expert < 3; ++expert) {
      const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight",
                                           expected.layer, expert, expected.part);
      ASSERT_NE(made.find(name), nullptr) << name;
      EXPECT_EQ(io::element_name(*made.find(name)), expected.format) << name;
      EXPECT_LE(worst_steps(store, name, "experts.safetensors"), expected.steps) << name;
    }
  EXPECT_EQ(io::element_name(*made.find("model.layers.0.mlp.gate.weight")), "f32") << "as it is";
}

// NVFP4 becomes plain: as the gguf package has it, or times its scale and rounded. Q1_0 is codes.
TEST_F(GgufModel, KeepsTheValuesOfNewerTypes) {
  const fs::path store = convert("newer.gguf");
  const io::Checkpoint made = io::Checkpoint::open(store);
  struct Expected {
    const char *name, *format;
    double steps;
  };
  const Expected cases[] = {
      {"self_attn.q_proj", "f16", 0.07},        {"self_attn.k_proj", "int8-g32", 1e-4},
      {"self_attn.v_proj", "f16", 0},           {"self_attn.o_proj", "int8-g32", 1e-4},
      {"mlp.experts.0.gate_proj", "f16", 0.07}, {"mlp.experts.2.gate_proj", "f16", 0.07},
      {"mlp.experts.1.up_proj", "f16", 0},      {"mlp.experts.2.down_proj", "int8-g32", 1e-4}};
  for (const Expected& expected : cases) {
    const std::string name = fmt::format("model.layers.0.{}.weight", expected.name);
    ASSERT_NE(made.find(name), nullptr) << name;
    EXPECT_EQ(io::element_name(*made.find(name)), expected.format) << name;
    EXPECT_LE(worst_steps(store, name, "newer.safetensors"), expected.steps) << name;
  }
  EXPECT_TRUE(BoundModel::open(fs::path(SLUICE_FIXTURES) / "gguf" / "newer.gguf").notes().empty());
}

TEST_F(GgufModel, BecomesWhatIsAskedFor) {
  const fs::path plain = convert("mixed.gguf", WeightFormat::plain(DType::kF32));
  const io::Checkpoint made = io::Checkpoint::open(plain);
  for (const io::TensorEntry& tensor : made.tensors()) {
    EXPECT_EQ(io::element_name(tensor), "f32") << tensor.name;
    if (tensor.shape.size() != 2) continue;
    EXPECT_LE(worst_steps(plain, tensor.name), 1e-3) << tensor.name;
  }
  const fs::path int8 = convert("mixed.gguf", parse_weight_format("int8-g32"));
  EXPECT_EQ(
      io::element_name(*io::Checkpoint::open(int8).find("model.layers.0.self_attn.q_proj.weight")),
      "int8-g32");
  EXPECT_LE(worst_steps(int8, "model.layers.0.self_attn.q_proj.weight"), 0.51);
}

TEST_F(GgufModel, RunsAsItLies) {
  for (const char* file : {"mixed.gguf", "codebooks.gguf", "plain.gguf", "qwen2.gguf", "qwen3.gguf",
                           "gemma2.gguf", "bloom.gguf", "gpt2.gguf", "experts.gguf"}) {
    SCOPED_TRACE(file);
    expect_runs_as_its_store(fs::path(SLUICE_FIXTURES) / "gguf" / file, convert(file));
  }
}

// GPT-2's safetensors have matrices as [inputs, outputs].
TEST(TransposedModel, RunsAsItLies) {
  for (const char* name : {"gpt2-tiny", "gpt2-odd"})
    expect_runs_as_its_store(fs::path(SLUICE_FIXTURES) / "models" / name,
                             testing::fixture_model(std::string(name) + ":store"));
}

std::string refusal(const fs::path& path, EngineOptions options, ErrorKind kind) {
  try {
    Engine::open(path, std::move(options));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "ran";
  return "";
}

// What is too little for the plan's slots may be enough for a store.
// A store would need as much.
TEST_F(GgufModel, AdvisesNoStoreWhereItStreamsItself) {
  const fs::path path = fs::path(SLUICE_FIXTURES) / "gguf" / "mixed.gguf";
  EngineOptions options = testing::options_for(testing::greedy_requests({{5, 6}}, 2));
  options.memory_budget_bytes = 1 << 18;
  const std::string text = refusal(path, options, ErrorKind::kResource);
  EXPECT_EQ(text.find("sluice convert"), std::string::npos) << text;
}

// Some inputs of all outputs are read at a time, and turned as they arrive.
TEST(TransposedModel, Streams) {
  const auto requests = testing::greedy_requests({{5, 6}, {7, 8, 9, 10, 11}}, 8);
  for (const std::string name : {"gpt2-tiny", "gpt2-odd"})
    for (const double disk : {0.5, 1.0}) {
      SCOPED_TRACE(name);
      EngineOptions options = testing::options_for(requests);
      options.policy.emplace();
      options.policy->weights = {1 - disk, 0, disk};
      const auto engine = Engine::open(fs::path(SLUICE_FIXTURES) / "models" / name, options);
      EXPECT_GT(engine->plan().streamed_weight_bytes, 0);
      const auto actual = testing::run_all(name, options, requests);
      for (const auto& [id, answer] : testing::run_all(name + ":store", options, requests))
        EXPECT_EQ(actual.at(id).tokens, answer.tokens) << id;
    }
}

// What arrives as the file has it becomes what a store of it holds: the same policy gives the same
// bits, whatever lies on disk.
TEST_F(GgufModel, StreamsAsItLies) {
  std::mt19937 random(7);
  for (const char* file :
       {"mixed.gguf", "codebooks.gguf", "plain.gguf", "qwen2.gguf", "qwen3.gguf", "gemma2.gguf",
        "bloom.gguf", "gpt2.gguf", "granite.gguf", "experts.gguf"})
    expect_streams_as_its_store(fs::path(SLUICE_FIXTURES) / "gguf" / file, convert(file), 6,
                                random);
}

// Of every part the file's blocks, and what alignment adds; some may be loaded for a pass that does
// not come.
TEST_F(GgufModel, StreamsTheBytesOfTheFile) {
  const fs::path path = fs::path(SLUICE_FIXTURES) / "gguf" / "mixed.gguf";
  const BoundModel model = BoundModel::open(path);
  int64_t windows = 0, bytes = 0;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
      if (model.shape().sublayers[i].weights[w].kind == WeightKind::kMatrix) {
        const io::TensorEntry& tensor = *model.foreign(i, w)->parts.front();
        windows += io::aligned_window(tensor.offset, tensor.bytes).bytes;
        bytes += tensor.bytes;
      }
  const auto requests = testing::greedy_requests({{5, 6, 7}}, 3);
  EngineOptions options = testing::options_for(requests);
  options.policy.emplace();
  options.policy->weights = {0, 0, 1};
  const auto engine = Engine::open(path, options);
  EXPECT_EQ(engine->plan().streamed_weight_bytes, bytes);
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  engine->generate(source, sink);
  const EngineStats stats = engine->stats();
  int64_t read = 0;
  for (const auto& [lane, of_lane] : stats.lanes)
    if (lane == Lane::kDiskRead) read = of_lane.bytes;
  EXPECT_GE(read, stats.passes * windows);
  EXPECT_LE(read, (stats.passes + 1) * windows);
}

// The file is cut after the resident rows were loaded: whoever waits for a part is told.
TEST_F(GgufModel, SaysWhereItEndsWhenItIsCutWhileItStreams) {
  const fs::path path = folder_ / "cut.gguf";
  fs::copy_file(fs::path(SLUICE_FIXTURES) / "gguf" / "mixed.gguf", path);
  const auto requests = testing::greedy_requests({{5, 6, 7}}, 3);
  EngineOptions options = testing::options_for(requests);
  options.policy.emplace();
  options.policy->weights = {0.5, 0, 0.5};
  const auto engine = Engine::open(path, options);
  engine->load();
  fs::resize_file(path, fs::file_size(path) / 2);
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  try {
    engine->generate(source, sink);
    FAIL() << "half of the file is gone";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(std::string(error.what()).find("cut.gguf"), std::string::npos) << error.what();
  }
}

// What it took to repack is counted beside reading.
TEST_F(GgufModel, CountsWhatItRepacks) {
  const auto requests = testing::greedy_requests({{5, 6, 7}}, 3);
  EngineOptions options = testing::options_for(requests);
  options.policy.emplace();
  for (const double disk : {0.0, 1.0}) {
    options.policy->weights = {1 - disk, 0, disk};
    const auto engine = Engine::open(fs::path(SLUICE_FIXTURES) / "gguf" / "mixed.gguf", options);
    testing::ListSource source(requests);
    testing::CollectingSink sink;
    engine->generate(source, sink);
    const EngineStats stats = engine->stats();
    int64_t a_pass = 0;
    for (const auto& parts : engine->plan().parts)
      for (const policy::PlanPart& part : parts) a_pass += part.packed_bytes > 0 ? part.bytes : 0;
    EXPECT_LE(stats.repacked_bytes, a_pass * (stats.passes + 1));
    EXPECT_EQ(stats.repacked_bytes > 0, disk > 0);
    EXPECT_EQ(stats.repack_seconds > 0, disk > 0);
    EXPECT_GT(engine->plan().repacked_bytes_per_second, 0);
  }
}

TEST_F(GgufModel, TakesNoMoreThanItsBudgetWhileItIsRepacked) {
  const auto requests = testing::greedy_requests({{5, 6, 7}}, 2);
  EngineOptions options = testing::options_for(requests);
  // The smallest that a plan fits in holds the largest matrix twice while it loads.
  int64_t least = 1 << 18;
  const fs::path path = fs::path(SLUICE_FIXTURES) / "gguf" / "mixed.gguf";
  for (;; least += 1 << 16) {
    ASSERT_LT(least, int64_t{64} << 20);
    options.memory_budget_bytes = least;
    try {
      Engine::open(path, options);
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kResource) << error.what();
    }
  }
  EXPECT_EQ(run_path(path, options, requests).at(0).tokens.size(), 2u);
}

}  // namespace
}  // namespace sluice::app
