#include "policy/policy.h"

#include <gtest/gtest.h>

#include <random>

#include "src/base/error.h"

namespace sluice::policy {
namespace {

std::string refusal(std::string_view json) {
  try {
    parse_policy(json, "my.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser) << error.what();
    return error.what();
  }
  return "accepted";
}

bool same(const TierShares& a, const TierShares& b) {
  return a.device == b.device && a.host == b.host && a.disk == b.disk;
}

TEST(Policy, ComesBackFromItsOwnJson) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto shares = [&] {
      const double device = static_cast<double>(random() % 1000) / 1000;
      const double host = (1 - device) * static_cast<double>(random() % 1000) / 1000;
      return TierShares{device, host, std::max(0.0, 1 - device - host)};
    };
    Policy policy{.weights = shares(), .kv = shares(), .activations = shares()};
    policy.micro_batch_sequences = 1 + random() % 1000;
    policy.micro_batches = 1 + random() % 1000;
    policy.micro_batch_tokens = 1 + random() % 10000;
    policy.pass_tokens = random() % 10000;
    policy.page_tokens = random() % 1000;
    policy.host_attention_tokens = random() % 100;
    int64_t from = 1;
    for (size_t more = random() % kMostPassClasses; more > 0; --more) {
      from += 1 + static_cast<int64_t>(random() % 300);
      policy.larger_passes.push_back(
          {from, policy.weights.host * static_cast<double>(random() % 1000) / 1000,
           random() % 2 ? AttentionPlace::kHost : AttentionPlace::kDevice,
           static_cast<int64_t>(random()) % (policy.micro_batch_tokens + 1)});
    }
    const std::string json = policy_to_json(policy);
    EXPECT_EQ(json.find('\n'), std::string::npos);
    const Policy back = parse_policy(json, "test");
    ASSERT_TRUE(same(back.weights, policy.weights) && same(back.kv, policy.kv) &&
                same(back.activations, policy.activations))
        << json;
    ASSERT_EQ(back.micro_batch_sequences, policy.micro_batch_sequences);
    ASSERT_EQ(back.micro_batches, policy.micro_batches);
    ASSERT_EQ(back.micro_batch_tokens, policy.micro_batch_tokens);
    ASSERT_EQ(back.pass_tokens, policy.pass_tokens);
    ASSERT_EQ(back.page_tokens, policy.page_tokens);
    ASSERT_EQ(back.host_attention_tokens, policy.host_attention_tokens);
    ASSERT_EQ(back.larger_passes, policy.larger_passes) << json;
  }
}

TEST(Policy, AClassOfPassesIsAsTheSmallerOneInWhatItLeavesOut) {
  const Policy policy = parse_policy(R"({"weights": {"host": 1}, "inplace_host_fraction": 0.5,
      "attention": "host", "micro_batch_tokens": 100, "micro_batch_sequences": 4,
      "larger_passes": [{"from_tokens": 9}, {"from_tokens": 20, "inplace_host_fraction": 0.25},
                        {"from_tokens": 300, "attention": "device", "micro_batch_tokens": 64}]})",
                                     "test");
  ASSERT_EQ(policy.pass_classes(), 4u);
  const PassExecution expected[] = {{0, 0.5, AttentionPlace::kHost, 18},
                                    {9, 0.5, AttentionPlace::kHost, 100},
                                    {20, 0.25, AttentionPlace::kHost, 100},
                                    {300, 0.25, AttentionPlace::kDevice, 64}};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(policy.execution(i), expected[i]) << i;
  EXPECT_EQ(policy.most_inplace(), 0.5);
  EXPECT_TRUE(policy.any_attends_on(AttentionPlace::kHost));
  EXPECT_TRUE(policy.any_attends_on(AttentionPlace::kDevice));
  for (const auto& [tokens, expected_class] : {std::pair<int64_t, size_t>{1, 0},
                                               {8, 0},
                                               {9, 1},
                                               {19, 1},
                                               {20, 2},
                                               {299, 2},
                                               {300, 3},
                                               {1 << 20, 3}})
    EXPECT_EQ(policy.pass_class_of(tokens), expected_class) << tokens;
  // One class: all as the fields say, whatever passes have.
  EXPECT_EQ(Policy().execution(0), (PassExecution{0, 0, AttentionPlace::kDevice, 512}));
  EXPECT_EQ(Policy().pass_class_of(1 << 20), 0u);
}

TEST(Policy, RefusesAClassOfPassesByTheNameOfItsField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"larger_passes": {}})", "\"larger_passes\" is not a list"},
      {R"({"larger_passes": [7]})", "\"larger_passes[0]\" is not an object"},
      {R"({"larger_passes": [{}]})", "\"larger_passes[0]\" has no \"from_tokens\""},
      {R"({"larger_passes": [{"from_tokens": 1}]})", "larger_passes[0].from_tokens is 1"},
      {R"({"larger_passes": [{"from_tokens": 2.5}]})",
       "larger_passes[0].from_tokens\" is not a whole"},
      {R"({"larger_passes": [{"from_tokens": 9}, {"from_tokens": 9}]})",
       "larger_passes[1].from_tokens is 9"},
      {R"({"larger_passes": [{"from_tokens": 9, "rows": 2}]})",
       "unknown key \"larger_passes[0].rows\""},
      {R"({"larger_passes": [{"from_tokens": 9, "inplace_host_fraction": 0.1}]})",
       "larger_passes[0].inplace_host_fraction is 0.1"},
      {R"({"larger_passes": [{"from_tokens": 9, "inplace_host_fraction": "x"}]})",
       "larger_passes[0].inplace_host_fraction\" is not a number"},
      {R"({"larger_passes": [{"from_tokens": 9, "attention": "gpu"}]})",
       "larger_passes[0].attention\" is \"gpu\""},
      {R"({"larger_passes": [{"from_tokens": 9, "micro_batch_tokens": 513}]})",
       "larger_passes[0].micro_batch_tokens is 513"},
      {R"({"larger_passes": [{"from_tokens": 2}, {"from_tokens": 3}, {"from_tokens": 4},
           {"from_tokens": 5}, {"from_tokens": 6}, {"from_tokens": 7}, {"from_tokens": 8},
           {"from_tokens": 9}]})",
       "larger_passes has 8 entries"},
      {R"({"host_attention_tokens": -1})", "host_attention_tokens is -1"}};
  for (const auto& [json, words] : cases) {
    const std::string text = refusal(json);
    EXPECT_NE(text.find(words), std::string::npos) << json << " -> " << text;
  }
}

TEST(Policy, LeftOutFieldsKeepTheirDefaults) {
  const Policy policy =
      parse_policy(R"({"weights": {"device": 0.25, "disk": 0.75}, "micro_batches": 3})", "test");
  EXPECT_EQ(policy.weights.device, 0.25);
  EXPECT_EQ(policy.weights.disk, 0.75);
  EXPECT_EQ(policy.kv.device, 1);
  EXPECT_EQ(policy.micro_batches, 3);
  EXPECT_EQ(policy.micro_batch_tokens, Policy().micro_batch_tokens);
  EXPECT_EQ(parse_policy("{}", "test").page_tokens, Policy().page_tokens);
}

TEST(Policy, PagesAreAsLongAsTheKvFormatWantsWherePoliciesNameNoLength) {
  const KvFormat int8(KvEncoding::kInt8), int4(KvEncoding::kInt4);
  Policy policy;
  EXPECT_EQ(page_tokens_of(policy, DType::kBF16, 4096), 16);
  EXPECT_EQ(page_tokens_of(policy, DType::kF32, 1), 16);
  EXPECT_EQ(page_tokens_of(policy, int4, 4096), 64);
  EXPECT_EQ(page_tokens_of(policy, int8, 4096), 64);
  // Not longer than the longest sequence, in whole blocks of keys.
  EXPECT_EQ(page_tokens_of(policy, int4, 40), 48);
  EXPECT_EQ(page_tokens_of(policy, int8, 16), 16);
  EXPECT_EQ(page_tokens_of(policy, int4, 0), 16);
  policy.page_tokens = 7;
  EXPECT_EQ(page_tokens_of(policy, int4, 4096), 7);
  EXPECT_EQ(page_tokens_of(policy, DType::kBF16, 4096), 7);
}

TEST(Policy, RefusesWithTheKeyThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{\"weights\": ", "not a JSON object"},
      {R"({"wieghts": {}})", "unknown key \"wieghts\""},
      {R"({"weights": 0.5})", "\"weights\" is not an object"},
      {R"({"weights": {"gpu": 1}})", "\"weights.gpu\" is not a tier"},
      {R"({"kv": {"disk": "all"}})", "\"kv.disk\" is not a number"},
      {R"({"kv": {"disk": 0.5}})", "KV add up to 0.5"},
      {R"({"weights": {"device": 1.5, "disk": -0.5}})", "share of weights is"},
      {R"({"activations": {}})", "activations add up to 0"},
      {R"({"micro_batches": 0})", "micro_batches is 0"},
      {R"({"micro_batches": 1.5})", "\"micro_batches\" is not a whole number"},
      {R"({"micro_batches": "2"})", "\"micro_batches\" is not a whole number"},
      {R"({"micro_batches": 99999999999999999999})", "\"micro_batches\" is not a whole number"},
      {R"({"micro_batches": 18446744073709551615})", "micro_batches is"},
      {R"({"page_tokens": -1})", "page_tokens is -1"},
      {R"({"pass_tokens": -1})", "pass_tokens is -1"},
      {R"({"micro_batch_sequences": 1048577})", "micro_batch_sequences is 1048577"}};
  for (const auto& [json, words] : cases) {
    const std::string text = refusal(json);
    EXPECT_NE(text.find(words), std::string::npos) << json << " -> " << text;
  }
  EXPECT_NE(refusal("[").find("my.json"), std::string::npos) << "says which file";
}

TEST(Policy, PercentIsFlexGensSixNumbers) {
  Policy policy;
  apply_percent(policy, {20, 30, 0, 100, 100, 0});
  EXPECT_DOUBLE_EQ(policy.weights.device, 0.2);
  EXPECT_DOUBLE_EQ(policy.weights.host, 0.3);
  EXPECT_DOUBLE_EQ(policy.weights.disk, 0.5);
  EXPECT_DOUBLE_EQ(policy.kv.host, 1);
  EXPECT_DOUBLE_EQ(policy.kv.disk, 0);
  EXPECT_DOUBLE_EQ(policy.activations.device, 1);
  const std::array<double, 6> bad[] = {{60, 50, 0, 100, 100, 0},
                                       {-1, 0, 0, 100, 100, 0},
                                       {101, 0, 0, 0, 0, 0},
                                       {0, 0, 0, 0, 0, NAN}};
  for (const auto& percent : bad) {
    Policy refused;
    EXPECT_THROW(apply_percent(refused, percent), Error);
  }
}

TEST(Policy, EveryPairOfWholePercentagesIsAccepted) {
  for (int device = 0; device <= 100; ++device)
    for (int host = 0; device + host <= 100; ++host) {
      Policy policy;
      ASSERT_NO_THROW(apply_percent(policy, {double(device), double(host), 100, 0, 100, 0}))
          << device << ' ' << host;
      ASSERT_EQ(policy.weights.disk == 0, device + host == 100);
    }
}

TEST(Policy, DescribeNamesEveryPartOnce) {
  Policy policy;
  apply_percent(policy, {30, 12, 100, 0, 0, 0});
  policy.micro_batch_sequences = 8;
  policy.micro_batches = 4;
  EXPECT_EQ(describe(policy),
            "weights 42% memory 58% disk; KV 100% memory; activations 0% memory 100% disk; block 8 "
            "sequences x 4 micro-batches");
}

TEST(Policy, NeitherCutNorChangedJsonDoesHarm) {
  const std::string json = policy_to_json({});
  std::mt19937 random(2);
  for (size_t length = 0; length < json.size(); ++length)
    EXPECT_NE(refusal(json.substr(0, length)), "accepted");
  for (int round = 0; round < 5000; ++round) {
    std::string changed = json;
    for (unsigned n = 1 + random() % 3; n > 0; --n)
      changed[random() % changed.size()] = static_cast<char>(random());
    refusal(changed);  // accepted or kUser; anything else fails inside
  }
}

}  // namespace
}  // namespace sluice::policy
