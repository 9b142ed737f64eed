#include "src/serve/live_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::serve {

namespace {
using http::Piece;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kMoment{1};      // for a stream's status to wait for its first text
constexpr std::chrono::seconds kKeepAlive{10};  // a comment in a silent stream
constexpr size_t kStreamPieceBytes = 64 << 10;  // of a stream, at once

ApiError error_of(const Event& event) {
  if (event.kind == Event::Kind::kRefused) return {400, event.text, "", "", 0};
  if (event.kind == Event::Kind::kFinished)
    return {503, "the answer was broken off: the server is shutting down", "", "", 0};
  return {503, "the engine has stopped: " + event.text, "", "", 0};
}
}  // namespace

// Of letters that any header may have.
void add_warnings(const std::vector<std::string>& warnings, http::Response& response) {
  constexpr size_t kMostBytes = 2000;
  std::string all;
  for (const std::string& one : warnings) all += (all.empty() ? "" : "; ") + one;
  if (all.empty()) return;
  all.resize(std::min(all.size(), kMostBytes));
  for (char& c : all)
    if (c < ' ' || c > '~') c = '?';
  response.set_header("X-Sluice-Warning", std::move(all));
}

LiveGeneration::LiveGeneration(std::unique_ptr<GenerationService::Ticket> ticket,
                               std::unique_ptr<AnswerForm> answer, Options options)
    : ticket_(std::move(ticket)),
      answer_(std::move(answer)),
      options_(std::move(options)),
      deadline_(options_.request_time.count() > 0 ? Clock::now() + options_.request_time
                                                  : Clock::time_point::max()) {}

LiveGeneration::~LiveGeneration() { ticket_->mailbox().watch(nullptr); }

void LiveGeneration::watch(std::function<void()> wake) {
  ticket_->mailbox().watch(std::move(wake));
}

std::string LiveGeneration::sign_of_life() { return has_begun_ ? answer_->sign_of_life() : ""; }

// Whether it ends the answer before its time.
bool LiveGeneration::is_end(const Event& event) const {
  return event.kind == Event::Kind::kRefused || event.kind == Event::Kind::kFailed ||
         (event.kind == Event::Kind::kFinished && event.finish_reason == "cancelled" &&
          !answer_->tells_of_breaks());
}

http::Response LiveGeneration::refused(const ApiError& error) const {
  return error_response(error, answer_->error_shape());
}

ApiError LiveGeneration::lateness() const {
  return {504,
          fmt::format("the request was not finished within the {} s that this server gives it",
                      options_.request_time.count()),
          "timeout", "", 0};
}

Piece LiveGeneration::next() {
  if (!options_.streams) return next_whole();
  return has_begun_ ? stream() : begin();
}

Piece LiveGeneration::next_whole() {
  while (auto event = ticket_->mailbox().take(milliseconds(0))) {
    if (is_end(*event)) return Piece::whole(refused(error_of(*event)));
    answer_->add(*event);
    if (!answer_->is_complete()) continue;
    http::Response response;
    response.set_content(answer_->whole(), "application/json");
    add_warnings(options_.warnings, response);
    return Piece::whole(std::move(response));
  }
  if (is_late()) return Piece::whole(refused(lateness()));
  return Piece::nothing_until(deadline_);
}

// What is refused still gets a status of its own: the head waits for the engine's first sign, and a
// moment for what it computes first.
Piece LiveGeneration::begin() {
  bool is_answered = options_.begins_at_once;
  while (!is_answered) {
    auto event = ticket_->mailbox().take(milliseconds(0));
    if (!event) break;
    if (is_end(*event)) return Piece::whole(refused(error_of(*event)));
    is_answered = event->kind != Event::Kind::kStarted;
    started_ = started_.value_or(Clock::now());
    early_.push_back(std::move(*event));
  }
  if (!is_answered && is_late()) return Piece::whole(refused(lateness()));
  if (!is_answered && !(started_ && Clock::now() >= *started_ + kMoment))
    return Piece::nothing_until(started_ ? std::min(*started_ + kMoment, deadline_) : deadline_);
  has_begun_ = true;
  http::Response head;
  head.set_header("Content-Type", answer_->stream_type());
  head.set_header("Cache-Control", "no-cache");
  head.set_header("X-Accel-Buffering", "no");
  add_warnings(options_.warnings, head);
  return Piece::begin(std::move(head));
}

Piece LiveGeneration::stream() {
  const auto end_with = [this](std::string before, const ApiError& error) {
    return Piece::end(std::move(before) + answer_->stream_error(error));
  };
  std::string out;
  while (out.size() < kStreamPieceBytes) {
    std::optional<Event> event;
    if (!early_.empty()) {
      event = std::move(early_.front());
      early_.pop_front();
    } else {
      event = ticket_->mailbox().take(milliseconds(0));
    }
    if (!event) break;
    if (is_end(*event)) return end_with(std::move(out), error_of(*event));
    answer_->add(*event);
    out += answer_->stream_of(*event);
    if (answer_->is_complete()) return Piece::end(out + answer_->stream_end());
  }
  if (out.empty() && is_late()) return end_with({}, lateness());
  if (out.empty() && Clock::now() >= last_sign_ + kKeepAlive) out = answer_->sign_of_life();
  if (out.empty()) return Piece::nothing_until(std::min(last_sign_ + kKeepAlive, deadline_));
  last_sign_ = Clock::now();
  return Piece::more(std::move(out));
}

}  // namespace sluice::serve
