#pragma once
// One caller of the server: reads its requests, has them run, writes their answers, each within its
// time.
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "src/http/answer_writer.h"
#include "src/http/byte_budget.h"
#include "src/http/pump.h"
#include "src/http/request_reader.h"
#include "src/http/router.h"
#include "src/http/server_core.h"

namespace sluice::http {

/// All in the loop's thread, but where it says otherwise.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server::Impl& server, StreamSocket socket, bool is_extra)
      : server_(server),
        socket_(std::move(socket)),
        timer_(server.loop),
        reader_({server.options.most_head_bytes, server.options.most_body_bytes}),
        writer_(headers_),
        is_extra_(is_extra) {}

  void start();
  void close();
  /// Ends behind the request that runs, or now.
  void end_soon();

 private:
  enum class Phase : uint8_t {
    kIdle,
    kHead,
    kBody,
    kRouted,   ///< a route has the request, or its answer is written
    kLeaving,  ///< all is said; what still comes is thrown away
    kClosed
  };

  void rest(Phase phase, std::chrono::milliseconds time);
  void unrest();
  void set_deadline(std::chrono::milliseconds time);
  void on_deadline();
  void watch();
  void watch_for_reset();
  void on_readable();
  void on_input_end();
  void go_on();
  bool on_head();
  bool take_room();
  void refuse(int status, const std::string& message);
  void refuse(Response response);
  void dispatch();
  void respond(Response response);
  void on_piece(Piece piece);
  void write_whole(const Response& response);
  void flush();
  void write_some();
  void on_written();
  std::chrono::milliseconds body_time() const;
  std::string peer();

  Server::Impl& server_;
  StreamSocket socket_;
  asio::steady_timer timer_;
  RequestReader reader_;
  Fields headers_;  // of the answer to this request
  AnswerWriter writer_;
  const bool is_extra_;
  Phase phase_ = Phase::kIdle;
  struct {
    std::list<Connection*>* list = nullptr;
    std::list<Connection*>::iterator place;
  } rests_in_;  // the server's list that it stands in, where it does
  Clock::time_point body_begin_;
  std::optional<Router::Match> route_;
  std::optional<Response> refusal_;  // goes out when the body is read
  std::shared_ptr<ByteShare> share_;
  std::shared_ptr<Pump> pump_;
  AnswerWriter::Bytes writing_;
  size_t written_ = 0;
  int64_t number_ = 0;  // of requests so far
  bool is_watching_ = false, is_writing_ = false, has_input_ended_ = false;
  bool closes_ = false, is_answered_ = false, is_probed_ = false;
  std::atomic<bool> is_gone_ = false;  // closed: for threads that have yet to begin on its request
};

}  // namespace sluice::http
