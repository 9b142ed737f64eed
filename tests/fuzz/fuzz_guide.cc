// A schema, a regular expression or a grammar (the first byte says which), as a guide: an Error of
// kind kUser or an automaton that goes on from state to state until nothing may follow.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/base/error.h"
#include "src/guide/automaton.h"
#include "src/guide/guide_maker.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  using sluice::sampling::GuideKind;
  constexpr GuideKind kinds[] = {GuideKind::kJsonSchema, GuideKind::kRegex, GuideKind::kGrammar};
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    sluice::guide::Automaton automaton(sluice::guide::network_of({kinds[data[0] % 3], text, {}}));
    sluice::fuzz::accepted();
    auto state = automaton.start();
    for (int step = 0; step < 200 && state >= 0 && !automaton.is_final(state); ++step) {
      // The first byte at or after one of the input's that leads on.
      const uint8_t first = data[static_cast<size_t>(step) % size];
      auto next = sluice::guide::Automaton::kDead;
      for (int i = 0; i < 256 && next < 0; ++i)
        next = automaton.after(state, static_cast<uint8_t>(first + i));
      if (next < 0 && !automaton.is_accepting(state)) std::abort();  // a dead end
      state = next;
    }
  } catch (const sluice::Error& error) {
    if (error.kind() != sluice::ErrorKind::kUser) std::abort();
  }
  return 0;
}
