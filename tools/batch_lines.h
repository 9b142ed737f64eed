#pragma once
// What batch does with lines, whoever reads them and wherever their records go: lines become
// requests of the engine, results become records. For the command alone and for ranks of a job.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "src/app/generate_text.h"
#include "src/guide/guide_maker.h"
#include "src/jobs/job.h"
#include "src/serve/job_line.h"
#include "tools/chat_options.h"
#include "tools/engine_flags.h"
#include "tools/sampling_flags.h"

namespace sluice::tools {

/// What the command line says.
struct BatchFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  ChatOptions chat;
  std::string input;
  std::string output;
  std::string shard_text;
  double rank_deadline = 60;
};

/// A line as the engine takes it, and how its answer is to be read.
struct EncodedLine {
  GenerationRequest request;
  chat::MessageForm form;
  bool keeps_special = false;
};

/// The model with all that turns lines into token ids.
class BatchModel {
 public:
  /// Errors: kFile, kUser.
  explicit BatchModel(const BatchFlags& flags);

  /// Errors: kUser, kFile from the prompt or the guide.
  EncodedLine encode(const jobs::Request& request) const;
  /// Tokens of a sequence, at most.
  int64_t longest(const BatchFlags& flags) const;
  int32_t vocab_size() const { return static_cast<int32_t>(model->shape().vocab_size); }

  std::shared_ptr<const BoundModel> model;
  std::unique_ptr<text::Tokenizer> tokenizer;  ///< null: ids only
  std::unique_ptr<chat::ChatTemplate> chat;    ///< null: no chats
  std::string name;                            ///< what lines may call the model
  std::string config;                          ///< answers_key, and what the adapters are
  std::vector<std::string> adapters;           ///< what lines may call instead

 private:
  serve::ChatStyle style_;
  mutable std::optional<guide::GuideMaker> guides_;
};

/// Looks at all lines beforehand, to know what the memory has to hold. `use`: each request that can
/// run, with its tokens at most.
struct Survey {
  policy::Workload workload;
  int64_t requests = 0;
};
Survey survey(jobs::JobReader& reader, const BatchModel& model, int64_t longest,
              const std::function<void(const jobs::Request&, int64_t tokens)>& use = {});

/// Lines as they come.
class LineSource {
 public:
  virtual ~LineSource() = default;
  virtual std::optional<jobs::ParsedLine> next() = 0;
  /// RequestSource's.
  virtual bool is_open() { return false; }
  virtual void wait(const std::stop_token& stop) { static_cast<void>(stop); }
};

/// Lines of a file.
class FileLines final : public LineSource {
 public:
  explicit FileLines(jobs::JobReader& reader) : reader_(reader) {}
  std::optional<jobs::ParsedLine> next() override { return reader_.next(); }

 private:
  jobs::JobReader& reader_;
};

/// From lines to records, by way of an engine: its source of requests, and what becomes of its
/// results. What is no request becomes an error record on the way. One thread.
class BatchRun final : public RequestSource {
 public:
  /// All outlive it.
  BatchRun(LineSource& lines, jobs::ResultsFile& results, const BatchModel& model,
           const AdapterBank& adapters);

  std::optional<GenerationRequest> next() override;
  bool is_open() override { return lines_.is_open(); }
  void wait(const std::stop_token& stop) override { lines_.wait(stop); }

  app::TextSink& sink() noexcept { return sink_; }
  std::function<void()> on_record;  ///< after each
  int64_t answered() const noexcept { return answered_; }
  int64_t failed() const noexcept { return failed_; }
  /// Of the requests that ran.
  int64_t done() const noexcept { return done_; }

 private:
  struct Running {
    jobs::Request request;
    chat::MessageForm form;
  };
  void fail(const jobs::Request& request, const char* code, const std::string& why);
  void take(const app::TextResult& result);
  void tell() const {
    if (on_record) on_record();
  }

  LineSource& lines_;
  jobs::ResultsFile& results_;
  const BatchModel& model_;
  const AdapterBank& adapters_;
  app::TextSink sink_;
  std::map<uint64_t, Running> running_;
  int64_t answered_ = 0, failed_ = 0, done_ = 0;
};

/// Throws kUser where the output has error records.
void fail_for_errors(jobs::ResultsFile& results, const std::string& output);

/// The command as one rank of several that mpirun started.
void run_rank(const BatchFlags& flags, std::stop_token stop);

}  // namespace sluice::tools
