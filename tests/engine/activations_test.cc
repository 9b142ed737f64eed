// Every activation that transformers names (its activations.py, ACT2FN of 5.x) in MLPs that gate
// and in one that does not: computed as transformers does, or refused by name when the model is
// opened.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/engine/model_fixtures.h"
#include "tests/model/changed_model.h"

namespace sluice::testing {
namespace {

struct Golden {
  const char* activation;
  const char* model;
  std::array<float, 6> logits;  ///< the first, behind the last token of kGoldenPrompt
};
const std::vector<int32_t> kGoldenPrompt = {3, 17, 5, 40, 8, 22, 51, 9};
// clang-format off
const Golden kGoldens[] = {  // scripts/golden/activations.py, transformers 5.24.0
    {"gelu", "llama-tiny-yarn", {-0.59111f, -3.73956f, 0.00136f, 0.63951f, -1.12508f, -1.64869f}},
    {"gelu", "gpt-neox-tiny", {-2.19742f, -2.38979f, 0.34207f, 0.93048f, -0.16074f, 4.07239f}},
    {"gelu_accurate", "llama-tiny-yarn", {-0.59130f, -3.73981f, 0.00164f, 0.63848f, -1.12470f, -1.64929f}},
    {"gelu_accurate", "gpt-neox-tiny", {-2.19746f, -2.38968f, 0.34225f, 0.93034f, -0.16055f, 4.07243f}},
    {"gelu_fast", "llama-tiny-yarn", {-0.59130f, -3.73981f, 0.00164f, 0.63848f, -1.12470f, -1.64929f}},
    {"gelu_fast", "gpt-neox-tiny", {-2.19746f, -2.38968f, 0.34225f, 0.93034f, -0.16055f, 4.07243f}},
    {"gelu_new", "llama-tiny-yarn", {-0.59130f, -3.73981f, 0.00164f, 0.63848f, -1.12470f, -1.64929f}},
    {"gelu_new", "gpt-neox-tiny", {-2.19746f, -2.38968f, 0.34225f, 0.93034f, -0.16055f, 4.07243f}},
    {"gelu_python", "llama-tiny-yarn", {-0.59111f, -3.73956f, 0.00136f, 0.63951f, -1.12508f, -1.64869f}},
    {"gelu_python", "gpt-neox-tiny", {-2.19742f, -2.38979f, 0.34207f, 0.93048f, -0.16074f, 4.07239f}},
    {"gelu_python_tanh", "llama-tiny-yarn", {-0.59130f, -3.73981f, 0.00164f, 0.63848f, -1.12470f, -1.64929f}},
    {"gelu_python_tanh", "gpt-neox-tiny", {-2.19746f, -2.38968f, 0.34225f, 0.93034f, -0.16055f, 4.07243f}},
    {"gelu_pytorch_tanh", "llama-tiny-yarn", {-0.59131f, -3.73981f, 0.00164f, 0.63848f, -1.12470f, -1.64929f}},
    {"gelu_pytorch_tanh", "gpt-neox-tiny", {-2.19746f, -2.38968f, 0.34225f, 0.93034f, -0.16055f, 4.07243f}},
    {"relu", "llama-tiny-yarn", {-0.31444f, -3.77826f, 0.01538f, 0.98735f, -1.43487f, -1.40468f}},
    {"relu", "gpt-neox-tiny", {-2.20671f, -2.37773f, 0.29398f, 1.11970f, -0.30891f, 3.97647f}},
    {"relu2", "llama-tiny-yarn", {-0.88790f, -3.34775f, 0.42612f, -1.65096f, 0.69393f, -3.25612f}},
    {"relu2", "gpt-neox-tiny", {-1.30817f, -0.82512f, 1.62149f, 2.24114f, 1.35230f, 3.31344f}},
    {"sigmoid", "llama-tiny-yarn", {2.24261f, -0.90345f, 0.11125f, -2.45858f, -0.44981f, -0.31728f}},
    {"sigmoid", "gpt-neox-tiny", {-1.95667f, -2.32906f, -0.19810f, 1.20118f, -1.17995f, 2.81678f}},
    {"silu", "llama-tiny-yarn", {-0.70320f, -3.62981f, 0.01532f, 0.57564f, -0.91035f, -1.79160f}},
    {"silu", "gpt-neox-tiny", {-2.15413f, -2.46530f, 0.46870f, 0.59936f, -0.13286f, 4.12678f}},
    {"swish", "llama-tiny-yarn", {-0.70320f, -3.62981f, 0.01532f, 0.57564f, -0.91035f, -1.79160f}},
    {"swish", "gpt-neox-tiny", {-2.15413f, -2.46530f, 0.46870f, 0.59936f, -0.13286f, 4.12678f}},
};
// clang-format on
const char* const kRefused[] = {"gelu_10", "hardswish",    "laplace", "leaky_relu",
                                "linear",  "mish",         "prelu",   "quick_gelu",
                                "relu6",   "sqrtsoftplus", "tanh",    "xielu"};

TEST(Activations, AreThoseOfTransformersGatedOrNot) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(std::string(golden.activation) + " in " + golden.model);
    ChangedModel model(golden.model);
    model.config["hidden_act"] = golden.activation;
    model.save();
    auto requests = greedy_requests({kGoldenPrompt}, 1);
    requests[0].score_prompt = true;
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    const auto engine = Engine::open(model.folder(), options);
    ListSource source(requests);
    CollectingSink sink;
    engine->generate(source, sink);
    const std::vector<float>& logits = sink.answers.at(0).logits;
    const size_t vocab = logits.size() / kGoldenPrompt.size();
    ASSERT_EQ(static_cast<int64_t>(vocab), engine->model().shape().vocab_size);
    for (size_t i = 0; i < golden.logits.size(); ++i)
      EXPECT_NEAR(logits[(kGoldenPrompt.size() - 1) * vocab + i], golden.logits[i], 2e-5) << i;
  }
}

TEST(Activations, OfOtherNamesAreRefusedWhenTheModelIsOpened) {
  for (const char* activation : kRefused) {
    ChangedModel model("llama-tiny-yarn");
    model.config["hidden_act"] = activation;
    expect_words(model.refusal(), {"hidden_act", activation, "is not supported", "relu2"});
  }
}

}  // namespace
}  // namespace sluice::testing
