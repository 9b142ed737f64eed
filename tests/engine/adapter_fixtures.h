#pragma once
// Adapters of tests/fixtures/lora with PEFT's own answers (scripts/golden/lora.py), random ones,
// and requests that choose them.
#include <filesystem>

#include "tests/engine/model_fixtures.h"

namespace sluice::testing {

std::filesystem::path lora_folder(const std::string& name);

/// A request for adapter `adapter` of those given; -1 for none.
struct Asked {
  GenerationRequest request;
  int adapter = -1;
};

EngineOptions with_room(const std::string& model, const std::vector<LoraAdapter>& adapters,
                        EngineOptions options);
/// As options_for(), as exact as products are to be had.
EngineOptions exact_options(const std::vector<Asked>& asked);
/// Gives requests their adapters, as the engine has loaded them, and runs.
std::map<uint64_t, Answer> run_asked(Engine& engine, const std::vector<AdapterPtr>& loaded,
                                     const std::vector<Asked>& asked);
/// Opens, gives requests their adapters as the engine takes them, runs and returns the answers.
std::map<uint64_t, Answer> run_adapted(const std::string& model, const EngineOptions& options,
                                       const std::vector<LoraAdapter>& adapters,
                                       const std::vector<Asked>& asked);

/// Random changes of most matrices that may have them, and of the table of tokens.
LoraAdapter random_adapter(const std::string& model, uint32_t seed);
/// Requests for adapters and for none, each prompt for several of them.
std::vector<Asked> mixed_requests(Random& random, int64_t vocab, int adapters, int64_t count);

struct PeftGolden {
  std::string base;
  std::vector<int32_t> prompt;
  std::vector<float> logits;  ///< of the last position
};
PeftGolden peft_golden(const std::string& name);
/// Its prompt with the first adapter and, as request 1, without; both scored.
std::vector<Asked> with_and_without(const PeftGolden& golden);
/// So much on the device, what is left on the tiers below, attention and some products on the host.
policy::Policy on_all_tiers(double device);
/// Largest difference of the last position's logits by the largest logit.
double golden_error(const Answer& answer, const std::vector<float>& expected);

}  // namespace sluice::testing
