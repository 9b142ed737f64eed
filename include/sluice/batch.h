#pragma once
// Requests and answers as a Generator takes and gives them: from a source whenever there is room,
// to a sink as tokens are chosen. Calls come from the thread that called Generator::run.
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// A token with the natural logarithm of its probability.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

/// A token that was chosen, or one of a prompt.
struct Choice {
  int32_t token = 0;
  float logprob = 0;  ///< of the unmodified logits; NaN where none was asked for
  std::vector<TokenLogprob> top;  ///< Sampling::logprobs likeliest, likeliest first
};

/// How tokens are chosen. Ranges in brackets; errors name the field. In this order: logit_bias,
/// repetition, presence and frequency penalty, DRY, min_tokens, a guide, temperature, top_n_sigma,
/// top_k, typical_p, top_p, min_p, XTC; or, after temperature, Mirostat alone. A filter sees the
/// probabilities of what those before have left.
struct Sampling {
  float temperature = 1;         ///< [0, 100]; 0: the likeliest
  int top_k = 0;                 ///< 0: off
  float top_p = 1;               ///< [0, 1]; 1: off
  float min_p = 0;               ///< [0, 1]; 0: off
  float typical_p = 1;           ///< [0, 1]; 1: off (arXiv:2202.00666)
  float top_n_sigma = 0;         ///< [0, 100] standard deviations; 0: off (arXiv:2411.07641)
  float xtc_probability = 0;     ///< [0, 1]: how often XTC drops the likeliest; 0: off
  float xtc_threshold = 0.1F;    ///< [0, 1]: of those as probable as this all but the least
  int mirostat = 0;              ///< version 1 or 2 of arXiv:2007.14966; 0: off; not with beams
  float mirostat_tau = 5;        ///< [0, 100]: bits of surprise that are aimed at
  float mirostat_eta = 0.1F;     ///< [0, 10]: how fast it gets there
  float dry_multiplier = 0;      ///< [0, 100]; 0: off. DRY takes multiplier * base^(n - allowed)
                                 ///< from what would go on with a repetition of n tokens
  float dry_base = 1.75F;        ///< [1, 100]
  int dry_allowed_length = 2;    ///< 0 or more: shorter repetitions cost nothing
  int dry_penalty_last_n = -1;   ///< tokens that are looked through; -1: prompt and output; 0: off
  /// Over which no repetition goes: every token that holds one of them; texts need a tokenizer.
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  std::vector<std::vector<int32_t>> dry_breaker_tokens;  ///< likewise, as tokens
  float repetition_penalty = 1;  ///< (0, 100]
  float presence_penalty = 0;    ///< [-2, 2]
  float frequency_penalty = 0;   ///< [-2, 2]
  uint64_t seed = 0;             ///< the same requests and seeds give the same tokens
  int max_tokens = 16;           ///< of the output, 1 or more
  bool ignores_end = false;      ///< the model's end tokens don't end the sequence
  std::vector<int32_t> stop_tokens;
  int min_tokens = 0;  ///< [0, max_tokens]: no end or stop token comes before
  int logprobs = -1;   ///< [-1, 20]: -1 none; 0 the chosen token's; n with the n likeliest
  std::vector<std::pair<int32_t, float>> logit_bias;  ///< token, added to its logit: [-100, 100]
};

/// What is to be continued, and how.
struct Request {
  uint64_t id = 0;  ///< the caller's; given back with every answer
  std::vector<int32_t> prompt;
  Sampling sampling;
  bool scores_prompt = false;  ///< the sink gets the logits of every position of the prompt
  bool generates = true;       ///< false, with scores_prompt: nothing after it
  std::string adapter;  ///< of Options::lora, by its name; empty: the model as it is
};

/// Why a sequence ended.
enum class Finish : uint8_t {
  kStop,     ///< an end or stop token, or the sink said so
  kLength,   ///< max_tokens, or the context is full
  kScored,   ///< all of its prompt's logits were handed over, nothing was to be generated
  kCancelled
};

/// Where requests come from, asked whenever the block has room; of one thread.
class Source {
 public:
  virtual ~Source() = default;
  /// The next request, or nothing when there is none now.
  virtual std::optional<Request> next() = 0;
  /// After next() gave nothing: whether it may give one later.
  virtual bool is_open() { return false; }
  /// Nothing runs and an open source gave nothing: returns when next() may give one, the source has
  /// closed, or `cancel` is asked for.
  virtual void wait(const std::stop_token& cancel) { static_cast<void>(cancel); }
};

/// Where answers go, as they are made; of the same thread.
class Sink {
 public:
  virtual ~Sink() = default;
  /// False ends the sequence as kStop.
  virtual bool on_token(uint64_t id, int32_t token) = 0;
  /// The same with the log-probabilities that were asked for.
  virtual bool on_choice(uint64_t id, const Choice& choice) { return on_token(id, choice.token); }
  /// Request::scores_prompt: logits [vocabulary] behind the prompt's token `position`, rising.
  virtual void on_logits(uint64_t id, int64_t position, std::span<const float> logits) {
    static_cast<void>(id), static_cast<void>(position), static_cast<void>(logits);
  }
  virtual void on_finish(uint64_t id, Finish finish) = 0;
  /// A request that can't run, and how to mend it; the others go on.
  virtual void on_refused(uint64_t id, const std::string& why) = 0;
};

}  // namespace sluice
