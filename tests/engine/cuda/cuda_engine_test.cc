// The engine on the CUDA backend gives what it gives on the CPU: logits, and tokens under any
// policy. On the host's stand-in the driver runs streams late and in any order that events allow,
// and threads of a block in an order drawn from a seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "src/app/synthetic.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/model/family.h"
#include "src/sampling/philox.h"
#include "tests/engine/cuda/cuda_testing.h"
#include "tests/jobs/temporary_folder.h"
#include "tests/rounds.h"
#include "tests/whole_file.h"

namespace sluice::testing {
namespace {

class CudaEngine : public ::testing::TestWithParam<std::string> {
 protected:
  // Difference of log-probabilities that rounding may make.
  // An fp8 code of an input that falls the other way is a step of a sixteenth or an eighth of it.
  static double tie() {
    if (GetParam().ends_with("+f8")) return 0.3;
    return is_bf16() || is_of(":types") || has_8_bit_inputs(GetParam()) ? 0.1 : 0.02;
  }
  static bool is_of(const char* kind) { return GetParam().find(kind) != std::string::npos; }
  static bool is_bf16() {
    return BoundModel::open(fixture_model(GetParam())).shape().weights_name() == "bf16";
  }
  /// Relative, of rows from the CPU's.
  static double allowed_error() {
    return is_of("+f8")      ? 0.15
           : is_of(":types") ? 2e-2  // bf16 among them
           : is_of("+a8")    ? 4e-2
           : is_bf16()       ? std::max(2e-2, half_precision_error(GetParam()))
           : is_of(":")      ? 8e-3
           : is_latent()     ? 8e-3
                             : 3e-3;
  }
  static bool is_latent() { return !kv_of(GetParam(), KvFormat(KvEncoding::kInt8)).is_quantised(); }
  int64_t vocab() const { return BoundModel::open(fixture_model(GetParam())).shape().vocab_size; }
};

TEST_P(CudaEngine, LogitsAreTheCpusWithinRounding) {
  Random random(3);
  // Inputs of products keep 8 bits in bf16, 11 in f16; of f32 weights all. A code of an int8 input
  // that falls the other way is a step of 1/127 of the largest, one of an fp8 input 1/16 of itself.
  // Some models lose more in bf16, in transformers too. Latent attention rounds queries that have
  // been brought to the rows' width, where they are larger.
  const double allowed = allowed_error();
  expect_logits_of_the_cpu(GetParam(), greedy_requests(random_prompts(random, 4, vocab()), 1),
                           allowed);
}

// Rows behind the final norm instead of logits, of some sequences: also of one token, whose pass
// would be a graph's.
TEST_P(CudaEngine, HiddenRowsAreTheCpus) {
  if (is_left_to_release(GetParam(), "hidden")) GTEST_SKIP() << "tried without sanitizers";
  Random random(77);
  auto prompts = random_prompts(random, 5, vocab());
  prompts[1].resize(1);
  prompts[3].resize(1);
  auto requests = greedy_requests(prompts, 4);
  requests[0].hidden_rows = requests[1].hidden_rows = HiddenRows::kAll;
  requests[2].hidden_rows = HiddenRows::kLast;
  for (const auto& asked : {requests, std::vector(requests.begin() + 1, requests.begin() + 2)}) {
    EngineOptions options = exact_options_for(asked);
    auto expected = run_all(GetParam(), options, asked);
    options.backend = make_backend();
    auto actual = run_all(GetParam(), options, asked);
    for (const GenerationRequest& request : asked) {
      const Answer& ours = actual[request.id];
      const Answer& cpu = expected[request.id];
      ASSERT_EQ(ours.hidden.size(), cpu.hidden.size()) << request.id;
      EXPECT_EQ(ours.hidden.empty(), request.hidden_rows == HiddenRows::kNone);
      double worst = 0, largest = 0;
      for (size_t i = 0; i < cpu.hidden.size(); ++i) {
        worst = std::max(worst, std::abs(double{ours.hidden[i]} - cpu.hidden[i]));
        largest = std::max(largest, std::abs(double{cpu.hidden[i]}));
      }
      EXPECT_LE(worst, 2 * allowed_error() * largest) << request.id;  // no head averages them
      EXPECT_EQ(ours.tokens.size(), cpu.tokens.size());
    }
  }
}

// A norm that adds what the sublayer before left to it, attention that rotates, copies made by who
// writes the rows: the same bits as operators by themselves.
TEST_P(CudaEngine, FusedOperatorsGiveTheSameLogits) {
  if (is_left_to_release(GetParam(), "fused")) GTEST_SKIP() << "tried without sanitizers";
  for (uint32_t seed = 1; seed <= rounds(3U); ++seed) {
    Random random(seed + 300);
    auto requests = greedy_requests(random_prompts(random, pick(random, 1, 5), vocab()), 5);
    for (GenerationRequest& request : requests) request.score_prompt = seed % 2 == 0;
    EngineOptions options = exact_options_for(requests);
    if (seed > 1) options.policy = random_policy(random, seed % 2 == 0);
    const auto run = [&](bool fuses) {
      options.fuses_operators = fuses;
      options.backend = make_backend();
      return run_all(GetParam(), options, requests);
    };
    auto expected = run(false);
    draw_order(seed);
    auto actual = run(true);
    draw_order(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(actual[i].tokens, expected[i].tokens) << "seed " << seed << ", sequence " << i;
      EXPECT_EQ(actual[i].logits, expected[i].logits) << "seed " << seed << ", sequence " << i;
    }
  }
}

// So many rows that int8 products are dense ones.
TEST(CudaEngineInt8, LongPromptsGiveTheCpusLogits) {
  Random random(7);
  std::vector<int32_t> prompt(300);
  for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 500));
  expect_logits_of_the_cpu("stories260k:int8+a8", greedy_requests({prompt}, 1), 4e-2);
}

TEST(CudaEngineFp8, LongPromptsGiveTheCpusLogits) {
  Random random(8);
  std::vector<int32_t> prompt(300);
  for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 500));
  expect_logits_of_the_cpu("stories260k:fp8+f8", greedy_requests({prompt}, 1), 0.15);
  expect_logits_of_the_cpu("stories260k:fp8-g64+f8", greedy_requests({prompt}, 1), 0.15);
}

// So many rows that products are dense, so little memory that a matrix is made plain in parts.
TEST(CudaEngineSlabs, PartsOfAMatrixGiveTheCpusLogits) {
  struct Case {
    const char* model;
    double allowed;
    int64_t slab_bytes;
  };
  for (const Case& c : {Case{"opt-tiny:int4", 8e-3, 4 * kKiB},
                        {"opt-tiny:mxfp4", 8e-3, 4 * kKiB},
                        {"opt-tiny:fp8+f8", 0.15, 64 * kKiB},
                        {"opt-tiny:int8+a8", 4e-2, 64 * kKiB},
                        {"stories260k:int8+a8", 4e-2, 64 * kKiB}}) {
    SCOPED_TRACE(c.model);
    Random random(10);
    std::vector<std::vector<int32_t>> prompts(14, std::vector<int32_t>(20));
    for (std::vector<int32_t>& prompt : prompts)
      for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 90));
    expect_logits_of_the_cpu(c.model, greedy_requests(prompts, 1), c.allowed, {}, c.slab_bytes);
  }
}

#ifdef SLUICE_CUDA_ON_HOST
// Without products of fp8 (Ampere) its rows are 16-bit numbers; without bf16 (Turing) f16.
TEST(CudaEngineFp8, OlderGpusGiveTheCpusLogits) {
  Random random(9);
  std::vector<int32_t> prompt(150);
  for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 500));
  for (const auto& [major, minor] : {std::pair{8, 0}, std::pair{7, 5}}) {
    SCOPED_TRACE("compute capability " + std::to_string(major));
    cuda::host::set_capability(major, minor);
    for (const size_t tokens : {size_t{9}, prompt.size()})
      expect_logits_of_the_cpu("stories260k:fp8+f8",
                               greedy_requests({{prompt.begin(), prompt.begin() + tokens}}, 1),
                               0.15);
    expect_logits_of_the_cpu("stories260k:int4", greedy_requests({prompt}, 1), 8e-3);
  }
  cuda::host::set_capability(9, 0);
}
#endif

// What other tools have packed, as it lies: repacked as it is loaded, all of it on the GPU or a
// part beside it.
TEST(CudaEngineForeign, LogitsAreTheCpusWithinRounding) {
  policy::Policy parted;
  parted.weights = {0.4, 0.6, 0};
  parted.inplace_host_fraction = 0.3;
  for (const char* model : {"../foreign/bnb-nf4-double", "../foreign/ct-int4-asymmetric",
                            "../foreign/ct-fp8", "../foreign/fp8-block", "../gguf/mixed.gguf",
                            "../gguf/mixed.gguf:store", "../gguf/codebooks.gguf"})
    for (const bool is_parted : {false, true}) {
      SCOPED_TRACE(std::string(model) + (is_parted ? " in two places" : ""));
      expect_logits_of_the_cpu(model, greedy_requests({{5, 6, 7, 8}, {9, 10, 11}}, 1), 8e-3,
                               is_parted ? std::optional(parted) : std::nullopt);
    }
}

// K types in so many rows that they are made plain, in parts. Other tokens of this random model
// have inputs beyond f16's range, and its weights make more of rounding.
TEST(CudaEngineForeign, KTypesOfManyRowsGiveTheCpusLogits) {
  const std::vector<std::vector<int32_t>> alike(20, {5, 6, 7, 8});
  expect_logits_of_the_cpu("../gguf/mixed.gguf", greedy_requests(alike, 1), 8e-3, {}, 64 * kKiB);
  Random random(18);
  expect_logits_of_the_cpu("../gguf/mixed.gguf", greedy_requests(random_prompts(random, 20, 60), 1),
                           8e-2, {}, 64 * kKiB);
}

// For int8 activations a file's K types are repacked to codes of 4 and 8 bits.
TEST(CudaEngineForeign, Int8ActivationsRepackKTypes) {
  EngineOptions options = exact_options_for(greedy_requests({{5, 6, 7, 8}}, 1));
  options.activations = kernels::ActivationFormat::kInt8;
  for (const bool has_gpu : {false, true}) {
    if (has_gpu) options.backend = make_backend();
    const auto engine = Engine::open(fixture_model("../gguf/mixed.gguf"), options);
    bool has_k = false;
    for (const SublayerShape& sublayer : engine->model().shape().sublayers)
      for (const WeightShape& weight : sublayer.weights) has_k |= weight.quantised.is_k();
    EXPECT_EQ(has_k, !has_gpu);
  }
}

// Experts of a bf16 model in MXFP4, whose inputs keep 8 bits: transformers' logits move by 0.13 in
// bf16.
TEST(CudaEngineForeign, ExpertsInMxfp4GiveTheCpusLogits) {
  policy::Policy parted;
  parted.weights = {0.4, 0.6, 0};
  parted.inplace_host_fraction = 0.3;
  const auto requests = greedy_requests({{5, 70, 12, 41, 8, 33, 96, 3, 20}}, 1);
  expect_logits_of_the_cpu("gpt-oss-mxfp4", requests, 0.13);
  expect_logits_of_the_cpu("gpt-oss-mxfp4:store", requests, 0.13, parted);
}

// Gemma 4's published full layers have heads of 512 columns: gemma4-tiny with such, of random
// weights; also on the host beside the GPU, and on a Turing. Its queries and keys are normalised
// and their products not scaled, so that scores are the larger the wider heads are, and what
// rounding queries to 16 bits makes of them: 0.006 at 64 columns, 0.015 at 256, 0.029 at 512.
TEST(CudaEngineWide, HeadsOf512ColumnsGiveTheCpusLogits) {
  constexpr double kAllowed = 5e-2;
  const TemporaryFolder folder;
  auto config = nlohmann::json::parse(whole_file(fixture_model("gemma4-tiny") + "/config.json"));
  config["global_head_dim"] = 512;
  const std::string text = config.dump(), made = folder.file("gemma4-wide");
  const auto family = make_family_model(ModelConfig(text, "config.json"));
  app::SyntheticOptions drawn;
  drawn.dtype = DType::kF32;
  app::write_synthetic_model(family->shape(), text, made, drawn);
  Random random(12);
  std::vector<std::vector<int32_t>> prompts(2, std::vector<int32_t>(70));
  for (std::vector<int32_t>& prompt : prompts)
    for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 60));
  prompts[1].resize(1);
  expect_logits_of_the_cpu(made, greedy_requests(prompts, 6), kAllowed);
  for (const bool attends_on_host : {false, true})
    expect_logits_of_the_cpu(made, greedy_requests(prompts, 6), kAllowed,
                             random_policy(random, attends_on_host));
#ifdef SLUICE_CUDA_ON_HOST
  cuda::host::set_capability(7, 5);
  expect_logits_of_the_cpu(made, greedy_requests(prompts, 6), kAllowed);
  cuda::host::set_capability(9, 0);
#endif
}

// llama4-tiny without experts, so that decode passes are graphs, and with random weights: chunks of
// one position, less than a page, and many of a prompt.
std::string chunked_model(const TemporaryFolder& folder, int chunk) {
  auto config = nlohmann::json::parse(whole_file(fixture_model("llama4-tiny") + "/config.json"));
  config["attention_chunk_size"] = chunk;
  config["moe_layers"] = nlohmann::json::array();
  const std::string text = config.dump();
  const std::string made = folder.file("llama4-" + std::to_string(chunk));
  app::SyntheticOptions drawn;
  drawn.dtype = DType::kF32;
  app::write_synthetic_model(make_family_model(ModelConfig(text, "config.json"))->shape(), text,
                             made, drawn);
  return made;
}

TEST(CudaEngineChunks, AreTheCpus) {
  const TemporaryFolder folder;
  for (const int chunk : {1, 3, 16, 41}) {
    SCOPED_TRACE(chunk);
    const std::string made = chunked_model(folder, chunk);
    Random random(static_cast<uint32_t>(chunk));
    std::vector<std::vector<int32_t>> prompts{std::vector<int32_t>(90), std::vector<int32_t>(1),
                                              std::vector<int32_t>(40)};
    for (std::vector<int32_t>& prompt : prompts)
      for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 60));
    auto requests = greedy_requests(prompts, 50);
    expect_logits_of_the_cpu(made, requests, 8e-3);
    for (const bool attends_on_host : {false, true})
      expect_logits_of_the_cpu(made, requests, 8e-3, random_policy(random, attends_on_host));
    EngineOptions options = exact_options_for(requests);
    for (GenerationRequest& request : requests) request.params.logprobs = 2;
    auto expected = run_all(made, options, requests);
    options.start_policy.page_tokens = 5;
    options.backend = make_backend();
#ifdef SLUICE_CUDA_ON_HOST
    const int64_t before = cuda::host::graphs_run();
#endif
    auto actual = run_all(made, options, requests);
#ifdef SLUICE_CUDA_ON_HOST
    EXPECT_GT(cuda::host::graphs_run(), before + 20);
#endif
    for (const GenerationRequest& request : requests)
      expect_same_tokens(actual[request.id], expected[request.id], 0.02);
  }
}

TEST_P(CudaEngine, AnyPolicyGivesTheResidentRunsTokens) {
  if (is_left_to_release(GetParam(), "policy")) GTEST_SKIP() << "tried without sanitizers";
  // Then as many of policies with several classes of passes.
  const uint32_t last_of_one_class = rounds(is_of(":") ? 2u : 3u);
  for (uint32_t seed = 1; seed <= 2 * last_of_one_class; ++seed) {
    Random random(seed + 40);
    auto requests = greedy_requests(random_prompts(random, pick(random, 1, 8), vocab()), 8);
    for (GenerationRequest& request : requests) {
      request.params.max_tokens = static_cast<int>(pick(random, 1, 8));
      request.params.logprobs = 2;
    }
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    const KvFormat formats[] = {DType::kF16, KvFormat(KvEncoding::kInt8),
                                KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values};
    // A code of KV that falls the other way is a step; of int4 a large one.
    constexpr double kSteps[] = {1, 8, 50, 50};
    options.kv_dtype = kv_of(GetParam(), formats[seed % 4]);
    options.backend = make_backend();
    draw_order(0);
    auto expected = run_all(GetParam(), options, requests);
    options.policy = random_policy(random, seed % 2 == 0);
    if (seed > last_of_one_class) add_random_classes(random, *options.policy);
    options.backend = make_backend();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(*options.policy));
    draw_order(seed);
    auto actual = run_all(GetParam(), options, requests);
    draw_order(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i));
      expect_same_tokens(actual[i], expected[i], tie() * kSteps[seed % 4]);
      EXPECT_EQ(actual[i].finish, FinishReason::kLength);
    }
  }
#ifdef SLUICE_CUDA_ON_HOST
  EXPECT_EQ(cuda::host::device_bytes_in_use(), 0);
#endif
}

class CudaSampled : public CudaEngine {};

// What a request asks for beside its prompt: a share of everything that sampling knows.
sampling::SamplingParams random_params(Random& random, int64_t vocab) {
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
  };
  sampling::SamplingParams params;
  params.max_tokens = static_cast<int>(pick(random, 1, 8));
  params.temperature = uniform(0.3, 1.5);
  params.seed = random();
  params.logprobs = static_cast<int>(pick(random, -1, 3));
  if (pick(random, 0, 1) == 0) params.top_k = static_cast<int>(pick(random, 1, 60));
  if (pick(random, 0, 1) == 0) params.top_p = uniform(0.5, 1);
  if (pick(random, 0, 1) == 0) params.repetition_penalty = uniform(1, 1.5);
  if (pick(random, 0, 1) == 0) params.frequency_penalty = uniform(0, 1);
  if (pick(random, 0, 1) == 0) params.min_tokens = params.max_tokens;
  for (int i = 0; i < 3; ++i)
    params.logit_bias.emplace_back(static_cast<int32_t>(i * vocab / 3), uniform(-2, 2));
  return params;
}

// The tokens are those that the host's sampler chooses from the logits that scoring the whole text
// afterwards gives: within what random numbers near a boundary, and filters near theirs, make of
// their last bits.
TEST_P(CudaSampled, TokensAreChosenAsTheHostWould) {
  Random random(31);
  auto requests = greedy_requests(random_prompts(random, 10, vocab()), 8);
  for (GenerationRequest& request : requests) request.params = random_params(random, vocab());
  EngineOptions options = exact_options_for(requests);
  options.backend = make_backend();
  draw_order(3);
  auto answers = run_all(GetParam(), options, requests);
  auto scored = requests;
  for (GenerationRequest& request : scored) {
    const auto& tokens = answers[request.id].tokens;
    request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end() - 1);
    request.score_prompt = true;
    request.params = {};
  }
  options = exact_options_for(scored);
  options.backend = make_backend();
  auto rows = run_all(GetParam(), options, scored);
  draw_order(0);
  const std::vector<int32_t> eos = BoundModel::open(fixture_model(GetParam())).eos_token_ids();
  const auto width = static_cast<size_t>(vocab());
  int checked = 0;
  for (const GenerationRequest& request : requests) {
    const Answer& answer = answers[request.id];
    ASSERT_EQ(answer.refused, "");
    ASSERT_FALSE(answer.tokens.empty());
    for (size_t i = 0; i < answer.tokens.size(); ++i, ++checked) {
      SCOPED_TRACE("sequence " + std::to_string(request.id) + ", token " + std::to_string(i));
      const std::span<const float> logits(
          rows[request.id].logits.data() + (request.prompt.size() + i - 1) * width, width);
      const std::span<const int32_t> output(answer.tokens.data(), i);
      const auto kept =
          sampling::distribution(logits, request.params, {request.prompt, output, {}}, eos);
      const double u = sampling::uniform(request.params.seed, i);
      double below = 0;
      const auto token = static_cast<size_t>(answer.tokens[i]);
      for (size_t other = 0; other < token; ++other) below += kept[other];
      EXPECT_LE(below, u + tie());
      EXPECT_GE(below + kept[token], u - tie());
      const sampling::Choice& choice = answer.choices[i];
      if (request.params.logprobs < 0) {
        EXPECT_TRUE(std::isnan(choice.logprob));
        continue;
      }
      const auto expected = sampling::score_token(logits, choice.token, request.params.logprobs);
      EXPECT_NEAR(choice.logprob, expected.logprob, tie());
      ASSERT_EQ(choice.top.size(), expected.top.size());
      for (size_t j = 0; j < expected.top.size(); ++j)
        EXPECT_NEAR(choice.top[j].logprob, expected.top[j].logprob, tie());
    }
  }
  EXPECT_GT(checked, 30);
}

// Of the rows of one part, some want their logits (beams), one is left without a token, the others
// are chosen on the device.
TEST_P(CudaSampled, RowsThatTheHostWantsComeToIt) {
  Random random(37);
  auto requests = greedy_requests(random_prompts(random, 6, vocab()), 6);
  requests[1].params.num_beams = 3;
  requests[3].params.logit_bias = {{static_cast<int32_t>(vocab()), 1.0F}};
  for (const size_t i : {0, 2, 4, 5}) requests[i].params.logprobs = 2;
  EngineOptions options = exact_options_for(requests);
  auto expected = run_all(GetParam(), options, requests);
  options.backend = make_backend();
  auto actual = run_all(GetParam(), options, requests);
  EXPECT_NE(actual[3].refused.find("logit_bias names token"), std::string::npos)
      << actual[3].refused;
  EXPECT_EQ(actual[3].refused, expected[3].refused);
  ASSERT_EQ(actual[1].hypotheses.size(), expected[1].hypotheses.size());
  EXPECT_NEAR(actual[1].hypotheses[0].score, expected[1].hypotheses[0].score, tie());
  for (const size_t i : {0, 2, 4, 5}) expect_same_tokens(actual[i], expected[i], tie());
}

// Filters that the device has not, and Mirostat, which learns from token to token, are the host's
// row by row; DRY is a change of logits that the device makes. Beside rows that are chosen there.
TEST_P(CudaSampled, SamplersThatOnlyTheHostHasChooseThere) {
  Random random(41);
  auto requests = greedy_requests(random_prompts(random, 8, vocab()), 16);
  for (GenerationRequest& request : requests) {
    sampling::SamplingParams& params = request.params;
    params.logprobs = 2;
    params.temperature = 1.2F;
    params.seed = request.id + 1;
    params.dry_sequence_breakers.clear();
    switch (request.id) {
      case 0: params.typical_p = 0.4F; break;
      case 1: params.top_n_sigma = 1; break;
      case 2: params.xtc_probability = params.xtc_threshold = 0.3F; break;
      case 3:
        params.mirostat = 1;
        params.mirostat_tau = 2;
        params.mirostat_eta = 0.5F;
        break;
      case 4:
        params.mirostat = 2;
        params.mirostat_tau = 2;
        params.mirostat_eta = 0.5F;
        break;
      case 5:
        params.dry_multiplier = 30;
        params.dry_allowed_length = 1;
        break;
      case 6:
        params.temperature = 0;
        params.dry_multiplier = 30;
        params.mirostat = 2;
        break;
      default: break;
    }
  }
  EngineOptions options = exact_options_for(requests);
  options.backend = make_backend();
  auto answers = run_all(GetParam(), options, requests);
  auto scored = requests;
  for (GenerationRequest& request : scored) {
    const auto& tokens = answers[request.id].tokens;
    ASSERT_FALSE(tokens.empty()) << answers[request.id].refused;
    request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end() - 1);
    request.score_prompt = true;
    request.params = {};
  }
  options = exact_options_for(scored);
  options.backend = make_backend();
  auto rows = run_all(GetParam(), options, scored);
  const auto width = static_cast<size_t>(vocab());
  int misfits = 0, tokens = 0;  // a token at a filter's bound may be on its other side
  for (const GenerationRequest& request : requests) {
    const Answer& answer = answers[request.id];
    double drift = 0;
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(request.id) + ", token " + std::to_string(i));
      const std::span<const float> logits(
          rows[request.id].logits.data() + (request.prompt.size() + i - 1) * width, width);
      const std::span<const int32_t> output(answer.tokens.data(), i);
      const auto token = static_cast<size_t>(answer.tokens[i]);
      const auto kept =
          sampling::distribution(logits, request.params, {request.prompt, output, {}, drift});
      const double u =
          request.params.temperature == 0 ? 0.5 : sampling::uniform(request.params.seed, i);
      double below = 0;
      for (size_t other = 0; other < token; ++other) below += kept[other];
      misfits += below > u + tie() || below + kept[token] < u - tie() ? 1 : 0;
      ++tokens;
      sampling::SamplingParams all = request.params;
      all.mirostat = 0;
      const auto free = sampling::distribution(logits, all, {request.prompt, output});
      drift -= all.mirostat_eta * (-std::log2(free[token]) - all.mirostat_tau);
    }
  }
  EXPECT_GT(tokens, 60);
  EXPECT_LE(misfits, tokens / 30);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaSampled, ::testing::Values("stories260k", "opt-tiny:int8"),
                         [](const auto& info) { return test_name(info.param); });

class CudaGraphs : public CudaEngine {
 protected:
  // Sequences that start and end at different times, so that passes have different numbers of rows;
  // contexts that come to be split.
  std::vector<GenerationRequest> requests() {
    Random random(43);
    auto out = greedy_requests(random_prompts(random, rounds(7), vocab()), 24);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].params.max_tokens = static_cast<int>(6 + 3 * i);
      out[i].params.logprobs = 1;
      if (i % 2 == 1) out[i].params.temperature = 0.7F;
      out[i].params.seed = i;
    }
    return out;
  }
  std::map<uint64_t, Answer> run(bool uses_graphs) {
    const auto all = requests();
    EngineOptions options = exact_options_for(all);
    options.backend = std::make_shared<CudaBackend>(0, int64_t{256} << 20, uses_graphs);
    options.start_policy.page_tokens = 5;
    return run_all(GetParam(), options, all);
  }
  static void expect_equal(const std::map<uint64_t, Answer>& actual,
                           const std::map<uint64_t, Answer>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [id, answer] : expected) {
      EXPECT_FALSE(answer.tokens.empty());
      EXPECT_EQ(actual.at(id).tokens, answer.tokens) << "sequence " << id;
      for (size_t i = 0; i < answer.choices.size(); ++i) {
        EXPECT_EQ(actual.at(id).choices[i].logprob, answer.choices[i].logprob);
        EXPECT_EQ(actual.at(id).choices[i].top, answer.choices[i].top);
      }
    }
  }
};

// The same kernels with the same sizes: the same bits.
TEST_P(CudaGraphs, APassLaunchedAsAWholeGivesTheSame) {
#ifdef SLUICE_CUDA_ON_HOST
  const int64_t at_first = cuda::host::graphs_run();
#endif
  const auto expected = run(false);
#ifdef SLUICE_CUDA_ON_HOST
  const int64_t before = cuda::host::graphs_run();
  EXPECT_EQ(before, at_first);
#endif
  draw_order(7);
  expect_equal(run(true), expected);
  draw_order(0);
#ifdef SLUICE_CUDA_ON_HOST
  EXPECT_GT(cuda::host::graphs_run(), before + 4);
#endif
}

#ifdef SLUICE_CUDA_ON_HOST
TEST_P(CudaGraphs, ADriverThatMakesNoneRunsPassesAsTheyAre) {
  const auto expected = run(false);
  const int64_t before = cuda::host::graphs_run();
  cuda::host::refuse_graphs(true);
  const auto actual = run(true);
  cuda::host::refuse_graphs(false);
  expect_equal(actual, expected);
  EXPECT_EQ(cuda::host::graphs_run(), before);
}
#endif

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaGraphs,
                         ::testing::Values("stories260k", "opt-tiny", "opt-350m-tiny",
                                           "llama-tiny-gqa:nf4", "opt-tiny:int8+a8", "mistral-tiny",
                                           "qwen3-windows"),
                         [](const auto& info) { return test_name(info.param); });

class CudaPages : public CudaEngine {};

// Few pages: beams copy shared ones, sequences give theirs up, which go to host memory and come
// back.
TEST_P(CudaPages, AreCopiedBetweenPasses) {
  Random random(23);
  auto prompts = random_prompts(random, 8, vocab());
  for (size_t i = 4; i < prompts.size(); ++i) prompts[i] = prompts[i - 4];
  auto requests = greedy_requests(prompts, 12);
  for (GenerationRequest& request : requests) request.params.logprobs = 2;
  requests[2].params.num_beams = requests[6].params.num_beams = 3;
  EngineOptions options = exact_options_for(requests);
  options.backend = make_backend();
  draw_order(0);
  auto expected = run_all(GetParam(), options, requests);
  for (const bool attends_on_host : {false, true}) {
    SCOPED_TRACE(attends_on_host ? "attention on the host" : "attention on the device");
    options.policy = policy::Policy{};
    options.policy->kv = {0.5, 0.25, 0.25};
    options.policy->micro_batch_sequences = 4;
    options.policy->page_tokens = 5;
    options.policy->attention =
        attends_on_host ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
    options.predict_lengths = options.cache_prefixes = options.swaps_always = true;
    options.swap_bytes = 1 << 20;
    options.workload.sequences = options.workload.beams;
    options.workload.total_tokens = 0;
    options.backend = make_backend();
    draw_order(9);
    const auto engine = Engine::open(fixture_model(GetParam()), options);
    ListSource source(requests);
    CollectingSink sink;
    engine->generate(source, sink);
    draw_order(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i));
      ASSERT_EQ(sink.answers[i].refused, "");
      if (requests[i].params.num_beams == 1) {
        expect_same_tokens(sink.answers[i], expected[i], tie());
        continue;
      }
      ASSERT_EQ(sink.answers[i].hypotheses.size(), expected[i].hypotheses.size());
      EXPECT_NEAR(sink.answers[i].hypotheses[0].score, expected[i].hypotheses[0].score, tie());
    }
    EXPECT_GT(engine->stats().copied_pages, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaPages,
                         ::testing::Values("stories260k", "llama-tiny-gqa", "mistral-tiny",
                                           "qwen3-windows", "qwen3-5-tiny", "mamba2-tiny",
                                           "minicpm3-tiny", "gemma4-tiny", "gpt-oss-tiny",
                                           "llama4-tiny"),
                         [](const auto& info) { return test_name(info.param); });

INSTANTIATE_TEST_SUITE_P(
    Fixtures, CudaEngine,
    ::testing::Values("stories260k", "opt-tiny", "opt-350m-tiny", "llama-tiny-gqa",
                      "opt-tiny-f16-bin-decoder", "llama-tiny-bf16", "stories260k:int4",
                      "llama-tiny-gqa:nf4", "opt-tiny:int8", "llama-tiny-bias:fp8",
                      "stories260k:int4-g32+a8", "llama-tiny-gqa:q4_0", "llama-tiny-gqa:q4_0+a8",
                      "opt-tiny:iq4", "opt-tiny:int8+a8", "llama-tiny-gqa:fp8+f8", "qwen2-tiny",
                      "qwen3-tiny", "qwen3-tiny:int8+a8", "mistral-tiny", "qwen3-windows",
                      "gemma2-odd", "gemma3-tiny", "cohere2-odd", "falcon-odd", "bloom-odd",
                      "ministral3-odd", "gptj-odd", "granite-tiny", "nemotron-tiny",
                      // Inputs in bf16 move the logits of the small odd model by a tenth,
                      // transformers' too.
                      "qwen3-5-tiny", "qwen3-5-odd:f32", "mamba2-tiny", "mamba2-odd:f32",
                      "granitemoehybrid-moe-odd:f32", "youtu-tiny", "youtu-odd:f32",
                      "minicpm3-tiny:int8", "deepseek-v2-tiny", "deepseek-v3-tiny", "gemma4-tiny",
                      "gemma4-odd:f32", "gemma4-k-eq-v:int8", "mixtral-tiny", "qwen2-moe-tiny:int4",
                      "deepseek-v3-moe-tiny:int8", "qwen3-5-moe-tiny", "qwen3-5-moe-odd:f32",
                      "qwen3-next-tiny", "glm4-moe-lite-tiny", "gpt-oss-tiny", "gpt-oss-tiny:int4",
                      "gpt-oss-tiny:mxfp4", "llama4-tiny", "llama4-odd:f32", "llama4-tiny:int8",
                      "stories260k:k-mixed", "stories260k:k-mixed+a8", "llama-tiny-bias:q3_k",
                      "mixtral-tiny:k-mixed", "stories260k:types", "mixtral-tiny:types"),
    [](const auto& info) { return test_name(info.param); });

std::string refusal(EngineOptions options, const std::string& model = "stories260k") {
  options.backend = make_backend();
  try {
    Engine::open(fixture_model(model), std::move(options));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.what();
  }
  return "";
}

TEST(CudaEngineErrors, WhatItDoesNotKnowIsRefusedByName) {
  EngineOptions options;
  options.memory_budget_bytes = 64 * kMiB;
  options.kv_dtype = DType::kF32;
  EXPECT_NE(refusal(options).find("f32 KV"), std::string::npos);
  options.kv_dtype = DType::kF16;
  options.attention_sparsity = 0.5f;
  EXPECT_NE(refusal(options).find("sparse attention"), std::string::npos);
  options.attention_sparsity = 1;
  options.activations = kernels::ActivationFormat::kInt8;
  EXPECT_NE(refusal(options).find("`activations` int8 with f32 weights"), std::string::npos);
  options.activations = kernels::ActivationFormat::kFp8;
  EXPECT_NE(refusal(options).find("`activations` fp8 with f32 weights"), std::string::npos);
  EXPECT_NE(refusal(options, "stories260k:int8").find("`activations` fp8 with int8 weights"),
            std::string::npos);
  options.activations = kernels::ActivationFormat::kInt8;
  EXPECT_NE(refusal(options, "stories260k:fp8").find("`activations` int8 with fp8 weights"),
            std::string::npos);
  options.outlier_threshold = 6;
  EXPECT_NE(refusal(options, "stories260k:int8").find("`outlier_threshold`"), std::string::npos);
  options.outlier_threshold = 0;
  options.activations = kernels::ActivationFormat::k16Bit;
  EXPECT_EQ(refusal(options), "");
  options.batch_invariant = true;
  EXPECT_NE(refusal(options).find("`batch_invariant` needs the CPU"), std::string::npos);
}

TEST(CudaEngineErrors, AGpuThatIsNotThereIsNamed) {
  try {
    CudaBackend(99, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(error.what()).find("no GPU 99"), std::string::npos);
  }
}

TEST(CudaEngineErrors, MoreMemoryThanTheGpuHasIsRefused) {
  try {
    CudaBackend(0, int64_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
}

}  // namespace
}  // namespace sluice::testing
