#pragma once
// How many random cases a property test tries: all, or a third of them where a sanitizer makes each
// several times as long (the release tests try them all).

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

}  // namespace sluice
