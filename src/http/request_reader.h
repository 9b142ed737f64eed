#pragma once
// Reads HTTP/1.1 requests out of bytes as they come: heads and bodies, with Content-Length or
// chunked, one behind the other; bounded in what it keeps. Bytes in, values out: no sockets. One
// thread.
#include <memory>
#include <string>
#include <string_view>

#include "src/http/message.h"

namespace sluice::http {

/// How much of a request is read; more is refused.
struct ReaderLimits {
  int64_t head_bytes = 16 << 10;  ///< of the head; of a chunk's size and of trailers as well
  int64_t body_bytes = 32 << 20;
};

class RequestReader {
 public:
  enum class State : uint8_t {
    kIdle,      ///< nothing of a request has come
    kHead,      ///< some of its head
    kHeadDone,  ///< head() may be looked at; read() goes on with the body
    kBody,      ///< some of its body
    kDone,      ///< take() gives it
    kFailed     ///< these bytes are no request that is taken: failure() says why
  };
  struct Failure {
    int status = 400;
    std::string message;
  };

  explicit RequestReader(ReaderLimits limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Keeps bytes for read().
  void add(std::string_view bytes);
  /// Reads on as far as the bytes go; stops once behind the head.
  State read();
  State state() const noexcept { return state_; }
  const Failure& failure() const noexcept { return failure_; }

  /// From kHeadDone on: all but the body.
  const Request& head() const noexcept { return request_; }
  bool is_head_request() const noexcept { return is_head_; }  ///< the method was HEAD
  bool is_http_1_0() const noexcept { return is_http_1_0_; }
  bool keeps_alive() const noexcept { return keeps_alive_; }  ///< the caller may ask again
  bool expects_continue() const noexcept { return expects_continue_; }
  bool is_chunked() const noexcept { return is_chunked_; }
  int64_t declared_bytes() const noexcept { return declared_bytes_; }  ///< Content-Length, or 0
  int64_t body_bytes() const noexcept;                                 ///< of the body so far
  int64_t buffered_bytes() const noexcept { return static_cast<int64_t>(bytes_.size()); }

  /// At kDone: the request; what came behind it is read next.
  Request take();

 private:
  struct Parser;
  State fail(int status, std::string message);
  State finish_head();

  ReaderLimits limits_;
  std::unique_ptr<Parser> parser_;
  std::string bytes_;  // not read yet
  State state_ = State::kIdle;
  Failure failure_;
  Request request_;
  bool is_head_ = false, is_http_1_0_ = false, keeps_alive_ = true, expects_continue_ = false;
  bool is_chunked_ = false;
  int64_t declared_bytes_ = 0;
};

}  // namespace sluice::http
