// Batch job input: arbitrary bytes as a job file, and as what a results file holds. No input may
// crash, hang, or give a request that the sampler would refuse.
#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

#include "src/base/error.h"
#include "src/jobs/job.h"
#include "src/jobs/record.h"
#include "src/sampling/stop.h"
#include "tests/fuzz/fuzzing.h"

namespace {

using sluice::fuzz::accepted;
using sluice::fuzz::require;

void check_request(const sluice::jobs::Request& request) {
  sluice::sampling::validate(
      request.params);  // throws, and so ends the run, if parsing let something through
  require(!request.custom_id.empty());
  require(request.key.size() == 32);
  require(request.prompt.empty() != request.prompt_ids.empty());
  sluice::sampling::StopMatcher matcher(request.params.stop);
  const auto outcome = matcher.push(request.prompt);
  require(outcome.emit.size() + matcher.flush().size() <= request.prompt.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::istringstream input(text);
  sluice::jobs::JobReader reader(input, "fuzz", {}, nullptr, 50000);
  std::set<std::string> names;
  while (const auto parsed = reader.next()) {
    if (const auto* error = std::get_if<sluice::jobs::RequestError>(&*parsed)) {
      require(!error->code.empty() && !error->message.empty() && error->line_number > 0);
      const auto record = sluice::jobs::read_record(sluice::jobs::error_line(*error, "config"));
      require(record && !record->is_answer && record->custom_id == error->custom_id);
      continue;
    }
    const auto& request = std::get<sluice::jobs::Request>(*parsed);
    accepted();
    check_request(request);
    require(names.insert(request.custom_id).second);
    const auto line =
        sluice::jobs::answer_line(request, {request.prompt, "stop", 1, 1, {}}, "m", "config", 0);
    const auto record = sluice::jobs::read_record(line);
    require(record && record->is_answer && record->custom_id == request.custom_id);
  }
  if (const auto record = sluice::jobs::read_record(text))
    require(!record->is_answer || !record->custom_id.empty());
  return 0;
}
