#pragma once
// How the next token of one sequence is chosen: a plain value, filled by the command line, a batch
// line or a server. Field names are those of the OpenAI completions interface; the rest follow
// Hugging Face (top_k, min_p, repetition_penalty, min_tokens). Every field has a neutral default;
// validate() says what is out of range.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice::sampling {

constexpr int kMaxLogprobs = 20;     // alternatives a token may report (as vLLM; OpenAI has 5)
constexpr int kMaxStopStrings = 64;  // bounds the stop automaton together with the next
constexpr int kMaxStopBytes = 4096;  // length of one stop string
constexpr float kMaxTemperature = 100.0F;
constexpr int kMaxBeams = 64;
constexpr int kMaxDryBreakers = 64;       // of either kind
constexpr int kMaxDryBreakerBytes = 256;  // of a text
constexpr int kMaxDryBreakerTokens = 64;  // of one given as tokens

/// When a beam search that has its num_beams finished sequences ends (Hugging Face's names: false,
/// true, "never").
enum class EarlyStopping : uint8_t {
  kHeuristic,  // when the best running beam, as long as it is now, can't beat the worst of them
  kAtOnce,     // as soon as it has them
  kNever       // when no running beam can, however long it gets
};

class DryBreakers;  // src/sampling/dry.h

/// What the whole output has to be.
enum class GuideKind : uint8_t {
  kNone,
  kJson,        // any JSON object
  kJsonSchema,  // JSON that `text`, a schema, allows
  kRegex,       // what `text`, a regular expression, describes
  kChoice,      // one of `choices`
  kCalls,       // calls of tools; `text` is what chat::tool_guide() wrote
  kGrammar      // what `text`, a grammar in llama.cpp's GBNF, describes
};

/// What the output is held to.
struct GuideSpec {
  GuideKind kind = GuideKind::kNone;
  std::string text;
  std::vector<std::string> choices;
  bool relaxes = false;  ///< of a schema: what guides don't know is left out, instead of an error

  bool operator==(const GuideSpec&) const = default;
};

/// How tokens are chosen and when a sequence ends.
struct SamplingParams {
  float temperature = 1.0F;      // [0, 100]; 0 = greedy
  int top_k = 0;                 // >= 0; 0 = off
  float top_p = 1.0F;            // [0, 1]; 1 = off
  float min_p = 0.0F;            // [0, 1]; 0 = off
  float typical_p = 1.0F;        // [0, 1]; 1 = off (locally typical, arXiv:2202.00666)
  float top_n_sigma = 0.0F;      // [0, 100] standard deviations; 0 = off (arXiv:2411.07641)
  float xtc_probability = 0.0F;  // [0, 1]; 0 = off: how often the likeliest are excluded
  float xtc_threshold = 0.1F;    // [0, 1]; which of them: above a half, none
  // Mirostat (arXiv:2007.14966) takes the place of all filters above but temperature.
  int mirostat = 0;           // 0 = off; 1 or 2: the version
  float mirostat_tau = 5.0F;  // [0, 100]: bits of surprise that are aimed at
  float mirostat_eta = 0.1F;  // [0, 10]: how fast it gets there
  // DRY: what would go on with a repetition gets less likely with each token of it.
  float dry_multiplier = 0.0F;  // [0, 100]; 0 = off
  float dry_base = 1.75F;       // [1, 100]
  int dry_allowed_length = 2;   // >= 0: tokens; shorter repetitions cost nothing
  int dry_penalty_last_n = -1;  // -1: prompt and output are looked through; n: their last n tokens
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};  // over which none goes
  std::vector<std::vector<int32_t>> dry_breaker_tokens;                     // likewise, as tokens
  std::shared_ptr<const DryBreakers> dry_breakers;  // both, where somebody has read the texts
  float repetition_penalty = 1.0F;                  // (0, 100]; 1 = off; over prompt and output
  float presence_penalty = 0.0F;                    // [-2, 2]; over output
  float frequency_penalty = 0.0F;                   // [-2, 2]; over output
  uint64_t seed = 0;                                // what the random numbers are drawn from
  bool has_seed =
      false;  // the user gave it; otherwise whoever runs the job fills `seed` (derive_seed)
  int max_tokens = 16;            // >= 1: output tokens at most (OpenAI's default)
  int min_tokens = 0;             // [0, max_tokens]: end-of-text and stop ids cannot come before
  std::vector<std::string> stop;  // texts that end the output; not part of it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;  // the end-of-text token does not end the sequence
  int logprobs = -1;        // [-1, 20]: -1 none; 0 the chosen token's only; n with the n likeliest
  std::vector<std::pair<int32_t, float>>
      logit_bias;  // token, what is added to its logit: [-100, 100]
  // Beam search: 2 or more beams. Temperature, the filters and seed then play no part.
  int num_beams = 1;            // [1, 64]
  float length_penalty = 1.0F;  // [-100, 100]: scores are divided by length to its power
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  GuideSpec guide;  // src/guide masks the tokens that would lead elsewhere

  bool operator==(const SamplingParams&) const = default;
};

/// Whether tokens are chosen in a way that only the host has: typical_p, top_n_sigma, XTC,
/// mirostat.
bool is_for_host(const SamplingParams& params) noexcept;

/// Checks every field against the range noted beside it.
/// Errors: kUser naming the field, its value and the allowed range.
void validate(const SamplingParams& params);

/// A seed for sequence `sequence_index` of a job whose requests give none: well spread, never
/// dependent on batching.
uint64_t derive_seed(uint64_t job_seed, uint64_t sequence_index) noexcept;

}  // namespace sluice::sampling
