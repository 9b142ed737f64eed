#include "tools/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace sluice::tools {

namespace {
constexpr int kFirstSocket = 3;  // SD_LISTEN_FDS_START

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  std::string out = value ? value : "";
  ::unsetenv(name);
  return out;
}
}  // namespace

ServiceManager::ServiceManager() {
  const std::string pid = take_variable("LISTEN_PID");
  const std::string count = take_variable("LISTEN_FDS");
  take_variable("LISTEN_FDNAMES");
  // Of another process that this one was started by: they are not for us.
  if (pid == std::to_string(::getpid())) listeners_ = std::atoi(count.c_str());
  notify_path_ = take_variable("NOTIFY_SOCKET");
}

std::optional<http::Listener> ServiceManager::take_listener() {
  const int count = std::exchange(listeners_, 0);
  if (count <= 0) return std::nullopt;
  if (count > 1)
    throw Error(ErrorKind::kUser,
                fmt::format("{} sockets were handed over, and a server listens at one", count),
                "name one address in the socket unit (ListenStream=)");
  return http::Listener::adopt(kFirstSocket);
}

void ServiceManager::notify(std::string_view state) const noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (notify_path_.empty() || notify_path_.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, notify_path_.data(), notify_path_.size());
  // "@name" is one that has no file.
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_path_.size());
  ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           reinterpret_cast<const sockaddr*>(&address), bytes);
  ::close(fd);
}

}  // namespace sluice::tools
