#pragma once
// What Prometheus' client libraries tell of any process, and how many requests each route has
// answered with what, in the text format of Prometheus. Thread safe.
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "src/base/mutex.h"
#include "src/http/message.h"

namespace sluice::serve {

/// sluice:build_info of `version`, and process_cpu_seconds_total, process_resident_memory_bytes,
/// process_virtual_memory_bytes, process_open_fds, process_max_fds and process_start_time_seconds,
/// of /proc/self.
std::string process_metrics(const char* version);

/// http_requests_total by method, handler and status: "2xx", as vLLM counts them.
class AnswerCounts {
 public:
  /// `status` of an answer to `request`; of one that is made as it goes, its head's.
  void count(const http::Request& request, int status);
  std::string text() const;

 private:
  mutable Mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, int64_t> counts_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::serve
