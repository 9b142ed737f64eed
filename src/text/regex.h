#pragma once
// PCRE2 patterns over UTF-8 text, Unicode-aware; owns the compiled pattern. Immutable; thread safe.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text {

class Regex {
 public:
  /// Errors: kFile with the pattern and PCRE2's reason.
  explicit Regex(std::string pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  enum class Empty { kLeftOut, kKept };
  /// Begin and end of every match in valid UTF-8 `text`, in order, never overlapping. An empty
  /// match that is kept lies between characters and not behind another match. Errors: kFile when
  /// matching runs into PCRE2's limits (a pattern that would hang).
  std::vector<std::pair<size_t, size_t>> find_all(std::string_view text,
                                                  Empty empty = Empty::kLeftOut) const;
  const std::string& pattern() const noexcept { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

}  // namespace sluice::text
