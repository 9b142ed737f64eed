#include "src/serve/routed_answers.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace sluice::serve {

namespace {
constexpr int kNoLine = -1;

// An error's code and message in OpenAI's shape; what is none is told as it is.
std::pair<std::string, std::string> error_of(const http::Response& response) {
  const auto body = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("error") || !body["error"].is_object())
    return {"failed", response.body.substr(0, 1000)};
  const auto text = [&](const char* name) {
    const auto found = body["error"].find(name);
    return found != body["error"].end() && found->is_string() ? found->get<std::string>()
                                                              : std::string();
  };
  const std::string code = text("code");
  return {code.empty() ? (response.status < 500 ? "invalid_request" : "failed") : code,
          text("message")};
}

void write(const jobs::Request& line, const http::Response& response, jobs::ResultsFile& results) {
  if (response.status == 200) return results.write(line, response.body);
  const auto [code, message] = error_of(response);
  results.write_error(line, code, message);
}
}  // namespace

RoutedAnswers::Start RoutedAnswers::start(const http::Handler& routes, jobs::Request line,
                                          jobs::ResultsFile& results) {
  http::Request request;
  request.method = "POST";
  request.path = line.url;
  request.body = line.body;
  http::Response response;
  routes(request, response);
  if (!response.live) {
    if (response.status == 429) return Start::kNoRoom;
    write(line, response, results);
    return Start::kTaken;
  }
  response.live->watch([woken = woken_] {
    Event event;
    event.index = kNoLine;
    woken->put(std::move(event));
  });
  running_.push_back({std::move(line), std::move(response.live)});
  return Start::kTaken;
}

bool RoutedAnswers::look(jobs::ResultsFile& results) {
  bool has_some = false;
  for (auto at = running_.begin(); at != running_.end();) {
    const http::Piece piece = at->answer->next();
    if (piece.kind == http::Piece::Kind::kNothingYet) {
      ++at;
      continue;
    }
    if (piece.kind == http::Piece::Kind::kWhole)
      write(at->request, piece.response, results);
    else
      results.write_error(at->request, "failed", "the answer broke off");
    at = running_.erase(at);
    has_some = true;
  }
  return has_some;
}

}  // namespace sluice::serve
