#include "tools/output.h"

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "src/base/error.h"

namespace sluice::tools {

void print_json(const nlohmann::ordered_json& json) {
  std::printf("%s\n",
              json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void check_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const std::string why =
      errno ? std::generic_category().message(errno) : "an earlier write came to nothing";
  throw Error(ErrorKind::kFile, "standard output: " + why,
              "make room, or keep what reads it open to the end");
}

}  // namespace sluice::tools
