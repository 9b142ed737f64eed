#pragma once
// A socket that callers connect to, open before any server answers there: a port that is taken is
// told at once, and several servers may answer one after the other while callers wait in between.
// It is one of TCP, or a file of the file system (AF_UNIX) that only callers on the machine reach.
#include <sys/types.h>

#include <string>

namespace sluice::http {

/// Owns the socket.
class Listener {
 public:
  /// Binds and listens. `port` 0: any that is free. Errors: kUser when address or port can't be
  /// had.
  static Listener open(const std::string& host, int port);
  /// Binds and listens at a file that the listener makes, with the permissions `mode`, and takes
  /// away in its destructor. A socket that nobody listens at any more makes way. Errors: kUser when
  /// somebody listens there, another file lies there, or it can't be made.
  static Listener open_unix(const std::string& path, mode_t mode);
  /// Takes over a socket that listens already, of TCP or of the file system, whose file stays.
  /// Errors: kUser when it is no such socket.
  static Listener adopt(int fd);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int port() const noexcept { return port_; }  ///< 0 of a socket of the file system
  /// The address, as "127.0.0.1", "::1" or, of a socket of the file system, its path.
  std::string address() const;
  bool is_unix() const;
  /// Another descriptor of the same socket, which its taker closes. Errors: kResource.
  int duplicate() const;

 private:
  explicit Listener(int fd);
  int fd_, port_;
  std::string path_;  // of a file that goes with it; empty: none does
  ino_t inode_ = 0;   // of that file
};

}  // namespace sluice::http
