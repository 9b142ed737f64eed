#pragma once
// Models and goldens of tests/fixtures/models for the engine's tests, and a source and sink that
// collect what happens.
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "src/engine/engine.h"

namespace sluice::testing {

struct GoldenCase {
  std::string name;
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<float> margins;      ///< top-1 minus top-2 logit of each greedy step
  std::vector<int32_t> positions;  ///< of the prompt: those whose logits are kept, rising
  std::vector<float> logits;       ///< [positions, vocab] f32 of the reference; may be empty
  /// [layer][token] of the prompt, rising; none of layers that are no mixtures; may be empty.
  std::vector<std::vector<std::vector<int32_t>>> experts;
};

/// "NAME", or "NAME:FORMAT" (":int4-g32"): the fixture quantised; run_all takes "+a8" at the end
/// for int8 activations, "+f8" for fp8. ":mixed": a format of every matrix by turns, but no K
/// types; ":k-mixed": these too; ":types": bf16, f32 and f16 by turns. NAME may be the path of a
/// folder.
std::string fixture_model(const std::string& name);
/// `wanted`, or f16 in place of codes where the model keeps latent rows or attends in chunks, which
/// have none.
KvFormat kv_of(const std::string& name, const KvFormat& wanted);
bool keeps_plain_kv(const std::string& name);
bool has_8_bit_inputs(const std::string& name);
std::vector<std::string> fixture_models();
std::vector<GoldenCase> golden_cases(const std::string& model);
/// Relative error (max |a-b| / max |b|) that the reference itself shows in the stored half
/// precision; 0 for f32.
double half_precision_error(const std::string& model);
/// Reads a little-endian f32 .npy file.
std::vector<float> read_npy(const std::string& path);

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<sampling::Choice> choices;
  std::optional<FinishReason> finish;
  std::string refused;
  std::vector<float> logits;
  std::vector<float> hidden;
  std::vector<sampling::Hypothesis> hypotheses;
};

class ListSource final : public RequestSource {
 public:
  explicit ListSource(std::vector<GenerationRequest> requests) : requests_(std::move(requests)) {}
  std::optional<GenerationRequest> next() override;

 private:
  std::vector<GenerationRequest> requests_;
  size_t next_ = 0;
};

class CollectingSink final : public GenerationSink {
 public:
  bool on_token(uint64_t id, const sampling::Choice& choice) override;
  void on_hypotheses(uint64_t id, const std::vector<sampling::Hypothesis>& best_first) override;
  void on_finish(uint64_t id, FinishReason reason) override;
  void on_refused(uint64_t id, const std::string& message) override;
  void on_logits(uint64_t id, int64_t position, std::span<const float> logits) override;
  void on_hidden(uint64_t id, int64_t position, std::span<const float> row) override;

  std::map<uint64_t, Answer> answers;
};

using Random = std::mt19937;
int64_t pick(Random& random, int64_t low, int64_t high);
/// `count` prompts of 1 to 45 tokens of a vocabulary of `vocab`, none of the first three.
std::vector<std::vector<int32_t>> random_prompts(Random& random, int64_t count, int64_t vocab);
/// Classes of passes that compute each in its own way, at borders that passes of such prompts
/// cross.
void add_random_classes(Random& random, policy::Policy& policy);
/// A fixture's name as GoogleTest takes names.
std::string test_name(std::string fixture);

/// Greedy requests with ids 0, 1, ...
std::vector<GenerationRequest> greedy_requests(const std::vector<std::vector<int32_t>>& prompts,
                                               int max_tokens);

/// Opens, runs and returns the answers.
std::map<uint64_t, Answer> run_all(const std::string& model, EngineOptions options,
                                   std::vector<GenerationRequest> requests);

/// Expects the same tokens, and log-probabilities to `tie`, up to the first that the expected run
/// nearly tied over: what is rounded to few bits may fall the other way where sums are made in
/// other shapes. Of requests with two logprobs.
void expect_same_tokens(const Answer& actual, const Answer& expected, double tie);

/// Options with a workload that fits `requests`.
EngineOptions options_for(const std::vector<GenerationRequest>& requests);

}  // namespace sluice::testing
