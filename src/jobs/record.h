#pragma once
// One line of a results file: OpenAI's batch output record, plus "sluice": {"key", "config"} by
// which a job is resumed. Internal to results_file.cc; pure functions. Lines are written without
// their line end.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/jobs/content_key.h"
#include "src/jobs/results_file.h"

namespace sluice::jobs {

/// What every record begins with; a torn last line is known by it.
inline constexpr std::string_view kRecordStart = R"({"id":"batch_req_)";

/// `created`: seconds since 1970. Text that is not UTF-8 gets replacement characters.
std::string answer_line(const Request& request, const Completion& completion,
                        const std::string& model, const std::string& config, int64_t created);

/// Of a routed request: `body` is the answer as JSON.
std::string routed_line(const Request& request, std::string_view body, const std::string& config);

/// `error.custom_id` may be empty: null in the record.
std::string error_line(const RequestError& error, const std::string& config);

/// What resuming needs of a record.
struct StoredRecord {
  std::string custom_id;  // empty for null
  ContentKey key;
  std::string config;
  int64_t error_line = 0;  // of an error record: the line of the input that it is about
  bool is_answer = false;
};

/// Nothing if the line is no record that answer_line or error_line could have written. Never throws
/// on input.
std::optional<StoredRecord> read_record(std::string_view line);

}  // namespace sluice::jobs
