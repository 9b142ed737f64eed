// Compressed bodies, and those that would fill the memory.
#include "src/http/content_encoding.h"

#include <gtest/gtest.h>
#include <zlib.h>

namespace sluice::http {
namespace {

// `window` as zlib's deflateInit2 has it: 31 gzip, 15 zlib, -15 bare.
std::string packed(const std::string& text, int window) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

DecodeOutcome decode(const char* encoding, std::string& body, int64_t most = 1 << 20,
                     int64_t budget_bytes = 8 << 20) {
  ByteBudget budget(budget_bytes);
  ByteShare share(budget);
  return decode_body(encoding, most, share, body);
}

TEST(ContentEncoding, DecodesWhatItKnows) {
  const std::string text = "{\"prompt\": \"Once upon a time\"}" + std::string(100000, ' ');
  for (const auto& [name, window] :
       {std::pair{"gzip", 31}, {"X-GZip", 31}, {"deflate", 15}, {"deflate", -15}}) {
    std::string body = packed(text, window);
    EXPECT_EQ(decode(name, body), DecodeOutcome::kDone) << name;
    EXPECT_EQ(body, text);
  }
  for (const char* name : {"", "identity"}) {
    std::string body = text;
    EXPECT_EQ(decode(name, body), DecodeOutcome::kDone);
    EXPECT_EQ(body, text);
  }
  EXPECT_FALSE(is_known_encoding("br"));
  EXPECT_FALSE(is_known_encoding("gzip, gzip"));
}

TEST(ContentEncoding, BoundsWhatComesOut) {
  const std::string bomb = packed(std::string(64 << 20, 'a'), 31);
  EXPECT_LT(bomb.size(), 100u << 10);
  std::string body = bomb;
  EXPECT_EQ(decode("gzip", body), DecodeOutcome::kTooLarge);
  body = bomb;
  EXPECT_EQ(decode("gzip", body, 1 << 30), DecodeOutcome::kNoRoom);
  ByteBudget budget(8 << 20);
  {
    ByteShare share(budget);
    body = bomb;
    decode_body("gzip", 1 << 30, share, body);
    EXPECT_LE(budget.used(), 8 << 20);
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(ContentEncoding, RefusesWhatIsCutOrNone) {
  const std::string whole = packed(std::string(1000, 'b'), 31);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    std::string body = whole.substr(0, cut);
    EXPECT_EQ(decode("gzip", body), DecodeOutcome::kBroken);
  }
  std::string body = whole + "more";
  EXPECT_EQ(decode("gzip", body), DecodeOutcome::kBroken);
  body = "{}";
  EXPECT_EQ(decode("gzip", body), DecodeOutcome::kBroken);
}

}  // namespace
}  // namespace sluice::http
