#include "src/ranks/row_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "src/base/error.h"

namespace sluice::ranks {

namespace {
void append_key(std::string& to, const jobs::ContentKey& key) {
  std::array<char, 2 * sizeof(uint64_t)> raw;
  std::memcpy(raw.data(), &key.high, sizeof key.high);
  std::memcpy(raw.data() + sizeof key.high, &key.low, sizeof key.low);
  to.append(raw.data(), raw.size());
}
}  // namespace

RowClient::RowClient(Courier& courier, double silence_seconds)
    : courier_(courier), silence_seconds_(silence_seconds) {}

void RowClient::take(const Message& message) {
  heard_ = told_;  // now, to a tick
  Reader reader(message.bytes);
  MutexLock lock(mutex_);
  switch (reader.kind()) {
    case Kind::kWelcome: welcome_ = message.bytes; break;
    case Kind::kRows:
      for (int64_t left = reader.number(); left > 0; --left) {
        Line& line = lines_.emplace_back();
        line.number = reader.number();
        line.text = reader.text();
      }
      has_asked_ = has_asked_idle_ = false;
      break;
    case Kind::kEnd:
      is_complete_ = reader.number() != 0;
      has_ended_ = true;
      break;
    case Kind::kLeave: leaving_ = reader.number() != 0; break;
    default: return;
  }
  changed_.notify_all();
  lock.unlock();
  if (reader.kind() == Kind::kEnd) ending_.request_stop();
}

void RowClient::tick(double now) {
  if (!has_begun_) heard_ = now;
  has_begun_ = true;
  if (now - heard_ > silence_seconds_) {
    fail(std::make_exception_ptr(Error(
        ErrorKind::kDevice, fmt::format("rank 0 has said nothing for {:.0f} s", silence_seconds_),
        "start the same command again: finished rows are kept")));
    heard_ = now;
  }
  if (now - told_ < kTellSeconds) return;
  told_ = now;
  const MutexLock lock(mutex_);
  courier_.send(0, status_.pack());
}

void RowClient::fail(const std::exception_ptr& error) {
  {
    const MutexLock lock(mutex_);
    if (!error_) error_ = error;
    has_ended_ = true;
    leaving_ = false;
    changed_.notify_all();
  }
  ending_.request_stop();
}

std::optional<policy::Workload> RowClient::join(const std::string& config, jobs::ResultsFile& own,
                                                const std::stop_token& stop) {
  std::string keys;
  own.for_each_record(
      [&](const jobs::ContentKey& key, std::string_view) { append_key(keys, key); });
  courier_.send(
      0, Writer(Kind::kHello).text(config).text(host_name()).number(::getpid()).text(keys).take());
  std::string bytes;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, stop,
                  [this]() SLUICE_REQUIRES(mutex_) { return welcome_.has_value() || has_ended_; });
    if (error_) std::rethrow_exception(error_);
    if (stop.stop_requested() && !has_ended_) throw Error(ErrorKind::kCancelled, "stopped");
    if (!welcome_) return std::nullopt;
    bytes = *welcome_;
  }
  Reader reader(bytes);
  if (const std::string why = reader.text(); !why.empty())
    throw Error(ErrorKind::kUser, "rank 0 refuses this rank: " + why,
                "start all ranks with the same program, model and settings");
  policy::Workload out;
  out.sequences = reader.number();
  out.max_prompt_tokens = reader.number();
  out.max_total_tokens = reader.number();
  out.total_tokens = reader.number();
  out.prompt_tokens = reader.number();
  out.beams = reader.number();
  const std::string wanted = reader.text();
  std::unordered_set<std::string> set;
  constexpr size_t kKeyBytes = 2 * sizeof(uint64_t);
  for (size_t at = 0; at < wanted.size(); at += kKeyBytes) set.insert(wanted.substr(at, kKeyBytes));
  own.for_each_record([&](const jobs::ContentKey& key, std::string_view line) {
    std::string raw;
    append_key(raw, key);
    if (set.contains(raw)) courier_.send(0, Writer(Kind::kRecord).text(line).take());
  });
  own.on_record = [this](std::string_view line) {
    courier_.send(0, Writer(Kind::kRecord).text(line).take());
  };
  return out;
}

void RowClient::set_room(int64_t store, int64_t block) {
  const MutexLock lock(mutex_);
  store_ = std::max<int64_t>(store, 1);
  block_ = std::max<int64_t>(block, 1);
}

void RowClient::ask(bool is_idle) {
  if (has_ended_ || (has_asked_ && (!is_idle || has_asked_idle_))) return;
  has_asked_ = true;
  has_asked_idle_ = is_idle;
  // An idle place waits for a row; a store is filled for the next pass.
  const int64_t places = std::max<int64_t>(block_ - status_.running, 1);
  courier_.send(0, Writer(Kind::kAsk).number(is_idle ? places : store_).number(is_idle).take());
}

std::optional<Line> RowClient::next() {
  const MutexLock lock(mutex_);
  std::optional<Line> out;
  if (!lines_.empty() && !has_ended_) {
    out = std::move(lines_.front());
    lines_.pop_front();
  }
  if (!out)
    ask(true);
  else if (static_cast<int64_t>(lines_.size()) < store_)
    ask(false);
  return out;
}

bool RowClient::is_open() const {
  const MutexLock lock(mutex_);
  return !has_ended_;
}

void RowClient::wait(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  changed_.wait(lock, stop,
                [this]() SLUICE_REQUIRES(mutex_) { return !lines_.empty() || has_ended_; });
}

void RowClient::set_status(const Status& status) {
  const MutexLock lock(mutex_);
  status_ = status;
}

void RowClient::say_goodbye(const std::string& why) {
  {
    const MutexLock lock(mutex_);
    courier_.send(0, status_.pack());  // the last word on its rates
  }
  courier_.send(0, Writer(Kind::kBye).text(why).take());
}

bool RowClient::wait_to_leave() {
  MutexLock lock(mutex_);
  changed_.wait(lock, std::stop_token(),
                [this]() SLUICE_REQUIRES(mutex_) { return leaving_.has_value(); });
  return *leaving_;
}

bool RowClient::is_complete() const {
  const MutexLock lock(mutex_);
  return is_complete_;
}

void RowClient::rethrow() const {
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace sluice::ranks
