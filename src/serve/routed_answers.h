#pragma once
// Lines of a batch that a server's routes answer, as they answer callers' requests. One thread.
#include <list>
#include <memory>
#include <string>

#include "src/http/router.h"
#include "src/jobs/request.h"
#include "src/jobs/results_file.h"
#include "src/serve/generation_service.h"

namespace sluice::serve {

/// The answers that are under way.
class RoutedAnswers {
 public:
  /// `woken` gets an event of no line whenever there may be something new.
  explicit RoutedAnswers(std::shared_ptr<Mailbox> woken) : woken_(std::move(woken)) {}

  enum class Start : uint8_t { kTaken, kNoRoom };
  /// Begins to answer a line; an answer that is there at once is written to `results`.
  Start start(const http::Handler& routes, jobs::Request line, jobs::ResultsFile& results);
  /// Writes the answers that have come; true: there was one.
  bool look(jobs::ResultsFile& results);
  size_t running() const noexcept { return running_.size(); }
  void clear() { running_.clear(); }

 private:
  struct Line {
    jobs::Request request;
    std::shared_ptr<http::LiveAnswer> answer;
  };

  std::shared_ptr<Mailbox> woken_;
  std::list<Line> running_;
};

}  // namespace sluice::serve
