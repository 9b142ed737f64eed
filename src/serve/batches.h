#pragma once
// Batches (/v1/batches): files of requests that are answered when the engine has room beside its
// callers. One after the other, in a thread of its own. Answers are on disk one by one as they end,
// and a batch that a stop or a crash broke off goes on where it was at the next start. Thread safe.
#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/base/mutex.h"
#include "src/chat/chat_template.h"
#include "src/chat/tool_format.h"
#include "src/http/router.h"
#include "src/jobs/owned_file.h"
#include "src/jobs/results_file.h"
#include "src/serve/file_store.h"
#include "src/serve/generation_service.h"
#include "src/serve/served_names.h"

namespace sluice::serve {

/// Seconds that OpenAI's "expires_after" gives a file: {"anchor": "created_at", "seconds": from an
/// hour to 30 days}; null: 0. Throws ApiError that names `field`.
int64_t life_of(const std::string& field, const nlohmann::ordered_json& expires_after);

/// What batches are run with.
struct BatchOptions {
  std::filesystem::path folder;
  ServedNames names;
  /// Where there are several models: the name of the one that a line's name means. Throws ApiError
  /// where it is none of them.
  std::function<std::string(const std::string&)> model_of;
  int64_t together = 16;                          ///< lines that several models are given at once
  const chat::ToolFormat* tool_format = nullptr;  ///< null: no calls of tools
  bool splits_thoughts = false;
  bool takes_templates = false;       ///< chat_template of lines
  std::string config;                 ///< all that decides the answers beside the lines
  sampling::SamplingParams defaults;  ///< of what lines leave out
  FileLimits files;
  /// How often a batch looks whether it is cancelled or the server stops, and says what it has
  /// done.
  std::chrono::milliseconds look{100};
  std::function<void(std::string_view)> log;
};

class Batches {
 public:
  /// Goes on with what an earlier server has not finished. `service`, `tokenizer` and `chat` (may
  /// be null) outlive it. Errors: kFile; kUser when another server uses the folder.
  Batches(GenerationService& service, const text::Tokenizer& tokenizer,
          const chat::ChatTemplate* chat, BatchOptions options);
  /// Of several models, whose routes answer (answer_with).
  explicit Batches(BatchOptions options);
  /// Breaks off what runs, to go on at the next start.
  ~Batches();
  /// Who answers the lines that are answered as callers' requests are: those of several models, for
  /// embeddings and responses, and of several answers. They wait until it is said.
  void answer_with(http::Handler routes);

  /// Runs no more: what was running goes on at the next start.
  void stop();
  FileStore& files() noexcept { return files_; }
  /// OpenAI's batch object. `body`: input_file_id, endpoint, completion_window, metadata,
  /// output_expires_after. Throws ApiError.
  nlohmann::ordered_json create(const nlohmann::ordered_json& body);
  nlohmann::ordered_json find(const std::string& id) const;
  /// Newest first; those after `after` (empty: from the newest), at most `limit`.
  nlohmann::ordered_json list(const std::string& after, size_t limit) const;
  nlohmann::ordered_json cancel(const std::string& id);
  /// How many there are, by status, in the text format of Prometheus.
  std::string metrics() const;
  /// Whether a batch that has not ended reads the file.
  bool is_in_use(const std::string& file_id) const;

 private:
  struct Job;
  struct Phase;
  using Json = nlohmann::ordered_json;

  std::filesystem::path path_of(const std::string& id, const char* suffix) const {
    return options_.folder / "batches" / (id + suffix);
  }
  void start();
  void load();
  void work(const std::stop_token& stop);
  void run(const std::string& id, const std::stop_token& stop);
  bool submit(Job& job, jobs::Request request);
  bool submit_own(Job& job, jobs::Request request);
  bool run_lines(Job& job, Phase& phase, const std::string& input,
                 const std::function<bool()>& goes_on);
  bool has_room(const Job& job) const;
  std::string failure() const { return service_ ? service_->failure() : std::string(); }
  std::string misfit(const jobs::Request& line, const std::string& endpoint) const;
  void take_event(Job& job, const Event& event);
  void finish(const std::string& id, const std::string& status);
  void fail(const std::string& id, const std::string& message);
  void change(const std::string& id, const std::function<void(Json&)>& how, bool is_durable = true);
  std::string status_of(const std::string& id) const;
  /// Null: there is none.
  const Json* at(const std::string& id) const SLUICE_REQUIRES(mutex_);
  /// There is one.
  Json& known(const std::string& id) SLUICE_REQUIRES(mutex_);
  bool is_for_us(const Json& batch) const;

  GenerationService* service_ = nullptr;  // null, and what follows: several models
  const text::Tokenizer* tokenizer_ = nullptr;
  const chat::ChatTemplate* chat_ = nullptr;
  BatchOptions options_;
  std::string config_hash_;
  FileStore files_;
  jobs::OwnedFile lock_;

  Mutex writing_;  // held while a batch's file is written; before mutex_
  mutable Mutex mutex_;
  StoppableCondition changed_;
  http::Handler routes_ SLUICE_GUARDED_BY(mutex_);
  std::vector<Json> batches_ SLUICE_GUARDED_BY(mutex_);  // oldest first
  std::jthread worker_;                                  // last: it uses everything above
};

}  // namespace sluice::serve
