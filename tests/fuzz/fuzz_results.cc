// The results of a batch job as a crash, or somebody else, left them: refused and untouched, or
// continued: what was there stays, what is added is there when the file is opened again.
#include <fstream>
#include <iterator>

#include "src/base/error.h"
#include "src/jobs/results_file.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using namespace sluice::jobs;

std::string whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// tests/fixtures' seeds are of this job.
constexpr const char* kConfig = "config";

void check_continued(const std::string& path, std::string_view text) {
  ResultsFile results(path, kConfig, "model");
  sluice::fuzz::accepted();
  const int64_t before = results.records();
  sluice::fuzz::require(results.resumed_records() == before && results.answers() <= before);
  sluice::fuzz::require(results.torn_bytes() <= static_cast<int64_t>(text.size()));
  Request request;
  request.custom_id = "added";
  request.key = hash_bytes("added").hex();
  if (results.progress(request) == Progress::kFinished) return;
  results.write(request, {"text", "stop", 1, 1, {}, {}});
  sluice::fuzz::require(results.progress(request) == Progress::kFinished);
  const auto kept = text.substr(0, text.size() - static_cast<size_t>(results.torn_bytes()));
  sluice::fuzz::require(whole(path).starts_with(kept));
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::fuzz::Folder folder;
  const std::string_view text = sluice::fuzz::text_of(data, size);
  const std::string path = folder.write("results.jsonl", text);
  try {
    check_continued(path, text);
    const int64_t records = ResultsFile(path, kConfig, "model").records();
    const SplitCounts counts =
        split_results(path, folder.path() / "answers", folder.path() / "errors");
    sluice::fuzz::require(counts.answers + counts.errors == records);
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile ||
                          error.kind() == sluice::ErrorKind::kUser);
    sluice::fuzz::require(whole(path) == text);
  }
  return 0;
}
