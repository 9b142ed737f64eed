#include "src/jobs/wishes.h"

#include <algorithm>
#include <utility>

namespace sluice::jobs {

namespace {
constexpr size_t kMost = 20;  // that are told
thread_local Wishes* current = nullptr;
}  // namespace

Wishes::Wishes(bool is_strict) : before_(std::exchange(current, this)), is_strict_(is_strict) {}

Wishes::~Wishes() { current = before_; }

bool Wishes::pass_over(const std::string& message) {
  if (!current || current->is_strict_) return false;
  auto& all = current->passed_over_;
  if (all.size() < kMost && std::find(all.begin(), all.end(), message) == all.end())
    all.push_back(message);
  return true;
}

std::vector<std::string> Wishes::take() {
  return current ? std::exchange(current->passed_over_, {}) : std::vector<std::string>{};
}

}  // namespace sluice::jobs
