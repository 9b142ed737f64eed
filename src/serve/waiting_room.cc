#include "src/serve/waiting_room.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "src/serve/error_response.h"
#include "src/serve/json_text.h"
#include "src/serve/origins.h"

namespace sluice::serve {

namespace {
constexpr int kRetrySeconds = 5;
}  // namespace

WaitingRoom::WaitingRoom(const http::Listener& listener, const HttpOptions& options)
    : server_(http::Router(), server_options(options)) {
  server_.listen(listener);
  thread_ = std::jthread([this] { server_.serve(); });
}

void WaitingRoom::tell(int64_t done_bytes, int64_t total_bytes) noexcept {
  total_bytes_ = total_bytes;
  done_bytes_ = done_bytes;
}

void WaitingRoom::close() {
  if (!thread_.joinable()) return;
  server_.stop();
  thread_.join();
}

http::Response WaitingRoom::answer(const http::Request& head) const {
  const int64_t total = total_bytes_, done = done_bytes_;
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
  if (head.path == "/health") {
    http::Response response;
    response.status = 503;
    response.set_header("Retry-After", std::to_string(kRetrySeconds));
    response.set_content(dump({{"status", "loading"},
                               {"reason", "the model is being loaded"},
                               {"loaded_bytes", done},
                               {"total_bytes", total},
                               {"progress", share}}),
                         "application/json");
    return response;
  }
  const std::string far = total > 0 ? fmt::format(" ({:.0f} %)", 100 * share) : "";
  return error_response({503, "the model is being loaded" + far + "; try again soon",
                         "model_loading", "", kRetrySeconds},
                        error_shape(head.path));
}

http::ServerOptions WaitingRoom::server_options(const HttpOptions& options) const {
  http::ServerOptions out;
  out.most_connections = options.connections;
  out.stop_time = std::chrono::milliseconds(1000);
  if (!options.cors_origins.empty())
    out.headers = [origins = options.cors_origins](const http::Request& head) {
      return cors_headers(head, origins);
    };
  out.screen = [this](const http::Request& head) { return answer(head); };
  out.refusal = [](int status, const std::string& message) {
    return error_response({status, message, "", "", 0});
  };
  out.log = options.log;
  return out;
}

}  // namespace sluice::serve
