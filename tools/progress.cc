#include "tools/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/bytes.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
// A tty is redrawn so often; on a log a line comes within a second, then every ten.
constexpr double kRedraw = 0.2, kFirstLine = 0.9, kSurelySlow = 1.9, kNextLine = 10;

double pause_before(bool has_shown) {
  return !has_shown ? kFirstLine : status_is_redrawn() ? kRedraw : kNextLine;
}
}  // namespace

std::optional<double> seconds_left(double seconds, int64_t came, int64_t missing) {
  constexpr double kLeastSeconds = 0.5, kLeastShare = 0.01;
  const auto all = static_cast<double>(came) + static_cast<double>(missing);
  if (missing <= 0 || seconds < kLeastSeconds || static_cast<double>(came) < kLeastShare * all)
    return std::nullopt;
  return seconds * static_cast<double>(missing) / static_cast<double>(came);
}

void Progress::hide() {
  if (has_shown_) clear_status();
}

void Progress::end() {
  hide();
  has_shown_ = false;
  started_with_ = -1;
}

double Progress::seconds() const {
  return started_with_ < 0 ? 0 : std::chrono::duration<double>(Clock::now() - started_).count();
}

std::string Progress::rate(int64_t bytes) const {
  const double so_far = seconds();
  return so_far > 0.5 ? format_rate(static_cast<double>(bytes) / so_far) : "";
}

std::function<void(const io::VerifyProgress&)> Progress::shows_verifying() {
  return [this](const io::VerifyProgress& at) {
    update(at.done_bytes, at.total_bytes,
           fmt::format("{} of {}", format_bytes(at.done_bytes), format_bytes(at.total_bytes)),
           rate(at.done_bytes));
  };
}

bool Progress::is_due() const {
  return started_with_ < 0 ||
         std::chrono::duration<double>(Clock::now() - last_).count() >= pause_before(has_shown_);
}

void Progress::update(int64_t done, int64_t total, const std::string& amount,
                      const std::string& rate) {
  const auto now = Clock::now();
  if (started_with_ < 0) {
    started_ = last_ = now;
    started_with_ = done;
  }
  if (!is_due()) return;
  last_ = now;
  has_shown_ = true;
  std::string line = fmt::format("{}: {}{}{}", what_, amount, rate.empty() ? "" : " ", rate);
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  if (const auto left = seconds_left(elapsed, done - started_with_, total - done))
    line += ", " + format_seconds(*left) + " left";
  show_status(line);
}

Waiting::Waiting(std::string what)
    : what_(std::move(what)), thread_([this](const std::stop_token& stop) { show(stop); }) {}

Waiting::~Waiting() {
  thread_.request_stop();
  thread_.join();
}

void Waiting::show(std::stop_token stop) {
  const auto started = std::chrono::steady_clock::now();
  bool has_shown = false;
  MutexLock lock(mutex_);
  for (;;) {
    const double pause = has_shown ? std::max(pause_before(true), 1.0) : kSurelySlow;
    if (ends_.wait_for(lock, stop, std::chrono::duration<double>(pause), [] { return false; }) ||
        stop.stop_requested())
      break;
    const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - started;
    show_status(fmt::format("{}: {}", what_, format_seconds(std::round(so_far.count()))));
    has_shown = true;
  }
  if (has_shown) clear_status();
}

namespace {
std::string named(const std::string& name, const char* what) {
  return name.empty() ? what : name + ' ' + what;
}

void show_tokens(Progress& progress, double done, int64_t total) {
  if (!progress.is_due()) return;  // tasks of small models take microseconds
  const double seconds = progress.seconds();
  std::string amount = fmt::format("{} of {} tokens", static_cast<int64_t>(done), total);
  std::string rate;
  if (seconds > 0.5 && done >= 1) {
    amount += ',';
    rate = fmt::format("{:.3g} tokens/s", done / seconds);
  }
  // Thousandths: a slow pass of few tokens moves too.
  progress.update(std::llround(done * 1000), total * 1000, amount, rate);
}
}  // namespace

TokenProgress::TokenProgress(std::string name, int64_t prompt_tokens, int64_t new_tokens)
    : prompt_total_(prompt_tokens),
      new_total_(new_tokens),
      prompts_(named(name, "prompt")),
      answers_(named(name, "answer")) {}

void TokenProgress::begin() {
  const MutexLock lock(mutex_);
  prompts_behind_ = new_behind_ = 0;
  pass_ = -1;
  prompt_tokens_ = new_tokens_ = 0;
  is_on_ = true;
}

void TokenProgress::end() {
  const MutexLock lock(mutex_);
  is_on_ = false;
  prompts_.end();
  answers_.end();
}

std::function<void(EngineOptions&)> TokenProgress::listens() {
  return [this](EngineOptions& options) {
    options.pass_progress = [this](const RunningPass& pass) { show(pass); };
  };
}

void TokenProgress::show(const RunningPass& pass) {
  const MutexLock lock(mutex_);
  if (!is_on_) return;
  if (pass.pass != pass_) {
    prompts_behind_ += prompt_tokens_;
    new_behind_ += new_tokens_;
    pass_ = pass.pass;
    prompt_tokens_ = pass.prefill_tokens;
    new_tokens_ = pass.decode_tokens;
  }
  if (pass.prefill_tokens > 0) {
    const int64_t known = prompts_behind_ + pass.prefill_tokens + pass.waiting_tokens;
    show_tokens(prompts_,
                static_cast<double>(prompts_behind_) +
                    pass.share * static_cast<double>(pass.prefill_tokens),
                std::max(prompt_total_, known));
    return;
  }
  prompts_.end();
  if (new_total_ <= 0) return;
  const double done =
      static_cast<double>(new_behind_) + pass.share * static_cast<double>(pass.decode_tokens);
  show_tokens(answers_, std::min(done, static_cast<double>(new_total_)), new_total_);
}

}  // namespace sluice::tools
