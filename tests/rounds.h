#pragma once
// How many random cases a property test tries: all, or a third of them where a sanitizer makes each
// several times as long (the release tests try them all).
namespace sluice {

template <class Count>
constexpr Count rounds(Count all) {
#ifdef SLUICE_SANITIZED
  return (all + 2) / 3;
#else
  return all;
#endif
}

}  // namespace sluice
