#pragma once
// What requests ask for and is not done: told to the caller where the answer makes sense without
// it, refused where the caller wants to know (strict), or where nobody listens (lines of a batch).
#include <string>
#include <vector>

namespace sluice::jobs {

/// Those of the request that the thread reads, until it goes.
class Wishes {
 public:
  explicit Wishes(bool is_strict);
  ~Wishes();
  Wishes(const Wishes&) = delete;
  Wishes& operator=(const Wishes&) = delete;

  /// Takes note of a wish that is passed over. False: it is to be refused.
  static bool pass_over(const std::string& message);
  /// Those so far; none are left. Without one that listens: none.
  static std::vector<std::string> take();

 private:
  Wishes* before_;
  const bool is_strict_;
  std::vector<std::string> passed_over_;
};

}  // namespace sluice::jobs
