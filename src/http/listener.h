#pragma once
// A socket that callers connect to, open before any server answers there: a port that is taken is
// told at once, and several servers may answer one after the other while callers wait in between.
#include <string>

namespace sluice::http {

/// Owns the socket.
class Listener {
 public:
  /// Binds and listens. `port` 0: any that is free. Errors: kUser when address or port can't be
  /// had.
  static Listener open(const std::string& host, int port);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int port() const noexcept { return port_; }
  /// Another descriptor of the same socket, which its taker closes. Errors: kResource.
  int duplicate() const;

 private:
  Listener(int fd, int port) : fd_(fd), port_(port) {}
  int fd_, port_;
};

}  // namespace sluice::http
