// Who asks: keys and their weights, addresses.
#include "src/serve/callers.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/base/error.h"
#include "tests/temporary_folder.h"

namespace sluice::serve {
namespace {

http::Request from(const std::string& peer, const std::string& key = "") {
  http::Request out;
  out.peer = peer;
  if (!key.empty()) out.headers.emplace_back("Authorization", "Bearer " + key);
  return out;
}

TEST(Callers, AreAddressesWhereThereIsOneKeyOrNone) {
  for (const auto& keys : {std::vector<ApiKey>{}, std::vector<ApiKey>{{"secret", 1}}}) {
    const Callers callers(keys);
    const uint64_t one = callers.of(from("10.0.0.1", "secret")).id;
    EXPECT_EQ(callers.of(from("10.0.0.1", "secret")).id, one);
    EXPECT_NE(callers.of(from("10.0.0.2", "secret")).id, one);
    EXPECT_NE(one, kBatchCaller.id);
    // A host has all addresses of its IPv6 network.
    EXPECT_EQ(callers.of(from("2001:db8:1:2::1")).id, callers.of(from("2001:db8:1:2:ffff::9")).id);
    EXPECT_NE(callers.of(from("2001:db8:1:2::1")).id, callers.of(from("2001:db8:1:3::1")).id);
    EXPECT_NE(callers.of(from("::ffff:10.0.0.1")).id, callers.of(from("::ffff:10.0.0.2")).id);
    EXPECT_EQ(callers.of(from("")).id, callers.of(from("")).id);
  }
}

TEST(Callers, AreKeysWhereThereAreSeveral) {
  const Callers callers({{"a", 1}, {"b", 2.5}});
  EXPECT_TRUE(callers.asks_for_key());
  const Caller a = callers.of(from("10.0.0.1", "a")), b = callers.of(from("10.0.0.1", "b"));
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(b.weight, 2.5);
  EXPECT_EQ(callers.of(from("10.0.0.9", "a")).id, a.id);
  http::Request anthropic = from("10.0.0.1");
  anthropic.headers.emplace_back("x-api-key", "b");
  EXPECT_EQ(callers.of(anthropic).id, b.id);
  EXPECT_TRUE(callers.is_known(anthropic));
  for (const char* wrong : {"c", "", "ab", "aa"}) EXPECT_FALSE(callers.is_known(from("", wrong)));
  EXPECT_TRUE(Callers({}).is_known(from("")));
}

TEST(Callers, KeysAreReadFromAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("keys");
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_keys(path);
  };
  const auto keys = read("# ours\nsk-one\n\n  sk-two 0.5 # the batch job\r\n");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].key, "sk-one");
  EXPECT_EQ(keys[0].weight, 1);
  EXPECT_EQ(keys[1].key, "sk-two");
  EXPECT_EQ(keys[1].weight, 0.5);
  for (const char* wrong : {"", "# none\n", "a 0\n", "a -1\n", "a x\n", "a inf\n", "a nan\n",
                            "a 1 2\n", "a\nb\na 2\n", "a 1x\n"})
    EXPECT_THROW(read(wrong), Error) << wrong;
  try {
    read("a\n\nb 0\n");
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 3"), std::string::npos) << error.what();
  }
  EXPECT_THROW(read_keys(folder.file("nothing")), Error);
}

TEST(Callers, AThreadKnowsWhomItAnswers) {
  EXPECT_EQ(AnsweredCaller::now().id, 0u);
  {
    const AnsweredCaller one({7, 2});
    EXPECT_EQ(AnsweredCaller::now().id, 7u);
    EXPECT_EQ(AnsweredCaller::now().weight, 2);
  }
  EXPECT_EQ(AnsweredCaller::now().id, 0u);
}

}  // namespace
}  // namespace sluice::serve
