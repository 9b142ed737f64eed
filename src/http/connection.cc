#include "src/http/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "src/http/content_encoding.h"

namespace sluice::http {

namespace {
constexpr int64_t kLargeBody = 256 << 10;   // from here on in a crew of its own
constexpr int64_t kTrimmedBody = 1 << 20;   // from here on memory is given back when it is done
constexpr int64_t kSkippedBody = 64 << 10;  // a refused body that is read rather than cut off
constexpr int64_t kMostAhead = 16 << 10;    // of later requests, while one is answered
constexpr int kReadsAtOnce = 4;             // of one connection before others have their turn
constexpr int64_t kLeastBytesPerSecond = 64 << 10;  // of a body
constexpr std::chrono::seconds kLinger{2};          // for a refused caller to take its answer
constexpr size_t kWrittenAtOnce = 256 << 10;
}  // namespace

void Connection::start() {
  SystemError error;
  socket_.non_blocking(true, error);
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  // A caller whose machine is gone says nothing more.
  socket_.set_option(asio::socket_base::keep_alive(true), error);
  using Count = int;
  const std::pair<int, Count> probes[] = {
      {TCP_KEEPIDLE, 60}, {TCP_KEEPINTVL, 10}, {TCP_KEEPCNT, 3}};
  for (const auto& [name, value] : probes)
    ::setsockopt(socket_.native_handle(), IPPROTO_TCP, name, &value, sizeof value);
  watch_for_reset();
  rest(Phase::kIdle, server_.options.idle_time);
  watch();
}

// The loop may hand on what was seen of a caller that has gone, where this one has its place: what
// the socket itself says decides.
void Connection::watch_for_reset() {
  socket_.async_wait(StreamSocket::wait_error,
                     [self = shared_from_this()](const SystemError& code) {
                       if (code || self->phase_ == Phase::kClosed) return;
                       pollfd state{self->socket_.native_handle(), 0, 0};
                       if (::poll(&state, 1, 0) > 0) return self->close();
                       self->watch_for_reset();
                     });
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  is_gone_ = true;
  unrest();
  SystemError error;
  socket_.close(error);
  timer_.cancel();
  if (pump_) pump_->close();
  pump_.reset();
  share_.reset();
  server_.connections.erase(shared_from_this());
  if (server_.is_stopping && server_.connections.empty()) server_.timer.cancel();
}

void Connection::end_soon() {
  closes_ = true;
  if (phase_ != Phase::kRouted) close();
}

void Connection::rest(Phase phase, std::chrono::milliseconds time) {
  unrest();
  phase_ = phase;
  const bool is_silent = phase == Phase::kIdle && number_ == 0;
  rests_in_.list = is_silent ? &server_.silent : &server_.resting;
  rests_in_.place = rests_in_.list->insert(rests_in_.list->end(), this);
  set_deadline(time);
}

void Connection::unrest() {
  if (rests_in_.list) rests_in_.list->erase(rests_in_.place);
  rests_in_.list = nullptr;
}

void Connection::set_deadline(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](const SystemError& code) {
    if (!code && self->phase_ != Phase::kClosed) self->on_deadline();
  });
}

// What a body may take in all, by what has come of it.
std::chrono::milliseconds Connection::body_time() const {
  return server_.options.body_time +
         std::chrono::milliseconds(1000 * reader_.body_bytes() / kLeastBytesPerSecond);
}

void Connection::on_deadline() {
  if (Clock::now() < timer_.expiry()) return;  // moved since
  switch (phase_) {
    case Phase::kHead: return refuse(408, "the head of the request did not come in time");
    case Phase::kBody: {
      const auto left = body_begin_ + body_time() - Clock::now();
      if (left <= Clock::duration::zero())
        return refuse(408, "the body of the request did not come in time");
      return set_deadline(std::chrono::duration_cast<std::chrono::milliseconds>(left) +
                          std::chrono::milliseconds(1));
    }
    case Phase::kRouted:
      if (is_writing_) close();  // it does not take its answer
      return;
    default: close();
  }
}

void Connection::watch() {
  if (is_watching_ || has_input_ended_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kRouted && reader_.buffered_bytes() >= kMostAhead) return;
  is_watching_ = true;
  socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](const SystemError& code) {
    self->is_watching_ = false;
    if (code || self->phase_ == Phase::kClosed) return;
    try {
      self->on_readable();
      self->watch();
    } catch (const std::exception& error) {
      self->server_.log(fmt::format("a connection was closed: {}", error.what()));
      self->close();
    }
  });
}

void Connection::on_readable() {
  for (int i = 0; i < kReadsAtOnce && phase_ != Phase::kClosed; ++i) {
    if (phase_ == Phase::kRouted && reader_.buffered_bytes() >= kMostAhead) return;
    SystemError error;
    const size_t read = socket_.read_some(asio::buffer(server_.scratch), error);
    if (error == asio::error::would_block || error == asio::error::try_again) return;
    if (error == asio::error::eof) return on_input_end();
    if (error) return close();
    if (phase_ == Phase::kLeaving) continue;
    reader_.add({server_.scratch.data(), read});
    if (phase_ != Phase::kRouted) go_on();
  }
}

// Whether a caller has left or only says no more, nobody can tell without writing: one that is gone
// answers that with a reset. Any answer may begin with "100 Continue" (RFC 9110, 15.2).
void Connection::on_input_end() {
  has_input_ended_ = true;
  if (phase_ != Phase::kRouted) return close();
  if (std::exchange(is_probed_, true)) return;
  if (writer_.has_begun()) {
    if (pump_) pump_->probe();
  } else if (!writer_.is_http_1_0()) {
    writer_.go_on();
    flush();
  }
}

void Connection::go_on() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHead || phase_ == Phase::kBody) {
    switch (reader_.read()) {
      case RequestReader::State::kIdle: return;
      case RequestReader::State::kHead:
        if (phase_ == Phase::kIdle) rest(Phase::kHead, server_.options.head_time);
        return;
      case RequestReader::State::kHeadDone:
        if (!on_head()) return;
        break;
      case RequestReader::State::kBody: take_room(); return;
      case RequestReader::State::kDone:
        if (take_room()) dispatch();
        return;
      case RequestReader::State::kFailed:
        return refuse(reader_.failure().status, reader_.failure().message);
    }
  }
}

// False: the connection is on its end.
bool Connection::on_head() {
  const Request& head = reader_.head();
  writer_.begin_request(reader_.is_head_request(), reader_.is_http_1_0());
  ++number_;
  closes_ = closes_ || reader_.is_http_1_0() || !reader_.keeps_alive();
  is_answered_ = is_probed_ = false;
  if (server_.options.headers) headers_ = server_.options.headers(head);
  refusal_.reset();
  share_ = std::make_shared<ByteShare>(server_.budget);
  body_begin_ = Clock::now();
  route_ = server_.router.find(head.method, head.path);
  const auto refusal = [&]() -> std::optional<Response> {
    const ServerOptions& options = server_.options;
    if (options.screen)
      if (auto answer = options.screen(head)) return answer;
    if (!route_)
      return options.refusal(
          404, fmt::format("there is no {} {}", head.method, head.path.substr(0, 200)));
    if (!is_known_encoding(head.header("Content-Encoding")))
      return options.refusal(415, "of content encodings gzip and deflate are understood");
    if (is_extra_ && route_->place == Place::kWork) return server_.runner.busy(kTooMany);
    return std::nullopt;
  };
  refusal_ = refusal();
  const bool is_short = !reader_.is_chunked() && reader_.declared_bytes() <= kSkippedBody;
  if (refusal_ && (!is_short || reader_.expects_continue())) {
    refuse(*std::exchange(refusal_, std::nullopt));
    return false;
  }
  rest(Phase::kBody, server_.options.body_time);
  if (reader_.expects_continue() && reader_.buffered_bytes() == 0) {
    writer_.go_on();
    flush();
  }
  return true;
}

// False: the bodies of all callers are too many bytes already.
bool Connection::take_room() {
  if (share_->grow_to(reader_.body_bytes())) return true;
  refuse(server_.runner.busy(kNoRoom));
  return false;
}

void Connection::refuse(int status, const std::string& message) {
  refuse(server_.options.refusal(status, message));
}

// Answers before the request is read: nothing behind it can be understood.
void Connection::refuse(Response response) {
  unrest();
  phase_ = Phase::kRouted;
  closes_ = true;
  share_.reset();
  writer_.begin_request(false, false);
  is_answered_ = false;
  write_whole(response);
}

// Of a socket of the file system: whose process it is that called.
std::string Connection::peer() {
  const int fd = socket_.native_handle();
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  if (address.ss_family == AF_UNIX) {
    ucred caller{};
    bytes = sizeof caller;
    ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &caller, &bytes);
    return fmt::format("unix:{}", caller.uid);
  }
  char text[INET6_ADDRSTRLEN] = "";
  const void* number =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  ::inet_ntop(address.ss_family, number, text, sizeof text);
  return text;
}

void Connection::dispatch() {
  unrest();
  timer_.cancel();
  phase_ = Phase::kRouted;
  Request request = reader_.take();
  if (refusal_) {
    share_.reset();
    return respond(*std::exchange(refusal_, std::nullopt));
  }
  request.parts = std::move(route_->parts);
  request.peer = peer();
  const Handler& handler = *route_->handler;
  if (route_->place == Place::kLoop)
    return respond(server_.runner.run(handler, std::move(request), *share_));
  const auto bytes = static_cast<int64_t>(request.body.size());
  const bool is_large = bytes >= kLargeBody || !request.header("Content-Encoding").empty();
  Crew& crew = route_->place == Place::kReserved ? server_.reserved
               : is_large                        ? server_.large
                                                 : server_.work;
  auto shared = std::make_shared<Request>(std::move(request));
  crew.post([self = shared_from_this(), shared, share = std::exchange(share_, nullptr), &handler,
             bytes]() mutable {
    auto response = std::make_shared<Response>();
    // Of a caller that has left nothing is done.
    if (!self->is_gone_) *response = self->server_.runner.run(handler, std::move(*shared), *share);
    share.reset();
    shared.reset();
    if (bytes >= kTrimmedBody) ::malloc_trim(0);
    asio::io_context& loop = self->server_.loop;
    asio::post(loop, [self = std::move(self), response] { self->respond(std::move(*response)); });
  });
}

void Connection::respond(Response response) {
  if (phase_ != Phase::kRouted) return;  // the caller has left
  if (!response.live) return write_whole(response);
  pump_ = Pump::start(
      server_.answers, std::move(response.live),
      [weak = weak_from_this(), number = number_, &loop = server_.loop](Piece piece) {
        asio::post(loop, [weak, number, piece = std::make_shared<Piece>(std::move(piece))] {
          const auto self = weak.lock();
          if (self && self->number_ == number) self->on_piece(std::move(*piece));
        });
      });
}

void Connection::on_piece(Piece piece) {
  if (phase_ != Phase::kRouted || writer_.has_ended()) return;
  switch (piece.kind) {
    case Piece::Kind::kWhole: return write_whole(piece.response);
    case Piece::Kind::kBegin: writer_.begin(piece.response, closes_); break;
    case Piece::Kind::kMore: writer_.more(piece.bytes); break;
    case Piece::Kind::kEnd: writer_.end(piece.bytes); break;
    case Piece::Kind::kBroken:
      if (!writer_.has_begun())
        return write_whole(
            server_.options.refusal(500, "an error of the server's own; its log says more"));
      return close();
    case Piece::Kind::kNothingYet: return;
  }
  flush();
}

void Connection::write_whole(const Response& response) {
  writer_.whole(response, closes_);
  flush();
}

void Connection::flush() {
  if (is_writing_ || phase_ == Phase::kClosed) return;
  if (writer_.is_empty()) {
    if (writer_.has_ended()) on_written();
    return;
  }
  is_writing_ = true;
  writing_ = writer_.take();
  written_ = 0;
  write_some();
}

void Connection::write_some() {
  if (phase_ == Phase::kRouted) set_deadline(server_.options.write_time);
  const asio::const_buffer rest(writing_.bytes.data() + written_,
                                std::min(writing_.bytes.size() - written_, kWrittenAtOnce));
  socket_.async_write_some(rest,
                           [self = shared_from_this()](const SystemError& code, size_t bytes) {
                             if (self->phase_ == Phase::kClosed) return;
                             if (code) return self->close();
                             self->written_ += bytes;
                             if (self->written_ < self->writing_.bytes.size())
                               return self->write_some();
                             self->is_writing_ = false;
                             if (self->pump_) self->pump_->written(self->writing_.live_bytes);
                             self->writing_ = {};
                             self->flush();
                             self->watch();
                           });
}

// All of an answer is out.
void Connection::on_written() {
  if (phase_ != Phase::kRouted || std::exchange(is_answered_, true)) return;
  timer_.cancel();
  if (pump_) pump_->close();
  pump_.reset();
  if (closes_ || server_.is_stopping || (has_input_ended_ && reader_.buffered_bytes() == 0)) {
    SystemError error;
    socket_.shutdown(StreamSocket::shutdown_send, error);
    if (has_input_ended_ || error) return close();
    rest(Phase::kLeaving, kLinger);
    return watch();
  }
  rest(Phase::kIdle, server_.options.idle_time);
  go_on();
  if (has_input_ended_ && phase_ != Phase::kRouted) return close();
  watch();
}

}  // namespace sluice::http
