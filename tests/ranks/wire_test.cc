// Values between ranks come out as they went in, and a message that is cut is an error.
#include "src/ranks/wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/base/error.h"

namespace sluice::ranks {
namespace {

TEST(Wire, ValuesComeOutAsTheyWentIn) {
  const std::string zeros("a\0b", 3);
  const std::string bytes = Writer(Kind::kHello)
                                .number(std::numeric_limits<int64_t>::min())
                                .text(zeros)
                                .real(-0.1)
                                .text("")
                                .real(INFINITY)
                                .take();
  Reader reader(bytes);
  EXPECT_EQ(reader.kind(), Kind::kHello);
  EXPECT_EQ(reader.number(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(reader.text(), zeros);
  EXPECT_EQ(reader.real(), -0.1);
  EXPECT_EQ(reader.text(), "");
  EXPECT_EQ(reader.real(), INFINITY);
  EXPECT_TRUE(reader.at_end());
}

TEST(Wire, AStatusComesOutAsItWentIn) {
  const Status status{3, 40, 5, 1.5, 0.25, "disk read"};
  const std::string bytes = status.pack();
  Reader reader(bytes);
  EXPECT_EQ(reader.kind(), Kind::kStatus);
  EXPECT_EQ(Status::unpack(reader), status);
  EXPECT_TRUE(reader.at_end());
}

TEST(Wire, ACutMessageIsAnError) {
  const std::string bytes = Status{1, 2, 3, 4, 5, "lane"}.pack();
  EXPECT_THROW(Reader(""), Error);
  for (size_t kept = 1; kept < bytes.size(); ++kept) {
    Reader reader(std::string_view(bytes).substr(0, kept));
    EXPECT_THROW(Status::unpack(reader), Error) << kept;
  }
}

}  // namespace
}  // namespace sluice::ranks
