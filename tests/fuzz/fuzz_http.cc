// What comes over a connection: requests one behind the other, or what is none; the same however
// the bytes are cut. Bodies that are said to be compressed are decoded, within a bound.
#include <vector>

#include "src/http/content_encoding.h"
#include "src/http/request_reader.h"
#include "tests/fuzz/fuzzing.h"

namespace {
namespace http = sluice::http;
using sluice::fuzz::require;
using State = http::RequestReader::State;

constexpr http::ReaderLimits kLimits{1024, 4096};

// Each request on lines of its own.
std::string read(std::string_view text, size_t step) {
  http::RequestReader reader(kLimits);
  std::string out;
  for (size_t at = 0; at < text.size(); at += step) {
    reader.add(text.substr(at, step));
    for (State state = reader.read(); state != State::kFailed; state = reader.read()) {
      require(reader.body_bytes() <= kLimits.body_bytes);
      if (state == State::kHeadDone) continue;
      if (state != State::kDone) break;
      const http::Request request = reader.take();
      out += request.method + ' ' + request.path + ' ' + request.body + '\n';
      for (const auto& [name, value] : request.headers) out += name + '=' + value + '\n';
    }
    // A fault in an unfinished head may show now or with the bytes that follow.
    if (reader.state() == State::kFailed) {
      require(reader.failure().status >= 400 && reader.failure().status < 600);
      return out;
    }
  }
  return out;
}

void decode(std::string_view text) {
  for (const char* encoding : {"gzip", "deflate"}) {
    constexpr int64_t kMost = 1 << 16;
    http::ByteBudget budget(kMost + 4096);
    {
      http::ByteShare share(budget);
      std::string body(text);
      if (http::decode_body(encoding, kMost, share, body) == http::DecodeOutcome::kDone) {
        sluice::fuzz::accepted();
        require(static_cast<int64_t>(body.size()) <= kMost);
      }
    }
    require(budget.used() == 0);
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = sluice::fuzz::text_of(data, size);
  const std::string whole = read(text, text.size() + 1);
  if (whole.find('\n') != std::string::npos) sluice::fuzz::accepted();
  for (const size_t step : {1, 7}) require(read(text, step) == whole);
  decode(text);
  return 0;
}
