// Guides by many threads at once: one a text, and nobody waits for another's.
#include "src/guide/guide_maker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "src/base/error.h"
#include "tests/guide/byte_tokenizer.h"

namespace sluice::guide {
namespace {

using sampling::GuideKind;
using sampling::GuideSpec;
using testing::ListTokenizer;

ListTokenizer letters() {
  std::vector<std::string> tokens{"<end>"};
  for (char c = ' '; c <= '~'; ++c) tokens.emplace_back(1, c);
  return ListTokenizer(std::move(tokens), {0});
}

GuideSpec too_large(int number) {
  return {GuideKind::kRegex, "(a{1000}){1000}" + std::to_string(number), {}};
}

TEST(GuideMaker, ThreadsShareOneGuideOfAText) {
  const ListTokenizer tokenizer = letters();
  GuideMaker maker(tokenizer, {0});
  std::vector<std::shared_ptr<Guide>> made(64);
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = t; i < made.size(); i += 8)
          made[i] = maker.make({GuideKind::kRegex, "a" + std::to_string(i / 8), {}});
      });
  }
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(made[i], made[i / 8 * 8]) << i;
  EXPECT_EQ((std::set<std::shared_ptr<Guide>>(made.begin(), made.end()).size()), 8u);
}

TEST(GuideMaker, ARefusalIsRememberedAndDelaysNobody) {
  const ListTokenizer tokenizer = letters();
  GuideMaker maker(tokenizer, {0});
  std::atomic<int> refused = 0;
  std::atomic<bool> is_over = false;
  const auto ask = [&](int number) {
    try {
      maker.make(too_large(number));
      ADD_FAILURE() << "it is made";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_NE(error.text().find("too large"), std::string::npos);
      ++refused;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; !is_over; ++i) ask(t * 1000 + i % 100);
      });
    while (refused < 20) {
      EXPECT_NE(maker.make({GuideKind::kRegex, "yes|no", {}}), nullptr);
      std::this_thread::yield();
    }
    is_over = true;
  }
  // What is known is refused at once, however often.
  ask(1);
  const auto begin = std::chrono::steady_clock::now();
  maker.make({GuideKind::kRegex, "yes|no", {}});
  for (int i = 0; i < 1000; ++i) ask(1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(GuideMaker, TextsOfMegabytesAreRefusedUnread) {
  const ListTokenizer tokenizer = letters();
  GuideMaker maker(tokenizer, {0});
  EXPECT_THROW(maker.make({GuideKind::kJsonSchema, std::string(5 << 20, ' ') + "{}", {}}), Error);
  EXPECT_THROW(maker.make({GuideKind::kChoice, "", {std::string(3 << 20, 'a')}}), Error);
  EXPECT_THROW(maker.make({GuideKind::kCalls, std::string(5 << 20, ' ') + "{}", {}}), Error);
}

}  // namespace
}  // namespace sluice::guide
