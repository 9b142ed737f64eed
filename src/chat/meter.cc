#include "src/chat/meter.h"

#include "src/chat/value.h"

namespace sluice::chat {

namespace {
thread_local Meter* current = nullptr;
}  // namespace

Meter::Meter(int64_t work, int64_t bytes)
    : before_(std::exchange(current, this)), work_(work), bytes_(bytes) {}

Meter::~Meter() { current = before_; }

Meter* Meter::of_this_thread() noexcept { return current; }

void Meter::spend(int64_t units) {
  work_ -= units;
  if (work_ < 0) throw TemplateError("the template runs without end");
}

void Meter::hold(int64_t bytes) {
  if (bytes > bytes_) throw TemplateError("the template takes too much memory");
  bytes_ -= bytes;
}

void check_text(size_t bytes) {
  if (bytes > kMostTextBytes) throw TemplateError("a text is too long");
}

}  // namespace sluice::chat
