// Small parts of the commands that need no process of their own: the nearest word, the time left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/tools/files.h"
#include "tools/nearest.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {
namespace {

TEST(Nearest, CountsLettersChangedAddedLeftOutAndSwapped) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("run", ""), 3u);
  EXPECT_EQ(edit_distance("run", "run"), 0u);
  EXPECT_EQ(edit_distance("rum", "run"), 1u);
  EXPECT_EQ(edit_distance("rnu", "run"), 1u);
  EXPECT_EQ(edit_distance("convrt", "convert"), 1u);
  EXPECT_EQ(edit_distance("sserve", "serve"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("a", "abc"), edit_distance("abc", "a"));
}

TEST(Nearest, NamesOnlyWhatIsNear) {
  const std::vector<std::string> words{"run", "serve", "convert", "version"};
  EXPECT_EQ(nearest("rum", words), "run");
  EXPECT_EQ(nearest("r", words), std::nullopt);
  EXPECT_EQ(nearest("covnert", words), "convert");
  EXPECT_EQ(nearest("banana", words), std::nullopt);
  EXPECT_EQ(nearest("", words), std::nullopt);
  EXPECT_EQ(nearest("run", {}), std::nullopt);
}

TEST(SecondsLeft, FollowFromWhatCameSinceTheWorkBegan) {
  EXPECT_EQ(seconds_left(2, 25, 75), 6);
  EXPECT_EQ(seconds_left(10, 100, 0), std::nullopt);
  EXPECT_EQ(seconds_left(0.001, 50, 50), std::nullopt) << "too early";
  EXPECT_EQ(seconds_left(169, 0, 100), std::nullopt) << "nothing has come";
  EXPECT_EQ(seconds_left(5, 1, 1000), std::nullopt) << "too little has come";
}

// Sends an output to a file until the end of the scope.
class Sent {
 public:
  Sent(int fd, const std::string& path) : fd_(fd), kept_(dup(fd)) {
    std::fflush(stdout);
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(file, fd);
    close(file);
  }
  ~Sent() {
    std::fflush(stdout);
    dup2(kept_, fd_);
    close(kept_);
  }
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;

 private:
  int fd_, kept_;
};

TEST(MessageStart, EndsTheLineOfTextThatGoesToTheSamePlace) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> starts;
  {
    const Sent out(STDOUT_FILENO, folder.path("both")), err(STDERR_FILENO, folder.path("both"));
    starts.emplace_back(message_start());
    write_text("Once upon");
    starts.emplace_back(message_start());
    starts.emplace_back(message_start());
    write_text(" a time\n");
    starts.emplace_back(message_start());
  }
  EXPECT_EQ(starts, (std::vector<std::string>{"", "\n", "", ""}));
  EXPECT_EQ(testing::read_file(folder.path("both")), "Once upon a time\n");
  {
    const Sent out(STDOUT_FILENO, folder.path("text"));
    write_text("Once upon");
    EXPECT_STREQ(message_start(), "") << "messages go elsewhere";
  }
}

}  // namespace
}  // namespace sluice::tools
