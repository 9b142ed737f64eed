// Sockets that listen: of the file system, with their files' lives; taken over; and a server at
// one.
#include "src/http/listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/http/server.h"
#include "tests/temporary_folder.h"

namespace sluice::http {
namespace {

// A connection to the socket at `path`; below 0: it was refused.
int connect_to(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

std::string ask(const std::string& path, const std::string& request) {
  const int fd = connect_to(path);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string heard;
  char bytes[4096];
  for (ssize_t some; (some = ::recv(fd, bytes, sizeof bytes, 0)) > 0;)
    heard.append(bytes, static_cast<size_t>(some));
  ::close(fd);
  return heard;
}

std::string why_not(const std::string& path) {
  try {
    Listener::open_unix(path, 0600);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.what();
  }
  return {};
}

TEST(Listener, HasAFileWithItsPermissionsForAsLongAsItLives) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  for (const mode_t mode : {0600, 0660, 0666}) {
    {
      const Listener listener = Listener::open_unix(path, mode);
      struct stat state {};
      ASSERT_EQ(::stat(path.c_str(), &state), 0);
      EXPECT_EQ(state.st_mode, mode | S_IFSOCK);
      EXPECT_TRUE(listener.is_unix());
      EXPECT_EQ(listener.address(), path);
      EXPECT_EQ(listener.port(), 0);
      const int fd = connect_to(path);
      EXPECT_GE(fd, 0);
      ::close(fd);
    }
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST(Listener, TakesThePlaceOfASocketThatNobodyListensAt) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  {
    const Listener listener = Listener::open_unix(path, 0600);
    std::filesystem::create_hard_link(path, folder.file("left"));
  }
  std::filesystem::rename(folder.file("left"), path);  // as a crash leaves it
  EXPECT_LT(connect_to(path), 0);
  const Listener listener = Listener::open_unix(path, 0600);
  EXPECT_GE(connect_to(path), 0);
}

TEST(Listener, LeavesTheFilesOfOthersWhereTheyAre) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  std::optional<Listener> first(Listener::open_unix(path, 0600));
  EXPECT_NE(why_not(path).find("somebody listens there already"), std::string::npos);
  EXPECT_GE(connect_to(path), 0);
  std::filesystem::remove(path);
  const Listener second = Listener::open_unix(path, 0600);
  first.reset();
  EXPECT_GE(connect_to(path), 0);
  std::ofstream(folder.file("file")) << "words";
  EXPECT_NE(why_not(folder.file("file")).find("no socket"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(folder.file("file")), 5u);
  EXPECT_NE(why_not(folder.file("none/s")).find("No such file"), std::string::npos);
  EXPECT_NE(why_not(folder.file(std::string(200, 'a'))).find("1 to 107 bytes"), std::string::npos);
  EXPECT_NE(why_not("").find("1 to 107 bytes"), std::string::npos);
}

TEST(Listener, OfTwoThatStartAtOnceOneListens) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  for (int round = 0; round < 50; ++round) {
    std::optional<Listener> got[4];
    {
      std::vector<std::jthread> threads;
      for (auto& one : got)
        threads.emplace_back([&] {
          try {
            one.emplace(Listener::open_unix(path, 0600));
          } catch (const Error&) {
          }
        });
    }
    EXPECT_EQ(std::count_if(std::begin(got), std::end(got), [](const auto& one) { return !!one; }),
              1);
  }
}

TEST(Listener, IsTakenOverWhereItListens) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  const Listener given = Listener::open_unix(path, 0600);
  {
    const Listener taken = Listener::adopt(given.duplicate());
    EXPECT_TRUE(taken.is_unix());
    EXPECT_EQ(taken.address(), path);
  }
  EXPECT_TRUE(std::filesystem::exists(path));  // its file is another's
  const Listener port = Listener::open("127.0.0.1", 0);
  const Listener taken = Listener::adopt(port.duplicate());
  EXPECT_FALSE(taken.is_unix());
  EXPECT_EQ(taken.port(), port.port());
  EXPECT_EQ(taken.address(), "127.0.0.1");
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_THROW(Listener::adopt(pair[0]), Error);
  EXPECT_THROW(Listener::adopt(-1), Error);
  for (const int fd : pair) ::close(fd);
}

TEST(Listener, AServerAnswersThere) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  Router router;
  router.add("POST", "/echo", Place::kWork, [](const Request& request, Response& response) {
    response.set_content(request.peer + " " + request.body, "text/plain");
  });
  const Listener listener = Listener::open_unix(path, 0600);
  Server server(std::move(router), {});
  server.listen(listener);
  std::jthread thread([&] { server.serve(); });
  for (int i = 0; i < 20; ++i) {
    const std::string body(static_cast<size_t>(i) * 10000, 'a');
    const std::string heard =
        ask(path, "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_TRUE(heard.starts_with("HTTP/1.1 200 OK\r\n")) << heard;
    EXPECT_TRUE(heard.ends_with("unix:" + std::to_string(::getuid()) + " " + body));
  }
  server.stop();
}

}  // namespace
}  // namespace sluice::http
