#include "src/http/answer_writer.h"

#include <fmt/format.h>

namespace sluice::http {

void AnswerWriter::begin_request(bool is_head_request, bool is_http_1_0) {
  is_head_request_ = is_head_request;
  is_http_1_0_ = is_http_1_0;
  is_chunked_ = has_begun_ = has_ended_ = false;
}

void AnswerWriter::go_on() { bytes_ += "HTTP/1.1 100 Continue\r\n\r\n"; }

void AnswerWriter::head(const Response& response, const std::string& framing, bool closes) {
  std::string all = framing;
  for (const auto& [name, value] : more_) all += fmt::format("{}: {}\r\n", name, value);
  bytes_ += head_text(response, all, closes);
  has_begun_ = true;
}

void AnswerWriter::whole(const Response& response, bool closes) {
  const bool has_body = response.status != 204 && response.status != 304;
  head(response, has_body ? fmt::format("Content-Length: {}\r\n", response.body.size()) : "",
       closes);
  if (has_body && !is_head_request_) bytes_ += response.body;
  has_ended_ = true;
}

void AnswerWriter::begin(const Response& response, bool closes) {
  const auto& length = response.length;
  is_chunked_ = !length && !is_http_1_0_;
  head(response,
       length        ? fmt::format("Content-Length: {}\r\n", *length)
       : is_chunked_ ? "Transfer-Encoding: chunked\r\n"
                     : "",
       closes);
  has_ended_ = is_head_request_;
}

void AnswerWriter::more(std::string_view bytes) {
  if (bytes.empty()) return;
  if (is_chunked_) bytes_ += fmt::format("{:x}\r\n", bytes.size());
  bytes_ += bytes;
  if (is_chunked_) bytes_ += "\r\n";
  live_bytes_ += static_cast<int64_t>(bytes.size());
}

void AnswerWriter::end(std::string_view bytes) {
  more(bytes);
  if (is_chunked_) bytes_ += "0\r\n\r\n";
  has_ended_ = true;
}

}  // namespace sluice::http
