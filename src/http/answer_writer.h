#pragma once
// The bytes of a connection's answers, as HTTP/1.1 has them: heads, bodies whole or chunked. Values
// in, bytes out: no sockets. One thread.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "src/http/message.h"

namespace sluice::http {

class AnswerWriter {
 public:
  /// `more`: headers of the answer beside its own; outlives the writer, and may change between two
  /// answers.
  explicit AnswerWriter(const Fields& more) : more_(more) {}

  /// The answer to the next request comes now.
  void begin_request(bool is_head_request, bool is_http_1_0);
  /// "100 Continue": nothing yet, go on.
  void go_on();
  void whole(const Response& response, bool closes);
  /// The head of a live answer; with HEAD that is all.
  void begin(const Response& head, bool closes);
  void more(std::string_view bytes);
  void end(std::string_view bytes);

  bool has_begun() const noexcept { return has_begun_; }  ///< of this answer some is written
  bool has_ended() const noexcept { return has_ended_; }  ///< and all
  bool is_http_1_0() const noexcept { return is_http_1_0_; }
  bool is_empty() const noexcept { return bytes_.empty(); }

  struct Bytes {
    std::string bytes;
    int64_t live_bytes = 0;  ///< of them, of pieces of a live answer
  };
  /// What has not been taken.
  Bytes take() { return {std::exchange(bytes_, {}), std::exchange(live_bytes_, 0)}; }

 private:
  void head(const Response& response, const std::string& framing, bool closes);

  const Fields& more_;
  std::string bytes_;
  int64_t live_bytes_ = 0;
  bool is_head_request_ = false, is_http_1_0_ = false, is_chunked_ = false;
  bool has_begun_ = false, has_ended_ = false;
};

}  // namespace sluice::http
