#pragma once
// Answers at a server's address while its model is loaded: 503 with how far that is, to whatever is
// asked. Load balancers and scripts learn that the server lives and is not ready.
#include <atomic>
#include <cstdint>
#include <thread>

#include "src/http/listener.h"
#include "src/http/server.h"
#include "src/serve/http_server.h"

namespace sluice::serve {

class WaitingRoom {
 public:
  /// Answers at `listener`, to whom the server of `options` will.
  WaitingRoom(const http::Listener& listener, const HttpOptions& options);
  ~WaitingRoom() { close(); }
  WaitingRoom(const WaitingRoom&) = delete;
  WaitingRoom& operator=(const WaitingRoom&) = delete;

  /// Weights that are there, of all that are loaded. From any thread.
  void tell(int64_t done_bytes, int64_t total_bytes) noexcept;
  /// Answers nobody any more; who comes waits for the next server at the address.
  void close();

 private:
  http::ServerOptions server_options(const HttpOptions& options) const;
  http::Response answer(const http::Request& head) const;

  std::atomic<int64_t> done_bytes_ = 0, total_bytes_ = 0;
  http::Server server_;
  std::jthread thread_;
};

}  // namespace sluice::serve
