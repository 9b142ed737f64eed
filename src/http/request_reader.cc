#include "src/http/request_reader.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <utility>

namespace sluice::http {

namespace {
namespace beast = boost::beast::http;

// A body in a string that grows with what comes: what a head only promises takes no memory.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class HeadFields>
    reader(beast::header<kIsRequest, HeadFields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      size_t taken = 0;
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece = *at;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
        taken += piece.size();
      }
      return taken;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

int hex(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

// "%41" is "A"; what is no escape stays.
std::string decode(std::string_view text, bool plus_is_space) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

void read_target(std::string_view target, Request& request) {
  // A proxy may send the whole address.
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t path = target.find('/', target.find("//") + 2);
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  request.path = decode(target.substr(0, mark), false);
  if (mark == std::string_view::npos) return;
  std::string_view query = target.substr(mark + 1);
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    if (one.empty()) continue;
    const size_t equals = one.find('=');
    request.query.emplace_back(
        decode(one.substr(0, equals), true),
        equals == std::string_view::npos ? "" : decode(one.substr(equals + 1), true));
  }
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }
}  // namespace

struct RequestReader::Parser {
  beast::request_parser<GrowingBody> of;
};

RequestReader::RequestReader(ReaderLimits limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

void RequestReader::add(std::string_view bytes) { bytes_ += bytes; }

int64_t RequestReader::body_bytes() const noexcept {
  return parser_ ? static_cast<int64_t>(parser_->of.get().body().size()) : 0;
}

RequestReader::State RequestReader::fail(int status, std::string message) {
  failure_ = {status, std::move(message)};
  return state_ = State::kFailed;
}

// The head has come: into values of ours.
RequestReader::State RequestReader::finish_head() {
  const auto& message = parser_->of.get();
  request_ = {};
  request_.method = view(message.method_string());
  is_head_ = request_.method == "HEAD";
  if (is_head_) request_.method = "GET";
  read_target(view(message.target()), request_);
  for (const auto& field : message)
    request_.headers.emplace_back(view(field.name_string()), view(field.value()));
  is_http_1_0_ = message.version() < 11;
  // RFC 9112, 3.2.
  const auto hosts = message.count(beast::field::host);
  if (hosts > 1 || (hosts == 0 && !is_http_1_0_))
    return fail(400, "a request of HTTP/1.1 must have one Host header, with the server's name");
  keeps_alive_ = parser_->of.keep_alive();
  is_chunked_ = parser_->of.chunked();
  const auto length = parser_->of.content_length();
  declared_bytes_ = length ? static_cast<int64_t>(*length) : 0;
  const std::string_view coding = request_.header("Transfer-Encoding");
  if (!coding.empty() && !is_same_name(coding, "chunked"))
    return fail(501, "of transfer encodings only chunked is understood");
  const std::string_view expected = request_.header("Expect");
  expects_continue_ = is_same_name(expected, "100-continue") && !is_http_1_0_;
  if (!expected.empty() && !is_same_name(expected, "100-continue"))
    return fail(417, "of Expect only 100-continue is understood");
  parser_->of.eager(true);  // all that has come of the body in one call
  return state_ = State::kHeadDone;
}

RequestReader::State RequestReader::read() {
  namespace errors = boost::beast::http;
  while (state_ != State::kFailed && state_ != State::kDone) {
    if (state_ == State::kIdle) {
      // Empty lines before a request are nothing.
      bytes_.erase(0, std::min(bytes_.find_first_not_of("\r\n"), bytes_.size()));
      if (bytes_.empty()) return state_;
      parser_ = std::make_unique<Parser>();
      parser_->of.header_limit(static_cast<std::uint32_t>(limits_.head_bytes));
      parser_->of.body_limit(static_cast<std::uint64_t>(limits_.body_bytes));
      state_ = State::kHead;
    }
    const bool was_head = state_ == State::kHead;
    if (!was_head) state_ = State::kBody;
    boost::beast::error_code error;
    if (!parser_->of.is_done()) {
      const size_t used = parser_->of.put(boost::asio::buffer(bytes_), error);
      bytes_.erase(0, used);
      if (bytes_.empty() && bytes_.capacity() > 4096) bytes_ = {};
    }
    if (error == errors::error::need_more || error == errors::error::partial_message) {
      if (buffered_bytes() > limits_.head_bytes)
        return fail(
            431, fmt::format(
                     "a head, or what stands between the chunks of a body, is longer than {} bytes",
                     limits_.head_bytes));
      return state_;
    }
    if (error == errors::error::header_limit)
      return fail(431, fmt::format("the head is longer than {} bytes", limits_.head_bytes));
    if (error == errors::error::body_limit)
      return fail(413, fmt::format("the body is larger than the {} bytes that this server takes",
                                   limits_.body_bytes));
    if (error == errors::error::bad_content_length)
      return fail(400, "Content-Length must be one number, 0 or more, without Transfer-Encoding");
    if (error) return fail(400, "the request could not be read as HTTP: " + error.message());
    if (was_head && parser_->of.is_header_done()) return finish_head();
    if (parser_->of.is_done()) return state_ = State::kDone;
    if (bytes_.empty()) return state_;
  }
  return state_;
}

Request RequestReader::take() {
  request_.body = std::move(parser_->of.get().body());
  parser_.reset();
  state_ = State::kIdle;
  return std::move(request_);
}

}  // namespace sluice::http
