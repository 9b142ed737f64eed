// Adapters chosen per request on the CUDA backend: PEFT's own answers, the CPU's tokens under any
// policy, graphs of passes whose rows have other adapters than those that were recorded, adapters
// that come and go while passes run.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/engine/adapter_fixtures.h"
#include "tests/engine/cuda/cuda_testing.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

// The same KV on both sides.
EngineOptions gpu_options(const std::vector<Asked>& asked) {
  EngineOptions options = exact_options(asked);
  options.kv_dtype = DType::kF16;
  return options;
}

class CudaPeft : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaPeft, LogitsAreThoseOfPeftWhereverWeightsLie) {
  const PeftGolden golden = peft_golden(GetParam());
  const std::vector<Asked> asked = with_and_without(golden);
  const std::vector<LoraAdapter> adapters{LoraAdapter::open(lora_folder(GetParam()))};
  for (const double device : {-1.0, 0.4, 0.0}) {
    SCOPED_TRACE(device);
    EngineOptions options = gpu_options(asked);
    options.backend = make_backend();
    if (device >= 0) options.policy = on_all_tiers(device);
    draw_order(11);
    auto answers = run_adapted(golden.base, options, adapters, asked);
    draw_order(0);
    // Attention has 16-bit inputs, which PEFT has not.
    const double error = golden_error(answers[0], golden.logits);
    EXPECT_LE(error, 4e-3);
    EXPECT_GT(golden_error(answers[1], golden.logits), std::max(1e-3, 3 * error))
        << "without it it is another answer";
  }
}
INSTANTIATE_TEST_SUITE_P(Fixtures, CudaPeft,
                         ::testing::Values("plain", "patterns", "dora", "fused", "tables", "layers",
                                           "head", "linear", "mixture", "weighed", "half",
                                           "stories-a"),
                         [](const auto& info) { return test_name(info.param); });

class CudaAdapters : public ::testing::TestWithParam<std::string> {
 protected:
  static std::vector<LoraAdapter> adapters(int count) {
    std::vector<LoraAdapter> out;
    for (int i = 0; i < count; ++i)
      out.push_back(random_adapter(GetParam(), 10 + static_cast<uint32_t>(i)));
    return out;
  }
  static std::vector<Asked> requests(Random& random, int adapters, int64_t count) {
    const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
    auto asked = mixed_requests(random, vocab, adapters, count);
    for (Asked& one : asked) one.request.params.logprobs = 2;
    return asked;
  }
};

TEST_P(CudaAdapters, GiveTheCpusTokensUnderAnyPolicy) {
  const int count = 4;
  const bool is_bf16 = BoundModel::open(fixture_model(GetParam())).shape().weights_name() == "bf16";
  for (uint32_t seed = 1; seed <= rounds(4u); ++seed) {
    Random random(seed + 60);
    const auto asked = requests(random, count, pick(random, 1, 12));
    EngineOptions options = gpu_options(asked);
    auto expected = run_adapted(GetParam(), options, adapters(count), asked);
    if (seed > 1) options.policy = random_policy(random, seed % 2 == 0);
    options.cache_prefixes = seed % 2 == 0;
    options.backend = make_backend();
    draw_order(seed);
    auto actual = run_adapted(GetParam(), options, adapters(count), asked);
    draw_order(0);
    for (const Asked& one : asked) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", request " + std::to_string(one.request.id) +
                   " with adapter " + std::to_string(one.adapter));
      expect_same_tokens(actual[one.request.id], expected[one.request.id], is_bf16 ? 0.1 : 0.03);
      EXPECT_EQ(actual[one.request.id].finish, FinishReason::kLength)
          << actual[one.request.id].refused;
    }
  }
#ifdef SLUICE_CUDA_ON_HOST
  EXPECT_EQ(cuda::host::device_bytes_in_use(), 0);
#endif
}
INSTANTIATE_TEST_SUITE_P(Models, CudaAdapters,
                         ::testing::Values("llama-tiny-gqa", "gemma2-tiny", "qwen3-5-tiny",
                                           "mamba2-tiny", "deepseek-v2-tiny", "opt-350m-tiny",
                                           "mixtral-tiny", "qwen2-tiny:int4-g32"),
                         [](const auto& info) { return test_name(info.param); });

// One engine, asked again and again.
class Adapted {
 public:
  Adapted(const std::vector<LoraAdapter>& adapters, const std::vector<Asked>& asked,
          bool uses_graphs, AdapterRoom more = {}) {
    EngineOptions options = with_room(kModel, adapters, gpu_options(asked));
    options.adapters.bytes += more.bytes;
    options.backend = std::make_shared<CudaBackend>(0, int64_t{256} << 20, uses_graphs);
    engine_ = Engine::open(fixture_model(kModel), options);
    for (size_t i = 0; i < adapters.size(); ++i)
      loaded_.push_back(engine_->adapters().load("adapter-" + std::to_string(i), adapters[i]));
  }
  std::map<uint64_t, Answer> run(const std::vector<Asked>& asked) {
    return run_asked(*engine_, loaded_, asked);
  }
  AdapterBank& bank() { return engine_->adapters(); }

  static constexpr const char* kModel = "llama-tiny-gqa";

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<AdapterPtr> loaded_;
};

// Of the same prompts, `shift` adapters further.
std::vector<Asked> long_answers(int count, int adapters, int shift) {
  std::vector<Asked> asked;
  for (int i = 0; i < count; ++i) {
    Asked& one = asked.emplace_back();
    one.request = greedy_requests({{5 + i, 6, 7, 8 + i}}, 8 + 3 * i).front();
    one.request.id = static_cast<uint64_t>(i);
    one.request.params.logprobs = 1;
    one.adapter = (i + shift) % (adapters + 1) - 1;
  }
  return asked;
}

void expect_same_bits(const std::map<uint64_t, Answer>& actual,
                      const std::map<uint64_t, Answer>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [id, answer] : expected) {
    EXPECT_FALSE(answer.tokens.empty()) << answer.refused;
    EXPECT_EQ(actual.at(id).tokens, answer.tokens) << "sequence " << id;
    for (size_t i = 0; i < answer.choices.size(); ++i)
      EXPECT_EQ(actual.at(id).choices[i].logprob, answer.choices[i].logprob) << "sequence " << id;
  }
}

// Two adapters that change most, one that changes attention alone; a graph that was recorded with
// some is launched with others, and none with those that change more.
TEST(CudaAdapterGraphs, GiveTheSameWhicheverAdaptersRowsHave) {
  std::vector<LoraAdapter> adapters{random_adapter(Adapted::kModel, 3),
                                    random_adapter(Adapted::kModel, 3),
                                    random_adapter(Adapted::kModel, 5)};
  for (auto& [name, matrix] : adapters[1].matrices)
    for (float& value : matrix.b) value = -value;
  std::erase_if(adapters[2].matrices,
                [](const auto& one) { return one.first.find("self_attn") == std::string::npos; });
  ASSERT_FALSE(adapters[2].matrices.empty());
  const std::vector<Asked> most = long_answers(4, 3, 0);
  Adapted plain(adapters, most, false), graphs(adapters, most, true);
  std::vector<std::map<uint64_t, Answer>> all;
  for (const int shift : {0, 3, 1, 0}) {
    SCOPED_TRACE(shift);
    const std::vector<Asked> asked = long_answers(4, 3, shift);
    const auto expected = plain.run(asked);
#ifdef SLUICE_CUDA_ON_HOST
    const int64_t before = cuda::host::graphs_run();
#endif
    draw_order(static_cast<uint32_t>(shift) + 1);
    expect_same_bits(graphs.run(asked), expected);
    draw_order(0);
#ifdef SLUICE_CUDA_ON_HOST
    EXPECT_GT(cuda::host::graphs_run(), before + 2);
#endif
    all.push_back(expected);
  }
  EXPECT_NE(all[0][3].tokens, all[1][3].tokens) << "adapters make a difference";
}

// More rows of logits than are computed at a time, of several adapters, all of which change the
// head.
TEST(CudaAdapterLogits, PartsHaveTheirRowsAdapters) {
  const std::string model = "qwen2-tiny";
  std::vector<LoraAdapter> adapters;
  for (uint32_t seed = 1; seed < 20 && adapters.size() < 2; ++seed) {
    LoraAdapter made = random_adapter(model, seed);
    if (made.matrices.contains("lm_head.weight")) adapters.push_back(std::move(made));
  }
  ASSERT_EQ(adapters.size(), 2u);
  Random random(5);
  std::vector<Asked> asked;
  for (int i = 0; i < 4; ++i) {
    Asked& one = asked.emplace_back();
    std::vector<int32_t> prompt(45);
    for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 90));
    one.request = greedy_requests({prompt}, 1).front();
    one.request.id = static_cast<uint64_t>(i);
    one.request.score_prompt = true;
    one.adapter = i % 3 - 1;
  }
  EngineOptions options = gpu_options(asked);
  auto expected = run_adapted(model, options, adapters, asked);
  options.backend = make_backend();
  auto actual = run_adapted(model, options, adapters, asked);
  for (const Asked& one : asked) {
    const std::vector<float>& wanted = expected[one.request.id].logits;
    ASSERT_EQ(actual[one.request.id].logits.size(), wanted.size());
    double worst = 0, largest = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      worst = std::max(worst, std::abs(double{actual[one.request.id].logits[i]} - wanted[i]));
      largest = std::max(largest, std::abs(double{wanted[i]}));
    }
    EXPECT_LE(worst / largest, 6e-3) << one.request.id;
  }
}

// Adapters that come and go meanwhile: into memory that others have had, from another thread.
TEST(CudaAdapterBank, LoadsAndUnloadsWhilePassesRun) {
  const std::vector<LoraAdapter> adapters{random_adapter(Adapted::kModel, 3),
                                          random_adapter(Adapted::kModel, 4)};
  const std::vector<Asked> asked = long_answers(4, 2, 1);
  const BoundModel model = BoundModel::open(fixture_model(Adapted::kModel));
  const LoraAdapter guests[] = {random_adapter(Adapted::kModel, 6),
                                random_adapter(Adapted::kModel, 7)};
  const AdapterRoom more{
      std::max(adapter_need(model, guests[0]).bytes, adapter_need(model, guests[1]).bytes), 0};
  Adapted served(adapters, asked, true, more);
  const auto expected = served.run(asked);
  const int64_t free = served.bank().free_bytes();
  EXPECT_EQ(free, more.bytes);
  std::atomic<int> turns = 0;
  {
    const std::jthread loader([&](std::stop_token stop) {
      for (int i = 0; !stop.stop_requested(); ++i, ++turns) {
        EXPECT_TRUE(served.bank().load("guest", guests[i % 2]));
        EXPECT_TRUE(served.bank().unload("guest"));
      }
    });
    for (int round = 0; round < 2 || turns < 3; ++round)
      expect_same_bits(served.run(asked), expected);
  }
  EXPECT_EQ(served.bank().free_bytes(), free);
}

// What does not fit the GPU is an error before a weight is read.
TEST(CudaAdapterBank, RoomIsTheGpusMemory) {
  const std::vector<LoraAdapter> adapters{LoraAdapter::open(lora_folder("plain"))};
  EngineOptions options = with_room(Adapted::kModel, adapters, gpu_options({{{.prompt = {5}}, 0}}));
  const auto device_bytes = [&](int64_t adapter_bytes) {
    options.adapters.bytes = adapter_bytes;
    options.backend = make_backend();
    const auto engine = Engine::open(fixture_model(Adapted::kModel), options);
    return options.backend->device().memory().used();
  };
  EXPECT_GE(device_bytes(64 * kMiB) - device_bytes(kMiB), 63 * kMiB);
  try {
    device_bytes(256 * kMiB);
    ADD_FAILURE() << "more than there is was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource) << error.what();
  }
}

}  // namespace
}  // namespace sluice::testing
