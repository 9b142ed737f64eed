#include "src/http/content_encoding.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>

#include "src/http/message.h"

namespace sluice::http {

namespace {
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view one) { return is_same_name(name, one); });
}
struct InflateEnd {
  void operator()(z_stream* stream) const noexcept { inflateEnd(stream); }
};

// Bytes of a zlib stream begin with its method and window, and a check of both; others that come
// as "deflate" are the bare stream, as some clients send it.
bool has_zlib_head(std::string_view body) {
  if (body.size() < 2) return false;
  const unsigned first = static_cast<unsigned char>(body[0]);
  return (first & 15) == 8 && (first * 256 + static_cast<unsigned char>(body[1])) % 31 == 0;
}
}  // namespace

bool is_known_encoding(std::string_view encoding) noexcept {
  return encoding.empty() || is_one_of(encoding, {"identity", "gzip", "x-gzip", "deflate"});
}

DecodeOutcome decode_body(std::string_view encoding, int64_t most_bytes, ByteShare& share,
                          std::string& body) {
  if (encoding.empty() || is_same_name(encoding, "identity")) return DecodeOutcome::kDone;
  z_stream stream{};
  const bool is_gzip = is_one_of(encoding, {"gzip", "x-gzip"});
  const int window = is_gzip ? 15 + 16 : has_zlib_head(body) ? 15 : -15;  // as zlib.h counts
  if (inflateInit2(&stream, window) != Z_OK) return DecodeOutcome::kNoRoom;
  const std::unique_ptr<z_stream, InflateEnd> end(&stream);
  const auto in_bytes = static_cast<int64_t>(body.size());
  std::string out;
  std::array<char, 64 << 10> piece;
  stream.next_in = reinterpret_cast<Bytef*>(body.data());
  stream.avail_in = static_cast<uInt>(body.size());
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) return DecodeOutcome::kBroken;
    const size_t made = piece.size() - stream.avail_out;
    if (static_cast<int64_t>(out.size() + made) > most_bytes) return DecodeOutcome::kTooLarge;
    if (!share.grow_to(in_bytes + static_cast<int64_t>(out.size() + made)))
      return DecodeOutcome::kNoRoom;
    out.append(piece.data(), made);
  }
  if (stream.avail_in > 0) return DecodeOutcome::kBroken;
  body = std::move(out);
  return DecodeOutcome::kDone;
}

}  // namespace sluice::http
