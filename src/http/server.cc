#include "src/http/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "src/base/error.h"
#include "src/http/connection.h"
#include "src/http/server_core.h"

namespace sluice::http {

namespace {
constexpr int kBacklog = 1024;
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
  acceptor.async_accept([this](const SystemError& code, tcp::socket socket) {
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
    if (!resting.empty()) resting.front()->close();
    timer.expires_after(kAcceptAgain);
    timer.async_wait([this](const SystemError& end) {
      if (!end && !is_stopping) accept();
    });
  });
}

void Server::Impl::admit(tcp::socket socket) {
  const auto most = static_cast<size_t>(options.most_connections);
  if (connections.size() >= most + kReservedConnections) {
    if (resting.empty()) {
      const Response full = runner.busy(kTooMany);
      SystemError error;
      socket.non_blocking(true, error);
      const std::string text =
          head_text(full, fmt::format("Content-Length: {}\r\n", full.body.size()), true) +
          full.body;
      socket.write_some(asio::buffer(text), error);
      return;
    }
    resting.front()->close();
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
  Impl& impl = *impl_;
  const std::string& host = impl.options.host;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUser,
                fmt::format("can't listen on {}:{}: {}", host, impl.options.port, why),
                "choose another `port` (0: any that is free) or `host`; something may listen there "
                "already");
  };
  SystemError error;
  tcp::resolver resolver(impl.loop);
  const auto found =
      resolver.resolve(host, std::to_string(impl.options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) refuse(error.message());
  for (const auto& entry : found) {
    const tcp::endpoint endpoint = entry.endpoint();
    impl.acceptor.close(error);
    impl.acceptor.open(endpoint.protocol(), error);
    // Not SO_REUSEPORT: a second server on the port would share it unseen.
    if (!error) impl.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) impl.acceptor.bind(endpoint, error);
    if (!error) impl.acceptor.listen(kBacklog, error);
    if (!error) return impl.acceptor.local_endpoint().port();
  }
  refuse(error ? error.message() : "no such address");
  return -1;
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
