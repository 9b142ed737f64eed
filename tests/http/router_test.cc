#include "src/http/router.h"

#include <gtest/gtest.h>

namespace sluice::http {
namespace {

TEST(Router, FindsRoutesByMethodAndPath) {
  Router router;
  const Handler none = [](const Request&, Response&) {};
  router.add("GET", "/v1/files", Place::kLoop, none);
  router.add("GET", "/v1/files/{}", Place::kReserved, none);
  router.add("GET", "/v1/files/{}/content", Place::kWork, none);
  router.add("GET", "/v1/models/{*}", Place::kLoop, none);
  EXPECT_EQ(router.find("GET", "/v1/files")->place, Place::kLoop);
  EXPECT_EQ(router.find("GET", "/v1/files/file-a_1")->parts, std::vector<std::string>{"file-a_1"});
  EXPECT_EQ(router.find("GET", "/v1/files/a/content")->place, Place::kWork);
  EXPECT_EQ(router.find("GET", "/v1/models/org/model.gguf")->parts,
            std::vector<std::string>{"org/model.gguf"});
  EXPECT_TRUE(router.find("GET", "/v1/files/")) << "a slash at the end is nobody's";
  for (const char* path : {"/v1/files//", "/v1/files/..", "/v1/files/a/b", "/v1/models/",
                           "/v1/models", "", "/", "/v1/files/a\nb"})
    EXPECT_FALSE(router.find("GET", path)) << path;
  EXPECT_FALSE(router.find("GET", "/v1/files/" + std::string(101, 'a')));
  EXPECT_FALSE(router.find("POST", "/v1/files"));
}

}  // namespace
}  // namespace sluice::http
