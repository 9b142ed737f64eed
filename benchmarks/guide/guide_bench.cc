// What guided output costs with a vocabulary of 151 646 tokens (Qwen2's): reading it once, and the
// first look at a state, whose mask is kept from then on.
#include <benchmark/benchmark.h>

#include "src/guide/guide_maker.h"

namespace sluice::guide {
namespace {

const text::Tokenizer& tokenizer() {
  static const auto loaded = text::Tokenizer::load(SLUICE_TOKENIZER);
  return *loaded;
}

void read_vocabulary(benchmark::State& state) {
  tokenizer();
  for (auto _ : state) {
    TokenTrie trie(tokenizer());
    benchmark::DoNotOptimize(trie.nodes().data());
  }
}

// The first mask behind `text`, of a guide that has not been there.
void first_mask(benchmark::State& state, const char* schema, const char* text) {
  static const auto trie = std::make_shared<const TokenTrie>(tokenizer());
  const auto network = network_of({sampling::GuideKind::kJsonSchema, schema, {}});
  const auto tokens = tokenizer().encode(text, text::AddSpecial::kNo);
  for (auto _ : state) {
    state.PauseTiming();
    Guide guide(network, trie, {});
    Guide::State at = guide.start();
    for (int32_t token : tokens) at = guide.after(at, token);
    state.ResumeTiming();
    benchmark::DoNotOptimize(guide.allowed(at).data());
  }
}

constexpr const char* kFree =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"]})";
constexpr const char* kBounded =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}}, "required": ["name"]})";

BENCHMARK(read_vocabulary)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_mask, at_the_start, kFree, "")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_mask, before_a_number, kFree, R"({"name": "x", "age": )")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_mask, within_a_string, kFree, R"({"name": "x)")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(first_mask, within_a_bounded_string, kBounded, R"({"name": "x)")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::guide

BENCHMARK_MAIN();
