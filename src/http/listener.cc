#include "src/http/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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

std::string reason() { return std::generic_category().message(errno); }

sockaddr_storage address_of(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return address;
}

int port_of(int fd) {
  const sockaddr_storage address = address_of(fd);
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

int option_of(int fd, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
}

ino_t inode_of(const std::string& path) {
  struct stat state {};
  return ::lstat(path.c_str(), &state) == 0 ? state.st_ino : 0;
}

// A descriptor that is closed with its scope.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void refuse_path(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kUser, fmt::format("can't listen at {}: {}", path, why),
              "choose another `unix_socket`, in a folder that exists and may be written to");
}

// A socket at the path that nobody listens at is taken away; any other file stays, and is told.
void clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat state {};
  if (::lstat(path.c_str(), &state) != 0) return;
  if (!S_ISSOCK(state.st_mode)) refuse_path(path, "a file that is no socket lies there");
  const File probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool is_refused =
      ::connect(probe.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0;
  // EAGAIN: somebody listens whose queue is full.
  if (!is_refused || errno == EAGAIN) refuse_path(path, "somebody listens there already");
  if (errno != ECONNREFUSED || ::unlink(path.c_str()) != 0) refuse_path(path, reason());
}
}  // namespace

Listener::Listener(int fd) : fd_(fd), port_(port_of(fd)) {}

Listener Listener::open_unix(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    refuse_path(path, fmt::format("a socket's path has 1 to {} bytes, this one {}",
                                  sizeof address.sun_path - 1, path.size()));
  std::memcpy(address.sun_path, path.data(), path.size());
  // Two that start at once look at the path one after the other.
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const File lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.fd() < 0 || ::flock(lock.fd(), LOCK_EX) != 0) refuse_path(path, reason());
  clear_path(path, address);
  File socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Nobody gets in between: before listen() whoever connects is refused.
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    refuse_path(path, reason());
  if (::chmod(path.c_str(), mode) != 0 || ::listen(socket.fd(), kBacklog) != 0) {
    const std::string why = reason();
    ::unlink(path.c_str());
    refuse_path(path, why);
  }
  Listener out(socket.release());
  out.path_ = path;
  out.inode_ = inode_of(path);
  return out;
}

Listener Listener::adopt(int fd) {
  const int family = option_of(fd, SO_DOMAIN);
  if (option_of(fd, SO_TYPE) != SOCK_STREAM || option_of(fd, SO_ACCEPTCONN) != 1 ||
      (family != AF_INET && family != AF_INET6 && family != AF_UNIX))
    throw Error(ErrorKind::kUser,
                fmt::format("file descriptor {} is no stream socket that listens", fd),
                "hand over one that does, of TCP or of the file system (Accept=no)");
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return Listener(fd);
}

bool Listener::is_unix() const { return address_of(fd_).ss_family == AF_UNIX; }

std::string Listener::address() const {
  const sockaddr_storage address = address_of(fd_);
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_UNIX) {
    const auto& local = reinterpret_cast<const sockaddr_un&>(address);
    return {local.sun_path, ::strnlen(local.sun_path, sizeof local.sun_path)};
  }
  const void* bytes =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  ::inet_ntop(address.ss_family, bytes, text, sizeof text);
  return text;
}

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
      if (fd >= 0) return Listener(fd);
      why = reason();
    }
  }
  throw Error(ErrorKind::kUser, fmt::format("can't listen on {}:{}: {}", host, port, why),
              "choose another `port` (0: any that is free) or `host`; something may listen there "
              "already");
}

Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      port_(other.port_),
      path_(std::exchange(other.path_, {})),
      inode_(other.inode_) {}

Listener::~Listener() {
  if (fd_ < 0) return;
  // Another's file may lie there by now.
  if (!path_.empty() && inode_of(path_) == inode_) ::unlink(path_.c_str());
  ::close(fd_);
}

int Listener::duplicate() const {
  const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    throw Error(ErrorKind::kResource, fmt::format("no further file can be opened: {}", reason()));
  return fd;
}

}  // namespace sluice::http
