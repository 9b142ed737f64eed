#pragma once
// How many random cases a property test tries: all, or a third of them where a sanitizer makes each
// several times as long (the release tests try them all).
#include <string_view>
#include <vector>

// Defined by the sanitizers' libraries, where a program is linked with one.
extern "C" {
[[gnu::weak]] void __asan_init();  // NOLINT(bugprone-reserved-identifier)
[[gnu::weak]] void __tsan_init();  // NOLINT(bugprone-reserved-identifier)
}

namespace sluice {

inline bool is_sanitized() { return &__asan_init != nullptr || &__tsan_init != nullptr; }

template <class Count>
Count rounds(Count all) {
  return is_sanitized() ? (all + 2) / 3 : all;
}

/// The first of `all`, as many as `rounds` says.
template <class Case>
std::vector<Case> some(std::vector<Case> all) {
  all.resize(rounds(all.size()), all.front());
  return all;
}

/// Whether the case of this number is left to the release tests: two in three are where a sanitizer
/// watches, of any loop some.
inline bool is_left_to_release(unsigned number) {
  return is_sanitized() && (number * 2654435761u >> 16) % 3 != 0;
}

/// Whether a test of one `model` of many is left to the release tests: two in three are where a
/// sanitizer watches memory, others for another `test`, so that every model is met in some of them;
/// five in six where it watches threads, which do the same for all models.
inline bool is_left_to_release(std::string_view model, std::string_view test) {
  unsigned sum = 0;
  for (const char c : model) sum = sum * 31 + static_cast<unsigned char>(c);
  for (const char c : test) sum += static_cast<unsigned char>(c);
  return is_sanitized() && sum % (&__tsan_init != nullptr ? 6 : 3) != 0;
}

}  // namespace sluice
