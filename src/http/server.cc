#include "src/http/server.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "src/http/connection.h"
#include "src/http/server_core.h"

namespace sluice::http {

namespace {
constexpr int kReservedConnections = 64;  // beyond the most, for routes that never wait
constexpr int kKeptFiles = 128;           // that connections leave to the rest of the process
constexpr std::chrono::milliseconds kAcceptAgain{100};
}  // namespace

Server::Impl::Impl(Router routes, ServerOptions chosen)
    : router(std::move(routes)), options(std::move(chosen)), budget(options.most_bytes_together) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const auto allowed = static_cast<int64_t>(std::min<rlim_t>(files.rlim_cur, 1 << 20)) -
                       kReservedConnections - kKeptFiles;
  if (allowed >= options.most_connections) return;
  options.most_connections = static_cast<int>(std::max<int64_t>(allowed, 1));
  log(fmt::format("at most {} connections: the process may have {} open files (ulimit -n)",
                  options.most_connections, files.rlim_cur));
}

void Server::Impl::accept() {
  acceptor.async_accept([this](const SystemError& code, StreamSocket socket) {
    if (is_stopping || !acceptor.is_open()) return;
    if (!code) {
      try {
        admit(std::move(socket));
      } catch (const std::exception& error) {
        log(fmt::format("a connection was not taken: {}", error.what()));
      }
      return accept();
    }
    // No file is left: who has waited longest makes room.
    if (Connection* last = least_wanted()) last->close();
    timer.expires_after(kAcceptAgain);
    timer.async_wait([this](const SystemError& end) {
      if (!end && !is_stopping) accept();
    });
  });
}

Connection* Server::Impl::least_wanted() const {
  if (!silent.empty()) return silent.front();
  return resting.empty() ? nullptr : resting.front();
}

void Server::Impl::admit(StreamSocket socket) {
  const auto most = static_cast<size_t>(options.most_connections);
  if (connections.size() >= most)
    if (Connection* last = least_wanted()) last->close();
  if (connections.size() >= most + kReservedConnections) {
    const Response full = runner.busy(kTooMany);
    SystemError error;
    socket.non_blocking(true, error);
    const std::string text =
        head_text(full, fmt::format("Content-Length: {}\r\n", full.body.size()), true) + full.body;
    socket.write_some(asio::buffer(text), error);
    return;
  }
  auto connection =
      std::make_shared<Connection>(*this, std::move(socket), connections.size() >= most);
  connections.insert(connection);
  connection->start();
}

void Server::Impl::halt() {
  if (std::exchange(is_stopping, true)) return;
  SystemError error;
  acceptor.close(error);
  const auto all = connections;
  for (const auto& connection : all) connection->end_soon();
  timer.expires_after(options.stop_time);
  timer.async_wait([this](const SystemError& end) {
    if (end) return;
    const auto left = connections;
    for (const auto& connection : left) connection->close();
  });
  if (connections.empty()) timer.cancel();
}

Server::Server(Router router, ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(router), std::move(options))) {}

Server::~Server() {
  Impl& impl = *impl_;
  for (Crew* crew : {&impl.large, &impl.work, &impl.reserved}) crew->finish();
  const auto left = impl.connections;
  for (const auto& connection : left) connection->close();
  impl.answers.finish();  // the answers of those connections go in its thread
}

int Server::bind() {
  const Listener listener = Listener::open(impl_->options.host, impl_->options.port);
  listen(listener);
  return listener.port();
}

void Server::listen(const Listener& listener) {
  const int fd = listener.duplicate();
  int family = AF_UNSPEC;
  socklen_t bytes = sizeof family;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes);
  impl_->acceptor.assign(asio::generic::stream_protocol(family, 0), fd);
}

void Server::serve() {
  pthread_setname_np(pthread_self(), "http");
  impl_->accept();
  impl_->loop.run();
}

void Server::stop() {
  asio::post(impl_->loop, [impl = impl_.get()] { impl->halt(); });
}

}  // namespace sluice::http
