#pragma once
// A line of a batch file in the OpenAI form, as tests of requests write it.
#include <string>

namespace sluice::jobs {

inline std::string batch_line(const std::string& body) {
  return R"({"custom_id": "r1", "method": "POST", "url": "/v1/completions", "body": )" + body + "}";
}

}  // namespace sluice::jobs
