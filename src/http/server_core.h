#pragma once
// What the server and its connections share; in the event loop's thread, but where it says
// otherwise.
#include <array>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <set>
#include <string>

#include "src/http/byte_budget.h"
#include "src/http/crew.h"
#include "src/http/route_runner.h"
#include "src/http/server.h"

namespace sluice::http {

namespace asio = boost::asio;
using StreamSocket = asio::generic::stream_protocol::socket;  // of TCP or of the file system
using SystemError = boost::system::error_code;

constexpr const char* kTooMany = "too many connections; try again later";

class Connection;

/// What a server's connections share.
struct Server::Impl {
  Impl(Router routes, ServerOptions chosen);

  void accept();
  void admit(StreamSocket socket);
  /// Who makes way for a new caller: the connection that has sent nothing for longest, else that
  /// without a whole request for longest; null: all have requests that are answered.
  Connection* least_wanted() const;
  void halt();
  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  const Router router;
  ServerOptions options;
  const RouteRunner runner{options.most_body_bytes, options.refusal, options.log};
  ByteBudget budget;
  // Crews before the loop: what they post is dropped with it.
  Crew answers{"answers", 1}, reserved{"reserved", 1}, work{"requests", 4}, large{"large", 2};
  asio::io_context loop{1};
  asio::basic_socket_acceptor<asio::generic::stream_protocol> acceptor{loop};
  asio::steady_timer timer{loop};
  std::set<std::shared_ptr<Connection>> connections;
  std::list<Connection*> silent;   ///< that have sent nothing, the oldest first
  std::list<Connection*> resting;  ///< without a whole request, who has been so longest first
  std::array<char, 64 << 10> scratch;
  bool is_stopping = false;
};

}  // namespace sluice::http
