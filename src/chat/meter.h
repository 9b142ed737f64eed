#pragma once
// What rendering a template may cost. A template is a stranger's program: each step, each item that
// a loop or a filter goes over, and each byte that is made or looked at is work, and what values
// hold is memory. Both are bounded, so a bomb of a few bytes is an error within a fraction of a
// second. The meter that a render has put up is the thread's; without one nothing is counted.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::chat {

/// The thread's, until it goes.
class Meter {
 public:
  /// `work`: units of spend(). `bytes`: of values that are held together.
  Meter(int64_t work, int64_t bytes);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  static Meter* of_this_thread() noexcept;
  /// Errors: TemplateError when there was too much of it.
  void spend(int64_t units);
  void hold(int64_t bytes);
  void release(int64_t bytes) noexcept { bytes_ += bytes; }

 private:
  Meter* before_;
  int64_t work_, bytes_;  // left
};

/// An item that is looked at, or 64 bytes, is a unit: some 10 ns. Errors: as Meter::spend.
inline void spend(int64_t units) {
  if (Meter* meter = Meter::of_this_thread()) meter->spend(units);
}
inline void spend_on(std::string_view text) { spend(1 + static_cast<int64_t>(text.size() / 64)); }

/// Bytes that are held until it goes.
class Held {
 public:
  Held() = default;
  explicit Held(int64_t bytes) : meter_(Meter::of_this_thread()), bytes_(bytes) {
    if (meter_) meter_->hold(bytes_);
  }
  ~Held() {
    if (meter_) meter_->release(bytes_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Meter* meter_ = nullptr;
  int64_t bytes_ = 0;
};

/// One text may have so many bytes: more than any prompt.
constexpr size_t kMostTextBytes = 64 << 20;
/// Errors: TemplateError for a text of more.
void check_text(size_t bytes);

/// A text that is made piece by piece.
class TextMaker {
 public:
  TextMaker& operator+=(std::string_view piece) {
    spend_on(piece);
    check_text(text_.size() + piece.size());
    text_ += piece;
    return *this;
  }
  TextMaker& operator+=(char c) { return *this += std::string_view(&c, 1); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace sluice::chat
