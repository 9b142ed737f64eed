#include "src/http/listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "src/base/error.h"

namespace sluice::http {

namespace {
constexpr int kBacklog = 1024;

// -1, and errno says why.
int listen_at(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  // Not SO_REUSEPORT: a second server on the port would share it unseen.
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0)
    return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}
}  // namespace

Listener Listener::open(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  std::string why;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    why = ::gai_strerror(error);
  } else {
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
    for (const addrinfo* one = found; one; one = one->ai_next) {
      const int fd = listen_at(*one);
      if (fd >= 0) return {fd, port_of(fd)};
      why = std::generic_category().message(errno);
    }
  }
  throw Error(ErrorKind::kUser, fmt::format("can't listen on {}:{}: {}", host, port, why),
              "choose another `port` (0: any that is free) or `host`; something may listen there "
              "already");
}

Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

Listener::~Listener() {
  if (fd_ >= 0) ::close(fd_);
}

int Listener::duplicate() const {
  const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    throw Error(ErrorKind::kResource, fmt::format("no further file can be opened: {}",
                                                  std::generic_category().message(errno)));
  return fd;
}

}  // namespace sluice::http
