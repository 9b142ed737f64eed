#include "src/http/multipart.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::http {
namespace {

const std::string kType = "multipart/form-data; charset=utf-8; boundary=\"xYz\"";
const std::string kBody =
    "--xYz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--xYz\r\ncontent-disposition: form-data; name=file; filename=\"a \\\"b\\\".jsonl\"\r\n"
    "Content-Type: application/jsonl\r\n\r\nline\r\n--xY\r\n\r\n"
    "--xYz\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--xYz--\r\n";

TEST(Multipart, ReadsAForm) {
  const auto form = read_form(kType, kBody, 5);
  ASSERT_TRUE(form);
  ASSERT_EQ(form->size(), 3u);
  EXPECT_EQ((*form)[0].name, "purpose");
  EXPECT_EQ((*form)[0].content, "batch");
  EXPECT_EQ((*form)[1].name, "file");
  EXPECT_EQ((*form)[1].filename, "a \"b\".jsonl");
  EXPECT_EQ((*form)[1].content, "line\r\n--xY\r\n");
  EXPECT_EQ((*form)[2].content, "");
  EXPECT_TRUE(read_form(kType, "what stands before is nothing\r\n" + kBody, 5));
}

TEST(Multipart, RefusesWhatIsNone) {
  EXPECT_FALSE(read_form("text/plain", kBody, 5));
  EXPECT_FALSE(read_form("multipart/form-data", kBody, 5));
  EXPECT_FALSE(read_form("multipart/form-data; boundary=" + std::string(71, 'a'), kBody, 5));
  EXPECT_FALSE(read_form(kType, kBody, 2)) << "too many parts";
  EXPECT_FALSE(read_form(kType, "", 5));
  EXPECT_FALSE(read_form(kType, "--xYz\r\nNo-Name: 1\r\n\r\nabc\r\n--xYz--", 5));
}

TEST(Multipart, SurvivesNonsense) {
  std::mt19937 random(7);
  for (size_t cut = 0; cut < kBody.size(); ++cut)
    EXPECT_NO_THROW(read_form(kType, kBody.substr(0, cut), 5));
  for (int round = 0; round < 3000; ++round) {
    std::string type = kType, body = kBody;
    std::string& changed = round % 4 == 0 ? type : body;
    changed[random() % changed.size()] = static_cast<char>(random());
    changed.erase(random() % changed.size(), random() % 6);
    EXPECT_NO_THROW(read_form(type, body, 5));
  }
}

}  // namespace
}  // namespace sluice::http
