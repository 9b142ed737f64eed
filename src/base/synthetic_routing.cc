#include "src/base/synthetic_routing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "src/base/mix.h"

namespace sluice {

namespace {
// What a number is for: keys of different purposes have nothing in common.
enum class Purpose : uint32_t { kSkew = 1, kSequence, kInnovation, kNoise, kGuess };

uint32_t join(uint32_t key, uint32_t more) { return mix(key ^ mix(more + 0x9e3779b9u)); }

// Of mean 0 and variance 1: the sum of four bytes, which is close to normal. to[e] += factor * it.
void add_normals(uint32_t key, float factor, int64_t experts, float* to) {
  constexpr float kMean = 4 * 255 / 2.0f;
  const float scale = factor / std::sqrt(4 * (256.0f * 256 - 1) / 12);
  for (int64_t e = 0; e < experts; ++e) {
    const uint32_t bits = mix(key + static_cast<uint32_t>(e) * 0x9e3779b9u);
    const uint32_t pairs = (bits & 0x00ff00ffu) + (bits >> 8 & 0x00ff00ffu);
    const auto sum = static_cast<int32_t>((pairs & 0xffffu) + (pairs >> 16));
    to[e] += scale * (static_cast<float>(sum) - kMean);
  }
}

// By what a sequence is known at `position`: its first tokens as far as they have come.
uint32_t sequence_key(const SyntheticRouting& routing, std::span<const int32_t> ids,
                      int64_t position) {
  auto key = join(static_cast<uint32_t>(routing.seed), static_cast<uint32_t>(routing.seed >> 32));
  const int64_t known = std::min(position + 1, SyntheticRouting::kKeyTokens);
  for (int64_t i = 0; i < known; ++i)
    key = join(key, static_cast<uint32_t>(ids[static_cast<size_t>(i)]));
  return key;
}

// Of a token: where it stands, and in what sequence. Before the first there are made-up ones.
uint32_t token_key(const SyntheticRouting& routing, std::span<const int32_t> ids,
                   int64_t position) {
  const uint32_t key = sequence_key(routing, ids, position);
  const uint32_t id = position < 0 ? 0 : static_cast<uint32_t>(ids[static_cast<size_t>(position)]);
  return join(join(key, static_cast<uint32_t>(position)), id);
}

// Factors of a token's innovation and of those before it, the squares' sum 1.
std::array<float, SyntheticRouting::kTerms> carried(float carry) {
  std::array<float, SyntheticRouting::kTerms> out{};
  float factor = 1, squares = 0;
  for (float& one : out) {
    one = factor;
    squares += factor * factor;
    factor *= carry;
  }
  for (float& one : out) one /= std::sqrt(squares);
  return out;
}
}  // namespace

SyntheticRouting SyntheticRouting::of(Kind kind, uint64_t seed) noexcept {
  SyntheticRouting out;
  out.seed = seed;
  if (kind == Kind::kFlat) out.skew = out.sequence = 0.4f;
  return out;
}

std::string_view synthetic_routing_name(SyntheticRouting::Kind kind) noexcept {
  return kind == SyntheticRouting::Kind::kFlat ? "flat" : "sticky";
}

std::optional<SyntheticRouting::Kind> parse_synthetic_routing(std::string_view name) noexcept {
  for (const auto kind : {SyntheticRouting::Kind::kSticky, SyntheticRouting::Kind::kFlat})
    if (name == synthetic_routing_name(kind)) return kind;
  return std::nullopt;
}

void fill_synthetic_scores(const SyntheticRouting& routing, const SyntheticLayer& of,
                           const SyntheticTokens& tokens, float* scores, int64_t stride) {
  constexpr int64_t kTerms = SyntheticRouting::kTerms;
  const int64_t experts = of.experts;
  const auto wide = static_cast<size_t>(experts);
  const float shared = of.layer * 10 < of.layers ? routing.first_layers : 1.0f;
  const auto of_layer = static_cast<uint32_t>(of.layer);
  const auto purpose = [&](uint32_t key, Purpose what) {
    return join(join(key, static_cast<uint32_t>(what)), of_layer);
  };
  const auto factors = carried(routing.carry);

  std::vector<float> liked;  // [experts] what a row's sequence and all sequences like
  std::vector<float> innovations(static_cast<size_t>(kTerms) * wide);  // a ring by position
  const auto ring = [&](int64_t position) {
    return innovations.data() + (position + kTerms) % kTerms * experts;
  };
  // Draws the token's innovation; returns its key.
  const auto draw = [&](int64_t position) {
    const uint32_t key = token_key(routing, tokens.ids, position);
    float* const to = ring(position);
    std::fill_n(to, experts, 0.0f);
    add_normals(purpose(key, Purpose::kInnovation), 1, experts, to);
    return key;
  };
  for (int64_t back = 1; back < kTerms; ++back) draw(tokens.first - back);

  for (int64_t i = 0; i < tokens.count; ++i) {
    const int64_t position = tokens.first + i;
    if (i == 0 || position < SyntheticRouting::kKeyTokens) {
      const uint32_t seed = sequence_key(routing, tokens.ids, -1);
      const uint32_t sequence = sequence_key(routing, tokens.ids, position);
      liked.assign(wide, 0);
      add_normals(purpose(seed, Purpose::kSkew), shared * routing.skew, experts, liked.data());
      add_normals(purpose(sequence, Purpose::kSequence), shared * routing.sequence, experts,
                  liked.data());
    }
    const uint32_t key = draw(position);
    float* const to = scores + i * stride;
    std::copy(liked.begin(), liked.end(), to);
    for (int64_t back = 0; back < kTerms; ++back) {
      const float factor = routing.token * factors[static_cast<size_t>(back)];
      const float* const from = ring(position - back);
      for (int64_t e = 0; e < experts; ++e) to[e] += factor * from[e];
    }
    add_normals(purpose(key, Purpose::kNoise), routing.noise, experts, to);
  }
}

void fill_guessed_scores(const SyntheticRouting& routing, const SyntheticLayer& of,
                         const SyntheticTokens& tokens, float* scores, int64_t stride) {
  fill_synthetic_scores(routing, of, tokens, scores, stride);
  for (int64_t i = 0; i < tokens.count; ++i) {
    const uint32_t token = token_key(routing, tokens.ids, tokens.first + i);
    const uint32_t key = join(token, static_cast<uint32_t>(Purpose::kGuess));
    add_normals(join(key, static_cast<uint32_t>(of.layer)), kSyntheticGuessNoise, of.experts,
                scores + i * stride);
  }
}

}  // namespace sluice
