#pragma once
// What other processes do with the cores that this one may use: a figure taken beside them is not
// the machine's. From /proc/stat, whose clock ticks every 10 ms: look after a third of a second or
// more. One thread at a time.
#include <string>

namespace sluice {

class OtherLoad {
 public:
  /// `threads`: what this process computes with; cores beyond them may be others' without harm.
  explicit OtherLoad(int threads);

  /// Starts anew.
  void begin();
  /// Cores, on average since begin(), that others had of those this process wanted; 0 where the
  /// system does not say.
  double cores_taken() const;
  /// Whether so many taken cores let a measurement stand.
  bool is_quiet(double cores_taken) const noexcept;

 private:
  struct Times {
    double all_busy = 0;  ///< seconds that the CPUs worked or were another machine's
    double own = 0;       ///< seconds of this process
    double wall = 0;
  };
  static Times now();

  int threads_;
  int cores_;
  Times begin_;
};

}  // namespace sluice
