#include "tests/engine/adapter_fixtures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/files.h"

namespace sluice::testing {

std::filesystem::path lora_folder(const std::string& name) {
  return std::filesystem::path(SLUICE_FIXTURES) / "lora" / name;
}

EngineOptions with_room(const std::string& model, const std::vector<LoraAdapter>& adapters,
                        EngineOptions options) {
  options.adapters = adapter_room(BoundModel::open(fixture_model(model)), adapters);
  return options;
}

std::map<uint64_t, Answer> run_asked(Engine& engine, const std::vector<AdapterPtr>& loaded,
                                     const std::vector<Asked>& asked) {
  std::vector<GenerationRequest> requests;
  for (const Asked& one : asked) {
    requests.push_back(one.request);
    if (one.adapter >= 0) requests.back().adapter = loaded[static_cast<size_t>(one.adapter)];
  }
  ListSource source(std::move(requests));
  CollectingSink sink;
  engine.generate(source, sink);
  return std::move(sink.answers);
}

std::map<uint64_t, Answer> run_adapted(const std::string& model, const EngineOptions& options,
                                       const std::vector<LoraAdapter>& adapters,
                                       const std::vector<Asked>& asked) {
  const auto engine = Engine::open(fixture_model(model), with_room(model, adapters, options));
  std::vector<AdapterPtr> loaded;
  for (size_t i = 0; i < adapters.size(); ++i)
    loaded.push_back(engine->adapters().load("adapter-" + std::to_string(i), adapters[i]));
  return run_asked(*engine, loaded, asked);
}

LoraAdapter random_adapter(const std::string& model, uint32_t seed) {
  const BoundModel bound = BoundModel::open(fixture_model(model));
  Random random(seed);
  std::normal_distribution<float> normal(0, 0.2f);
  LoraAdapter out;
  out.name = "random-" + std::to_string(seed);
  for (const SublayerShape& sublayer : bound.shape().sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.kind == WeightKind::kVector || weight.experts > 0 || weight.is_by_head ||
          weight.shares_table || weight.role == "positions" || pick(random, 0, 3) == 0)
        continue;
      LoraMatrix& matrix = out.matrices[weight.names.front()];
      matrix.rows = weight.rows;
      matrix.cols = weight.cols;
      matrix.rank = pick(random, 1, 9);
      matrix.scale = 0.5f;
      matrix.is_table = weight.kind == WeightKind::kTable;
      for (int64_t i = 0; i < matrix.rank * matrix.cols; ++i) matrix.a.push_back(normal(random));
      for (int64_t i = 0; i < matrix.rank * matrix.rows; ++i) matrix.b.push_back(normal(random));
    }
  return out;
}

PeftGolden peft_golden(const std::string& name) {
  const auto json = nlohmann::json::parse(read_file(lora_folder(name) / "golden.json", 1 << 20));
  return {json["base"], json["prompt"].get<std::vector<int32_t>>(),
          read_npy((lora_folder(name) / "logits.npy").string())};
}

std::vector<Asked> with_and_without(const PeftGolden& golden) {
  const Asked with{{.id = 0, .prompt = golden.prompt, .score_prompt = true}, 0};
  Asked without = with;
  without.request.id = 1;
  without.adapter = -1;
  return {with, without};
}

policy::Policy on_all_tiers(double device) {
  policy::Policy policy;
  policy.weights = {device, (1 - device) / 2, (1 - device) / 2};
  policy.kv = {device, 1 - device, 0};
  policy.attention = policy::AttentionPlace::kHost;
  policy.inplace_host_fraction = policy.weights.host / 2;
  policy.micro_batch_tokens = 13;
  return policy;
}

double golden_error(const Answer& answer, const std::vector<float>& expected) {
  double worst = 0, largest = 0;
  EXPECT_GE(answer.logits.size(), expected.size()) << answer.refused;
  if (answer.logits.size() < expected.size()) return 1e9;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float ours = answer.logits[answer.logits.size() - expected.size() + i];
    worst = std::max(worst, std::abs(double{ours} - expected[i]));
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  return worst / largest;
}

EngineOptions exact_options(const std::vector<Asked>& asked) {
  std::vector<GenerationRequest> requests;
  for (const Asked& one : asked) requests.push_back(one.request);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  return options;
}

std::vector<Asked> mixed_requests(Random& random, int64_t vocab, int adapters, int64_t count) {
  const auto prompts = random_prompts(random, (count + 1) / 2, vocab);
  std::vector<Asked> asked;
  for (int64_t i = 0; i < count; ++i) {
    Asked& one = asked.emplace_back();
    one.request = greedy_requests({prompts[static_cast<size_t>(i) / 2]}, 6).front();
    one.request.id = static_cast<uint64_t>(i);
    one.adapter = static_cast<int>(pick(random, -1, adapters - 1));
  }
  return asked;
}

}  // namespace sluice::testing
