#pragma once
// What a device does otherwise than it should, to be told to whoever runs it, each thing once.
// Thread safe.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/base/mutex.h"

namespace sluice {

class Notices {
 public:
  void add(std::string notice) {
    const MutexLock lock(mutex_);
    if (std::find(known_.begin(), known_.end(), notice) == known_.end())
      known_.push_back(std::move(notice));
  }
  /// Those that nobody has taken yet.
  std::vector<std::string> take() {
    const MutexLock lock(mutex_);
    std::vector<std::string> out(known_.begin() + static_cast<std::ptrdiff_t>(taken_),
                                 known_.end());
    taken_ = known_.size();
    return out;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> known_ SLUICE_GUARDED_BY(mutex_);
  size_t taken_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
