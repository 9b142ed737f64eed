#include "io/async/request_queue.h"

#include <algorithm>
#include <utility>

namespace sluice::io {

void RequestQueue::push(std::shared_ptr<Group> group) {
  std::erase_if(group->pieces, [](const Group::Piece& piece) { return piece.bytes == 0; });
  if (group->pieces.empty()) {
    finished_.push_back(std::move(group));
    return;
  }
  group->is_queued = true;
  Lane& to = lane(group->direction);
  to.queued.push_back(std::move(group));
}

void RequestQueue::push_failed(std::shared_ptr<Group> group, const Error& error) {
  group->error = std::make_exception_ptr(error);
  finished_.push_back(std::move(group));
}

void RequestQueue::leave_queue(Lane& lane) {
  std::shared_ptr<Group> group = std::move(lane.queued.front());
  lane.queued.pop_front();
  group->is_queued = false;
  if (group->in_flight == 0) finished_.push_back(std::move(group));
}

std::optional<int64_t> RequestQueue::issuable(const Lane& lane) const {
  if (lane.queued.empty()) return std::nullopt;
  const Group& group = *lane.queued.front();
  const int64_t left = group.pieces[group.next_piece].bytes - group.next_byte;
  const int64_t bytes = std::min(left, limits_.request_bytes);
  const bool fits =
      lane.requests_in_flight == 0 || (lane.requests_in_flight < limits_.requests_in_flight &&
                                       lane.bytes_in_flight + bytes <= limits_.bytes_in_flight);
  return fits ? std::optional<int64_t>(bytes) : std::nullopt;
}

Request RequestQueue::issue(Lane& lane, int64_t bytes) {
  const std::shared_ptr<Group> group = lane.queued.front();
  const Group::Piece& piece = group->pieces[group->next_piece];
  Request request;
  request.group = group;
  request.file = piece.file.get();
  request.direction = group->direction;
  request.offset = piece.offset + group->next_byte;
  request.bytes = bytes;
  request.required_bytes = std::clamp<int64_t>(piece.required_bytes - group->next_byte, 0, bytes);
  request.memory = piece.memory + group->next_byte;
  request.is_direct = piece.file->is_direct;

  ++group->in_flight;
  group->next_byte += bytes;
  if (group->next_byte == piece.bytes) {
    group->next_byte = 0;
    if (++group->next_piece == group->pieces.size()) leave_queue(lane);
  }
  ++requests_;
  if (lane.requests_in_flight++ == 0) lane.busy_since = Clock::now();
  lane.bytes_in_flight += bytes;
  max_bytes_in_flight_ =
      std::max(max_bytes_in_flight_, lanes_[0].bytes_in_flight + lanes_[1].bytes_in_flight);
  return request;
}

std::optional<Request> RequestQueue::next() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[turn_];
    turn_ = (turn_ + 1) % lanes_.size();
    if (const std::optional<int64_t> bytes = issuable(lane)) return issue(lane, *bytes);
  }
  return std::nullopt;
}

bool RequestQueue::can_issue() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [this](const Lane& lane) { return issuable(lane).has_value(); });
}

void RequestQueue::end(const Request& request, int64_t moved, std::exception_ptr error) {
  Lane& from = lane(request.direction);
  from.bytes_in_flight -= request.bytes;
  from.bytes_moved += moved;
  if (--from.requests_in_flight == 0) {
    from.busy_seconds += std::chrono::duration<double>(Clock::now() - from.busy_since).count();
  }
  Group& group = *request.group;
  if (error && !group.error) group.error = std::move(error);
  --group.in_flight;
  if (group.is_queued) {
    if (!group.error) return;
    SLUICE_ASSERT(from.queued.front() == request.group, "a partly issued group is at the front");
    leave_queue(from);
  } else if (group.in_flight == 0) {
    finished_.push_back(request.group);
  }
}

void RequestQueue::cancel(const Error& error) {
  for (Lane& lane : lanes_) {
    while (!lane.queued.empty()) {
      lane.queued.front()->error = std::make_exception_ptr(error);
      leave_queue(lane);
    }
  }
}

std::vector<std::shared_ptr<Group>> RequestQueue::take_finished() {
  return std::exchange(finished_, {});
}

bool RequestQueue::is_idle() const noexcept {
  return finished_.empty() && std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
           return lane.queued.empty() && lane.requests_in_flight == 0;
         });
}

double RequestQueue::busy_seconds(const Lane& lane, Clock::time_point now) {
  if (lane.requests_in_flight == 0) return lane.busy_seconds;
  return lane.busy_seconds + std::chrono::duration<double>(now - lane.busy_since).count();
}

EngineCounters RequestQueue::counters() const {
  const Clock::time_point now = Clock::now();
  EngineCounters counters;
  counters.read_bytes = lanes_[0].bytes_moved;
  counters.written_bytes = lanes_[1].bytes_moved;
  counters.requests = requests_;
  counters.read_busy_seconds = busy_seconds(lanes_[0], now);
  counters.write_busy_seconds = busy_seconds(lanes_[1], now);
  counters.max_bytes_in_flight = max_bytes_in_flight_;
  return counters;
}

}  // namespace sluice::io
