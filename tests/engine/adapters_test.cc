// Low-rank adapters chosen per request: PEFT's own answers (scripts/golden/lora.py), and whatever
// runs beside them, under any policy, requests get the tokens that they get alone.
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "tests/engine/adapter_fixtures.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

class PeftAdapters : public ::testing::TestWithParam<std::string> {};

TEST_P(PeftAdapters, LogitsAreThoseOfPeftWhereverWeightsLie) {
  const PeftGolden golden = peft_golden(GetParam());
  const std::vector<Asked> asked = with_and_without(golden);
  const std::vector<LoraAdapter> adapters{LoraAdapter::open(lora_folder(GetParam()))};
  for (const double device : {-1.0, 1.0, 0.4, 0.0}) {
    SCOPED_TRACE(device);
    EngineOptions options = exact_options(asked);
    if (device >= 0) {
      options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      options.policy = on_all_tiers(device);
    }
    auto answers = run_adapted(golden.base, options, adapters, asked);
    EXPECT_LE(golden_error(answers[0], golden.logits), 2e-5);
    EXPECT_GT(golden_error(answers[1], golden.logits), 1e-3) << "without it it is another answer";
  }
}
INSTANTIATE_TEST_SUITE_P(Fixtures, PeftAdapters,
                         ::testing::Values("plain", "patterns", "dora", "fused", "tables", "layers",
                                           "head", "linear", "mixture", "weighed", "half",
                                           "stories-a", "stories-b"),
                         [](const auto& info) { return test_name(info.param); });

TEST(Adapters, AddToQuantisedMatricesToo) {
  const PeftGolden golden = peft_golden("patterns");
  const std::vector<Asked> asked{{{.id = 0, .prompt = golden.prompt, .score_prompt = true}, 0},
                                 {{.id = 1, .prompt = golden.prompt, .score_prompt = true}, -1}};
  auto answers = run_adapted(golden.base + ":int8-g32", exact_options(asked),
                             {LoraAdapter::open(lora_folder("patterns"))}, asked);
  EXPECT_LE(golden_error(answers[0], golden.logits), 0.12);
  EXPECT_GT(golden_error(answers[1], golden.logits), 0.3);
}

policy::TierShares any_shares(Random& random) {
  const double a = std::uniform_real_distribution<double>(0, 1)(random);
  const double b = (1 - a) * std::uniform_real_distribution<double>(0, 1)(random);
  return {a, b, 1 - a - b};
}

class MixedAdapters : public ::testing::TestWithParam<std::string> {};

TEST_P(MixedAdapters, RequestsGetTheTokensTheyGetAloneUnderAnyPolicy) {
  const std::string& model = GetParam();
  const int64_t vocab = BoundModel::open(fixture_model(model)).shape().vocab_size;
  std::vector<LoraAdapter> adapters;
  for (uint32_t i = 0; i < 4; ++i) adapters.push_back(random_adapter(model, 10 + i));
  for (uint32_t seed = 1; seed <= rounds(6u); ++seed) {
    Random random(seed);
    const std::vector<Asked> asked = mixed_requests(random, vocab, 4, pick(random, 2, 12));
    std::map<uint64_t, Answer> alone;
    for (const Asked& one : asked)
      alone.merge(run_adapted(model, exact_options({one}), adapters, {one}));
    EngineOptions options = exact_options(asked);
    options.cache_prefixes = seed % 2 == 0;
    options.predict_lengths = seed % 3 == 0;
    if (seed % 3 != 0) options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
    policy::Policy& policy = options.policy.emplace();
    policy.weights = any_shares(random);
    policy.kv = any_shares(random);
    policy.activations = any_shares(random);
    policy.attention =
        seed % 2 == 0 ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
    policy.inplace_host_fraction = seed % 2 == 0 ? policy.weights.host / 2 : 0;
    policy.micro_batch_sequences = pick(random, 1, 5);
    policy.micro_batches = pick(random, 1, 4);
    policy.micro_batch_tokens = pick(random, 5, 40);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(policy));
    auto together = run_adapted(model, options, adapters, asked);
    for (const Asked& one : asked) {
      EXPECT_EQ(together[one.request.id].tokens, alone[one.request.id].tokens)
          << "request " << one.request.id << " with adapter " << one.adapter;
      EXPECT_EQ(alone[one.request.id].tokens.size(), 6u) << alone[one.request.id].refused;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, MixedAdapters,
                         ::testing::Values("llama-tiny-gqa", "gemma2-tiny", "qwen3-5-tiny",
                                           "mamba2-tiny", "deepseek-v2-tiny", "opt-350m-tiny",
                                           "mixtral-odd", "qwen2-tiny:int4-g32"),
                         [](const auto& info) { return test_name(info.param); });

TEST(Adapters, BeamsHaveTheRequestsAdapter) {
  const std::vector<LoraAdapter> adapters{random_adapter("llama-tiny-gqa", 3),
                                          random_adapter("llama-tiny-gqa", 4)};
  std::vector<Asked> asked;
  for (int i = 0; i < 3; ++i) {
    Asked& one = asked.emplace_back();
    one.request = greedy_requests({{5, 6, 7, 8, 9}}, 7).front();
    one.request.id = static_cast<uint64_t>(i);
    one.request.params.num_beams = 3;
    one.adapter = i - 1;
  }
  EngineOptions options = exact_options(asked);
  options.workload.sequences = 9;
  options.workload.total_tokens = 9 * 12;
  options.cache_prefixes = true;
  auto together = run_adapted("llama-tiny-gqa", options, adapters, asked);
  std::vector<std::vector<int32_t>> all;
  for (const Asked& one : asked) {
    auto alone = run_adapted("llama-tiny-gqa", options, adapters, {one});
    const auto& expected = alone[one.request.id].hypotheses;
    const auto& actual = together[one.request.id].hypotheses;
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      std::vector<int32_t> tokens, wanted;
      for (const auto& choice : actual[i].choices) tokens.push_back(choice.token);
      for (const auto& choice : expected[i].choices) wanted.push_back(choice.token);
      EXPECT_EQ(tokens, wanted);
      if (i == 0) all.push_back(tokens);
    }
  }
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(all[1], all[2]);
}

// KV of one adapter, or of none, is never taken for another's, also not of one that had its name.
TEST(Adapters, ShareNoKnownBeginnings) {
  const std::string model = "llama-tiny-gqa";
  const LoraAdapter first = random_adapter(model, 5), second = random_adapter(model, 6);
  GenerationRequest request;
  for (int32_t i = 0; i < 40; ++i) request.prompt.push_back(5 + i % 30);
  request.params.max_tokens = 5;
  const std::vector<Asked> one{{request, 0}};
  EngineOptions options = exact_options(one);
  options.cache_prefixes = true;
  options.start_policy.page_tokens = 4;
  options.workload.sequences = 4;  // room for what each has computed
  options.workload.total_tokens = 4 * 48;
  const auto engine = Engine::open(fixture_model(model), with_room(model, {first}, options));
  const auto run = [&](const AdapterPtr& adapter) {
    GenerationRequest asked = request;
    asked.adapter = adapter;
    ListSource source({asked});
    CollectingSink sink;
    const int64_t before = engine->stats().prefix_hit_tokens;
    engine->generate(source, sink);
    return std::pair(sink.answers[0].tokens, engine->stats().prefix_hit_tokens - before);
  };
  const auto plain = run(nullptr);
  AdapterPtr adapter = engine->adapters().load("a", first);
  const auto with_first = run(adapter);
  EXPECT_EQ(with_first.second, 0);
  EXPECT_EQ(run(adapter), std::pair(with_first.first, int64_t{36}));
  EXPECT_EQ(run(nullptr), std::pair(plain.first, int64_t{36}));
  // Another one by the same name.
  EXPECT_TRUE(engine->adapters().unload("a"));
  EXPECT_EQ(engine->adapters().free_bytes(), 0) << "who has it keeps it";
  adapter = nullptr;
  EXPECT_EQ(engine->adapters().free_bytes(), engine->adapters().room().bytes);
  const auto smaller = [&] {
    LoraAdapter out = second;
    while (adapter_need(engine->model(), out).bytes > engine->adapters().room().bytes)
      out.matrices.erase(out.matrices.begin());
    return out;
  };
  adapter = engine->adapters().load("a", smaller());
  const auto with_second = run(adapter);
  EXPECT_EQ(with_second.second, 0);
  EXPECT_NE(with_second.first, with_first.first);
}

std::string bank_refusal(const std::function<void()>& action, ErrorKind kind) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_FALSE(error.mend().empty()) << error.what();
    return error.text();
  }
  return "nothing was refused";
}

TEST(Adapters, RefuseByNameWhatRequestsCannotChoose) {
  const auto refused = [](const std::string& model, const std::string& adapter) {
    return bank_refusal(
        [&] {
          adapter_places(BoundModel::open(fixture_model(model)),
                         LoraAdapter::open(lora_folder(adapter)));
        },
        ErrorKind::kUser);
  };
  EXPECT_NE(refused("qwen2-tiny", "ends").find("modules_to_save"), std::string::npos);
  EXPECT_NE(refused("llama-tiny-gqa", "patterns").find("the adapter is for ["), std::string::npos);
  EXPECT_NE(refused("gpt2-tiny", "plain").find("no such matrix"), std::string::npos);
  EXPECT_NE(refused("qwen2-tiny:int4-g32", "dora").find("DoRA"), std::string::npos);
  EXPECT_EQ(refused("gpt2-tiny", "linear"), "nothing was refused");
  const auto changed = [](const std::string& model, const std::string& tensor, int64_t rows,
                          int64_t cols) {
    LoraAdapter adapter;
    adapter.matrices[tensor] = {rows, cols, 1, std::vector<float>(static_cast<size_t>(cols)),
                                std::vector<float>(static_cast<size_t>(rows))};
    return bank_refusal([&] { adapter_places(BoundModel::open(fixture_model(model)), adapter); },
                        ErrorKind::kUser);
  };
  EXPECT_NE(changed("mixtral-tiny", "model.layers.0.block_sparse_moe.experts.1.w1.weight", 8, 16)
                .find("experts"),
            std::string::npos);
  const auto latent = BoundModel::open(fixture_model("deepseek-v2-tiny"));
  for (const WeightShape& weight : latent.shape().sublayers[1].weights)
    if (weight.is_by_head) {
      EXPECT_NE(changed("deepseek-v2-tiny", weight.names.front(), weight.rows, weight.cols)
                    .find("head by head"),
                std::string::npos);
    }
  EXPECT_NE(changed("qwen2-tiny", "model.embed_tokens.weight", 101, 32).find("embedding"),
            std::string::npos);
}

TEST(Adapters, RoomIsCountedAndKept) {
  const std::string model = "llama-tiny-gqa";
  const std::vector<LoraAdapter> adapters{LoraAdapter::open(lora_folder("plain"))};
  EngineOptions options = with_room(model, adapters, exact_options({{{.prompt = {5}}, 0}}));
  const auto planned = [&](const EngineOptions& with) {
    return Engine::open(fixture_model(model), with)->plan().memory_bytes();
  };
  EngineOptions without = options;
  without.adapters = {};
  EXPECT_GE(planned(options) - planned(without), options.adapters.bytes);
  // What does not fit is an error that names it.
  EngineOptions huge = options;
  huge.adapters.bytes = int64_t{1} << 40;
  EXPECT_NE(bank_refusal([&] { Engine::open(fixture_model(model), huge); }, ErrorKind::kResource),
            "nothing was refused");
  const auto engine = Engine::open(fixture_model(model), options);
  AdapterBank& bank = engine->adapters();
  EXPECT_TRUE(bank.load("one", adapters[0]));
  EXPECT_NE(bank_refusal([&] { bank.load("one", adapters[0]); }, ErrorKind::kUser).find("one"),
            std::string::npos);
  EXPECT_NE(
      bank_refusal([&] { bank.load("two", adapters[0]); }, ErrorKind::kResource).find("are free"),
      std::string::npos);
  EXPECT_FALSE(bank.unload("two"));
  EXPECT_TRUE(bank.unload("one"));
  EXPECT_FALSE(bank.find("one"));
  EXPECT_TRUE(bank.load("two", adapters[0]));
  EXPECT_EQ(bank.list().size(), 1u);
  EXPECT_EQ(bank.free_bytes(), 0);
  LoraAdapter wide = adapters[0];
  wide.matrices.begin()->second.rank = 9;
  EXPECT_NE(bank_refusal([&] { bank.load("wide", wide); }, ErrorKind::kUser).find("rank 9"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::testing
