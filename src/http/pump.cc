#include "src/http/pump.h"

#include <utility>

namespace sluice::http {

namespace {
constexpr int64_t kMostUnwritten = 256 << 10;

int64_t bytes_of(const Piece& piece) {
  return static_cast<int64_t>(piece.bytes.size() + piece.response.body.size());
}
}  // namespace

std::shared_ptr<Pump> Pump::start(Crew& crew, std::shared_ptr<LiveAnswer> live, Deliver deliver) {
  const std::shared_ptr<Pump> pump(new Pump(crew, std::move(live), std::move(deliver)));
  crew.post([pump] {
    if (pump->live_)
      pump->live_->watch([weak = pump->weak_from_this()] {
        if (const auto self = weak.lock()) self->wake();
      });
    pump->run();
  });
  return pump;
}

void Pump::wake() {
  if (is_woken_.exchange(true)) return;
  crew_.post([self = shared_from_this()] { self->run(); });
}

void Pump::written(int64_t bytes) {
  const int64_t before = unwritten_.fetch_sub(bytes);
  if (before >= kMostUnwritten && before - bytes < kMostUnwritten) wake();
}

void Pump::probe() {
  crew_.post([self = shared_from_this()] {
    if (!self->live_) return;
    std::string sign = self->live_->sign_of_life();
    if (sign.empty()) return;
    self->unwritten_ += static_cast<int64_t>(sign.size());
    self->deliver_(Piece::more(std::move(sign)));
  });
}

void Pump::close() {
  crew_.post([self = shared_from_this()] { self->end(); });
}

void Pump::end() {
  live_.reset();
  deliver_ = nullptr;
}

void Pump::arm(Clock::time_point time) {
  if (time >= alarm_) return;
  alarm_ = time;
  crew_.post_at(time, [weak = weak_from_this(), time] {
    const auto self = weak.lock();
    if (!self) return;
    if (self->alarm_ == time) self->alarm_ = Clock::time_point::max();
    self->run();
  });
}

void Pump::run() {
  is_woken_ = false;
  while (live_ && unwritten_ < kMostUnwritten) {
    Piece piece;
    try {
      piece = live_->next();
    } catch (const std::exception&) {
      piece = Piece::broken();
    }
    if (piece.kind == Piece::Kind::kNothingYet) return arm(piece.ask_again);
    unwritten_ += bytes_of(piece);
    const bool goes_on = piece.kind == Piece::Kind::kBegin || piece.kind == Piece::Kind::kMore;
    deliver_(std::move(piece));
    if (!goes_on) end();
  }
}

}  // namespace sluice::http
