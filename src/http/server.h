#pragma once
// An HTTP/1.1 server on one thread that waits for all connections at once, so that none delays
// another: slow callers cost a little memory and end at their deadlines. Routes that take time run
// in crews beside it; answers come whole or as they are made (message.h). Bounded in connections,
// heads, bodies and the bytes of all bodies together. Thread safe.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/http/listener.h"
#include "src/http/message.h"
#include "src/http/router.h"

namespace sluice::http {

/// Where a server listens and what it bears.
struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  ///< 0: any that is free
  /// At most so many connections, as far as the process may have files. From there on a new one
  /// takes the place of the one that has sent nothing for longest, else of the one without a whole
  /// request for longest. While all have one, some more are let in, but only routes of Place::kLoop
  /// and kReserved answer them.
  int most_connections = 4096;
  int64_t most_head_bytes = 16 << 10;
  int64_t most_body_bytes = 32 << 20;           ///< also of a compressed one, decoded
  int64_t most_bytes_together = 128 << 20;      ///< of all bodies that have not been answered
  std::chrono::milliseconds head_time{10000};   ///< from a head's first byte to its last
  std::chrono::milliseconds body_time{30000};   ///< and a second for each 64 KiB that have come
  std::chrono::milliseconds idle_time{60000};   ///< between two requests
  std::chrono::milliseconds write_time{30000};  ///< without taking a byte of its answer
  std::chrono::milliseconds stop_time{10000};   ///< that requests get once stop() is called
  /// Headers of the answer to a request, by its head; may be empty.
  std::function<Fields(const Request&)> headers;
  /// Looks at a request's head before its body is read; what it gives is the answer. May be empty.
  std::function<std::optional<Response>(const Request&)> screen;
  /// The answer to what no route sees, in the routes' form.
  std::function<Response(int status, const std::string& message)> refusal;
  std::function<void(std::string_view)> log;  ///< one line at a time; may be empty
};

class Server {
 public:
  Server(Router router, ServerOptions options);
  /// After serve() has returned, if it was called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Listens at the options' address; returns the port. Errors: as Listener::open.
  int bind();
  /// Listens where `listener` does, which may go.
  void listen(const Listener& listener);
  /// Serves until stop() and the end of what runs then. After bind() or listen(), once.
  void serve();
  /// Takes no more connections; those there end with their requests. From any thread.
  void stop();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::http
