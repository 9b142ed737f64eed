#pragma once
// Routing of models whose weights are made up. A random router sends each token anywhere; a trained
// one has experts that all sequences like, others that one sequence likes, and keeps some of those
// of the token before. What caches find and what a block reads depends on that, so models of
// `sluice synth` are routed by a rule that was fitted to measured traces.
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace sluice {

/// The score of an expert for a token is
///
///     skew b[layer, expert] + sequence u[sequence, layer, expert] + token a_t[expert] + noise n,
///     a_t = carry a_(t-1) + sqrt(1 - carry^2) e_t
///
/// with b, u, e and n of variance 1. a is cut after kTerms terms. What a sequence is, is told by
/// its first kKeyTokens tokens; every number depends on (seed, layer, expert, this token and those
/// before) alone, so that blocks, pages and a cached prefix make no difference.
struct SyntheticRouting {
  enum class Kind : uint8_t {
    kSticky,  ///< as Qwen3-30B-A3B: the default numbers
    kFlat     ///< as models that spread their tokens evenly: `skew` and `sequence` are 0.4
  };
  static constexpr int64_t kTerms = 6;
  static constexpr int64_t kKeyTokens = 8;

  uint64_t seed = 1;
  float skew = 1.09f;
  float sequence = 1.52f;
  float token = 1.37f;
  float carry = 0.53f;
  float noise = 1;
  /// What `skew` and `sequence` are multiplied with in the first tenth of a model's layers.
  float first_layers = 0.5f;

  static SyntheticRouting of(Kind kind, uint64_t seed) noexcept;
  bool operator==(const SyntheticRouting&) const = default;
};

/// "sticky", "flat".
std::string_view synthetic_routing_name(SyntheticRouting::Kind kind) noexcept;
/// The kind of that name; nothing: there is none.
std::optional<SyntheticRouting::Kind> parse_synthetic_routing(std::string_view name) noexcept;

/// A layer whose router is made up.
struct SyntheticLayer {
  int64_t layer = 0;
  int64_t layers = 1;  ///< of the model
  int64_t experts = 1;
};

/// Tokens of one sequence for which scores are wanted.
struct SyntheticTokens {
  std::span<const int32_t> ids;  ///< of the sequence from its first token on
  int64_t first = 0;             ///< position of the first that is wanted
  int64_t count = 0;             ///< first + count <= ids.size()
};

/// Deviation of what a guess, made a layer ahead, has beside a score: of eight experts of 128 it
/// finds seven, as the next layer's router finds on this layer's rows of Qwen3-30B-A3B (0.886).
constexpr float kSyntheticGuessNoise = 0.33f;

/// scores[i * stride + e] for token first + i and each of the layer's experts.
void fill_synthetic_scores(const SyntheticRouting& routing, const SyntheticLayer& of,
                           const SyntheticTokens& tokens, float* scores, int64_t stride);
/// The same as they are guessed before the layer's rows are there.
void fill_guessed_scores(const SyntheticRouting& routing, const SyntheticLayer& of,
                         const SyntheticTokens& tokens, float* scores, int64_t stride);

}  // namespace sluice
