#pragma once
// What systemd, or who does as it does, hands to a server and is told by it: sockets that listen
// already (sd_listen_fds(3)) and how far the server is (sd_notify(3)). Without one nothing happens.
#include <optional>
#include <string>
#include <string_view>

#include "src/http/listener.h"

namespace sluice::tools {

class ServiceManager {
 public:
  /// Takes what there is in the environment out of it: processes started from here have no use for
  /// it. Before threads that read the environment.
  ServiceManager();

  /// The socket that was handed over; nothing: none was. Once. Errors: kUser where there are
  /// several or it does not listen.
  std::optional<http::Listener> take_listener();
  /// Says "READY=1", "STOPPING=1" or "STATUS=..." to who started this; never fails. Any thread.
  void notify(std::string_view state) const noexcept;

 private:
  int listeners_ = 0;
  std::string notify_path_;
};

}  // namespace sluice::tools
