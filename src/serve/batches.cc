#include "src/serve/batches.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>

#include "io/files/durable_file.h"
#include "src/base/error.h"
#include "src/jobs/content_key.h"
#include "src/jobs/job.h"
#include "src/serve/api_error.h"
#include "src/serve/callers.h"
#include "src/serve/job_line.h"
#include "src/serve/json_text.h"
#include "src/serve/routed_answers.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kBatchPrefix = "batch_";
constexpr int64_t kWindowSeconds = 24 * 3600;
// Callers of the moment come first: lines are added while fewer than so many requests wait.
constexpr int64_t kMostWaitingBefore = 4;
// Each takes some tens of bytes of memory while its batch runs.
constexpr int64_t kMostLines = 1'000'000;
constexpr int64_t kMostUnfinished = 1000;

[[noreturn]] void refuse(int status, const char* param, const std::string& message) {
  throw ApiError{status, message, status == 404 ? "not_found" : "", param, 0};
}

bool has_ended(const ordered_json& batch) {
  const auto& status = batch["status"];
  return status == "completed" || status == "failed" || status == "cancelled";
}
}  // namespace

int64_t life_of(const std::string& field, const ordered_json& expires_after) {
  if (expires_after.is_null()) return 0;
  constexpr int64_t kLeast = 3600, kMost = 2'592'000;
  const bool is_object = expires_after.is_object() && expires_after.size() == 2 &&
                         expires_after.value("anchor", ordered_json()) == "created_at" &&
                         expires_after.contains("seconds") &&
                         expires_after["seconds"].is_number_integer();
  const int64_t seconds = is_object ? expires_after["seconds"].get<int64_t>() : 0;
  if (seconds < kLeast || seconds > kMost)
    refuse(400, field.c_str(),
           fmt::format("{} must be {{\"anchor\": \"created_at\", \"seconds\": {} to {}}}", field,
                       kLeast, kMost));
  return seconds;
}

namespace {
// Of a request for a batch, or of the batch.
int64_t output_life_of(const ordered_json& batch) {
  constexpr const char* kField = "output_expires_after";
  return batch.contains(kField) ? life_of(kField, batch[kField]) : 0;
}
}  // namespace

// A batch as it runs.
struct Batches::Job {
  struct Line {
    jobs::Request request;
    chat::MessageForm form;
    std::unique_ptr<GenerationService::Ticket> ticket;
    int64_t prompt_tokens = 0;
    std::string text;
    std::vector<sampling::Choice> choices;
  };
  jobs::ResultsFile results;
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::map<int, Line> running;  // by the index of its events
  RoutedAnswers routed{mailbox};
  int next_index = 0;

  size_t lines() const { return running.size() + routed.running(); }
};

// Of several models, those whose lines a pass over the file has met.
struct Batches::Phase {
  std::string endpoint;
  std::string model;  // whose lines are run; empty: the first that comes, or there is one model
  std::vector<std::string> done, next;

  // Whether a line for it is run now.
  bool takes(const std::string& name) {
    if (model.empty()) model = name;
    if (name == model) return true;
    const auto is_in = [&](const std::vector<std::string>& all) {
      return std::find(all.begin(), all.end(), name) != all.end();
    };
    if (!is_in(done) && !is_in(next)) next.push_back(name);
    return false;
  }
  // The next model's turn. False: all have had it.
  bool go_on() {
    done.push_back(model);
    if (next.empty()) return false;
    model = next.front();
    next.erase(next.begin());
    return true;
  }
};

Batches::Batches(GenerationService& service, const text::Tokenizer& tokenizer,
                 const chat::ChatTemplate* chat, BatchOptions options)
    : Batches(std::move(options)) {
  const MutexLock lock(mutex_);
  service_ = &service;
  tokenizer_ = &tokenizer;
  chat_ = chat;
  start();
}

Batches::Batches(BatchOptions options)
    : options_(std::move(options)),
      config_hash_(jobs::hash_bytes(options_.config).hex()),
      files_(options_.folder / "files", options_.files,
             [this](const std::string& id) { return is_in_use(id); }),
      lock_((options_.folder / "lock").string(), O_RDWR | O_CREAT) {
  if (::flock(lock_.fd(), LOCK_EX | LOCK_NB) != 0)
    throw Error(ErrorKind::kUser,
                fmt::format("another server keeps its batches in {}", options_.folder.string()),
                "give each server a `batch_dir` of its own");
  load();
}

void Batches::start() {
  worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void Batches::answer_with(http::Handler routes) {
  const MutexLock lock(mutex_);
  routes_ = std::move(routes);
  if (!worker_.joinable()) start();
}

Batches::~Batches() { stop(); }

void Batches::stop() {
  if (!worker_.joinable()) return;
  worker_.request_stop();
  worker_.join();
}

void Batches::load() {
  const std::filesystem::path folder = options_.folder / "batches";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: the folder can't be made: {}", folder.string(), error.message()),
                "choose another `batch_dir`");
  const MutexLock lock(mutex_);
  for (const std::filesystem::path& path : paths_in(folder)) {
    const std::string id = path.stem().string();
    if (path.extension() != ".json" || !is_random_name(id, kBatchPrefix)) continue;
    std::ifstream file(path);
    auto batch = ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
    const bool is_whole = batch.is_object() && batch.value("id", "") == id &&
                          batch.contains("status") && batch.contains("created_at");
    if (is_whole) batches_.push_back(std::move(batch));
  }
  std::sort(batches_.begin(), batches_.end(), [](const Json& a, const Json& b) {
    return std::pair(a["created_at"].get<int64_t>(), a["id"].get<std::string>()) <
           std::pair(b["created_at"].get<int64_t>(), b["id"].get<std::string>());
  });
}

const Batches::Json* Batches::at(const std::string& id) const {
  const auto found = std::find_if(batches_.begin(), batches_.end(),
                                  [&](const Json& batch) { return batch["id"] == id; });
  return found == batches_.end() ? nullptr : &*found;
}
Batches::Json& Batches::known(const std::string& id) { return const_cast<Json&>(*at(id)); }

void Batches::change(const std::string& id, const std::function<void(Json&)>& how,
                     bool is_durable) {
  const MutexLock writing(writing_);
  std::string text;
  {
    const MutexLock lock(mutex_);
    Json& batch = known(id);
    how(batch);
    text = dump(batch) + "\n";
  }
  if (is_durable) io::write_file_durably(path_of(id, ".json"), text);
  changed_.notify_all();
}

std::string Batches::status_of(const std::string& id) const {
  const MutexLock lock(mutex_);
  return (*at(id))["status"].get<std::string>();
}

Batches::Json Batches::create(const Json& body) {
  const auto text_of = [&](const char* name) {
    if (!body.contains(name) || !body[name].is_string())
      refuse(400, name, fmt::format("{} is missing or no string", name));
    return body[name].get<std::string>();
  };
  for (const auto& [name, value] : body.items())
    if (name != "input_file_id" && name != "endpoint" && name != "completion_window" &&
        name != "metadata" && name != "output_expires_after" && !value.is_null())
      refuse(400, "", fmt::format("the field \"{}\" is unknown", name.substr(0, 100)));
  const std::string file = text_of("input_file_id"), endpoint = text_of("endpoint");
  constexpr std::string_view kEndpoints[] = {"/v1/completions", "/v1/chat/completions",
                                             "/v1/embeddings", "/v1/responses"};
  if (std::find(std::begin(kEndpoints), std::end(kEndpoints), endpoint) == std::end(kEndpoints))
    refuse(400, "endpoint",
           "endpoint must be /v1/completions, /v1/chat/completions, /v1/embeddings or "
           "/v1/responses");
  if (body.contains("completion_window") && body["completion_window"] != "24h")
    refuse(400, "completion_window", "completion_window must be \"24h\"");
  if (body.contains("metadata") && !body["metadata"].is_null() && !body["metadata"].is_object())
    refuse(400, "metadata", "metadata must be an object");
  if (!files_.find(file))
    refuse(404, "input_file_id", fmt::format("there is no file {}", file.substr(0, 100)));
  const int64_t output_life = output_life_of(body);
  const std::string id = random_name(kBatchPrefix);
  const int64_t now = std::time(nullptr);
  Json batch{{"id", id},
             {"object", "batch"},
             {"endpoint", endpoint},
             {"errors", nullptr},
             {"input_file_id", file},
             {"completion_window", "24h"},
             {"status", "validating"},
             {"output_file_id", nullptr},
             {"error_file_id", nullptr},
             {"created_at", now},
             {"in_progress_at", nullptr},
             {"expires_at", now + kWindowSeconds},
             {"finalizing_at", nullptr},
             {"completed_at", nullptr},
             {"failed_at", nullptr},
             {"expired_at", nullptr},
             {"cancelling_at", nullptr},
             {"cancelled_at", nullptr},
             {"request_counts", {{"total", 0}, {"completed", 0}, {"failed", 0}}},
             {"metadata", body.contains("metadata") ? body["metadata"] : Json(nullptr)}};
  if (output_life > 0) batch["output_expires_after"] = body["output_expires_after"];
  {
    const MutexLock lock(mutex_);
    const auto unfinished = std::count_if(batches_.begin(), batches_.end(),
                                          [](const Json& one) { return !has_ended(one); });
    if (unfinished >= kMostUnfinished)
      throw ApiError{429,
                     fmt::format("{} batches have not ended; cancel some, or wait", unfinished),
                     "batch_quota_exceeded", "", 60};
    batches_.push_back(batch);
  }
  change(id, [](Json&) {});
  return batch;
}

Batches::Json Batches::find(const std::string& id) const {
  const MutexLock lock(mutex_);
  const Json* batch = at(id);
  if (!batch) refuse(404, "batch_id", fmt::format("there is no batch {}", id.substr(0, 100)));
  return *batch;
}

Batches::Json Batches::list(const std::string& after, size_t limit) const {
  const MutexLock lock(mutex_);
  Json data = Json::array();
  if (!after.empty() && !at(after))
    refuse(400, "after", fmt::format("after: there is no batch {}", after.substr(0, 100)));
  bool is_behind = after.empty(), has_more = false;
  for (auto batch = batches_.rbegin(); batch != batches_.rend(); ++batch) {
    if (is_behind && data.size() == limit) {
      has_more = true;
      break;
    }
    if (is_behind) data.push_back(*batch);
    is_behind = is_behind || (*batch)["id"] == after;
  }
  return {{"object", "list"},
          {"data", data},
          {"first_id", data.empty() ? Json(nullptr) : data.front()["id"]},
          {"last_id", data.empty() ? Json(nullptr) : data.back()["id"]},
          {"has_more", has_more}};
}

Batches::Json Batches::cancel(const std::string& id) {
  find(id);
  change(id, [&](Json& batch) {
    if (has_ended(batch) || batch["status"] == "finalizing")
      refuse(409, "batch_id",
             fmt::format("the batch is {} already", batch["status"].get<std::string>()));
    batch["status"] = "cancelling";
    batch["cancelling_at"] = std::time(nullptr);
  });
  return find(id);
}

bool Batches::is_in_use(const std::string& file_id) const {
  const MutexLock lock(mutex_);
  return std::any_of(batches_.begin(), batches_.end(), [&](const Json& batch) {
    return !has_ended(batch) && batch["input_file_id"] == file_id;
  });
}

void Batches::work(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "batches");
  while (!stop.stop_requested()) {
    std::string id;
    {
      MutexLock lock(mutex_);
      const auto next = [&]() SLUICE_REQUIRES(mutex_) {
        const auto found = std::find_if(batches_.begin(), batches_.end(), [&](const Json& batch) {
          return !has_ended(batch) && is_for_us(batch);
        });
        id = found == batches_.end() ? "" : (*found)["id"].get<std::string>();
        return !id.empty();
      };
      if (!changed_.wait(lock, stop, next)) return;
    }
    if (!failure().empty()) return;  // the next start goes on
    try {
      run(id, stop);
    } catch (const std::exception& error) {
      fail(id, error.what());
    }
  }
}

// What another model has begun is left to it.
bool Batches::is_for_us(const Json& batch) const {
  return !batch.contains("sluice") || batch["sluice"]["config"] == config_hash_;
}

void Batches::fail(const std::string& id, const std::string& message) {
  if (options_.log) options_.log(fmt::format("batch {}: {}", id, message));
  const auto how = [&](Json& batch) {
    batch["status"] = "failed";
    batch["failed_at"] = std::time(nullptr);
    batch["errors"] = {
        {"object", "list"},
        {"data",
         Json::array(
             {{{"code", "failed"}, {"message", message}, {"param", nullptr}, {"line", nullptr}}})}};
  };
  try {
    change(id, how);
  } catch (const std::exception&) {
    change(id, how,
           /*is_durable=*/false);  // the disk is what failed; tried again at the next start
  }
}

// False: no more is taken now.
bool Batches::submit(Job& job, jobs::Request request) {
  if (request.body.empty()) return submit_own(job, std::move(request));
  http::Handler routes;
  {
    const MutexLock lock(mutex_);
    routes = routes_;
  }
  return routes &&
         job.routed.start(routes, std::move(request), job.results) == RoutedAnswers::Start::kTaken;
}

bool Batches::submit_own(Job& job, jobs::Request request) {
  try {
    std::vector<Submission> all(1);
    Submission& one = all.front();
    LinePrompt prompt = line_prompt(
        request, tokenizer_,
        {chat_, options_.tool_format, options_.splits_thoughts, options_.takes_templates});
    one.prompt = std::move(prompt.ids);
    one.params = std::move(prompt.params);
    one.keeps_special = prompt.keeps_special;
    one.priority = kBatchPriority;
    one.caller = kBatchCaller;
    if (!request.model.empty() && !options_.names.names(request.model)) {
      one.adapter = service_->adapters().find(request.model);
      if (!one.adapter && !options_.names.takes_any_name)  // unloaded since
        throw Error(ErrorKind::kUser, fmt::format("there is no adapter {} any more", request.model),
                    "load it again, and send the line anew");
    }
    const auto prompt_tokens = static_cast<int64_t>(one.prompt.size());
    const int64_t tokens = GenerationService::tokens_of(all), most = service_->most_caller_tokens();
    if (tokens > most)  // no wait makes room for it
      throw Error(ErrorKind::kUser,
                  fmt::format("prompt and answer may have {} tokens together, and all batches {}",
                              tokens, most),
                  "lower max_tokens");
    auto admission = service_->submit(std::move(all), job.mailbox, job.next_index);
    if (admission.outcome != RequestQueue::Outcome::kTaken) return false;
    job.running[job.next_index++] = {std::move(request),
                                     std::move(prompt.form),
                                     std::move(admission.ticket),
                                     prompt_tokens,
                                     {},
                                     {}};
  } catch (const Error& error) {
    job.results.write_error(request, "invalid_request", error.what());
  }
  return true;
}

void Batches::take_event(Job& job, const Event& event) {
  const auto found = job.running.find(event.index);
  if (found == job.running.end()) return;
  Job::Line& line = found->second;
  if (event.kind == Event::Kind::kText) {
    line.text += event.text;
    line.choices.insert(line.choices.end(), event.choices.begin(), event.choices.end());
  }
  if (!event.is_last()) return;
  if (event.kind == Event::Kind::kRefused) {
    job.results.write_error(line.request, "refused", event.text);
  } else if (event.kind == Event::Kind::kFinished && event.finish_reason != "cancelled") {
    jobs::Completion completion;
    completion.text = std::move(line.text);
    completion.finish_reason = event.finish_reason;
    completion.prompt_tokens = line.prompt_tokens;
    completion.completion_tokens = event.output_tokens;
    read_answer(line.request, line.form, completion);
    if (line.request.params.logprobs >= 0)
      completion.logprobs = token_texts(line.choices, tokenizer_);
    job.results.write(line.request, completion);
  }
  job.running.erase(found);
}

std::string Batches::metrics() const {
  std::map<std::string, int> by_status;
  {
    const MutexLock lock(mutex_);
    for (const Json& batch : batches_) ++by_status[batch["status"].get<std::string>()];
  }
  std::string out;
  metric_head(out, "sluice:batches", "gauge", "Batches, by status.");
  for (const auto& [status, count] : by_status)
    out += fmt::format("sluice:batches{{status=\"{}\"}} {}\n", status, count);
  return out;
}

// Why a line can't be answered in a batch for `endpoint`; empty: it can.
std::string Batches::misfit(const jobs::Request& line, const std::string& endpoint) const {
  const bool is_named = endpoint == "/v1/completions" || endpoint == "/v1/chat/completions";
  if (line.url.empty() ? !is_named : line.url != endpoint)
    return fmt::format("url is {}; the batch is for {}", line.url.empty() ? "missing" : line.url,
                       endpoint);
  if (options_.model_of) {
    if (line.model.empty()) return "model is missing; this server has several";
    try {
      options_.model_of(line.model);
      return {};
    } catch (const ApiError& error) {
      return error.message;
    }
  }
  std::vector<std::string> adapters;
  for (const AdapterPtr& one : service_->adapters().list()) adapters.push_back(one->name);
  if (options_.names.takes_any_name || options_.names.names(line.model)) return {};
  return other_model(line, options_.names.model_name, adapters);
}

// Whether one line more may run beside the lines that run.
bool Batches::has_room(const Job& job) const {
  if (job.lines() == 0) return true;
  const int64_t together =
      service_ ? std::max<int64_t>(service_->engine().plan().policy.block_sequences(), 1)
               : options_.together;
  const bool waits = service_ && service_->waiting() >= kMostWaitingBefore;
  return static_cast<int64_t>(job.lines()) < together && !waits;
}

// Runs the lines that this phase takes, each once it is its turn. False: the engine has stopped.
bool Batches::run_lines(Job& job, Phase& phase, const std::string& input,
                        const std::function<bool()>& goes_on) {
  std::ifstream stream(input);
  const bool is_one = service_ != nullptr;
  jobs::JobReader reader(stream, input, options_.defaults, &job.results,
                         is_one ? service_->engine().model().shape().vocab_size : 0, {},
                         is_one ? jobs::RoutedLines::kMore : jobs::RoutedLines::kAll);
  std::optional<jobs::Request> held;  // there was no room for it
  bool is_at_end = false;
  while (goes_on()) {
    while (!is_at_end && has_room(job) && goes_on()) {
      if (!held) {
        auto line = reader.next();
        if (!line) {
          is_at_end = true;
          break;
        }
        if (const auto* error = std::get_if<jobs::RequestError>(&*line)) {
          job.results.write_error(*error);
          continue;
        }
        held = std::move(std::get<jobs::Request>(*line));
        if (const std::string why = misfit(*held, phase.endpoint); !why.empty()) {
          job.results.write_error(*held, "invalid_request", why);
          held.reset();
          continue;
        }
        if (options_.model_of && !phase.takes(options_.model_of(held->model))) {
          held.reset();
          continue;
        }
      }
      if (!submit(job, *held)) break;
      held.reset();
    }
    if (is_at_end && job.lines() == 0) break;
    if (!failure().empty()) return false;
    const auto event = job.mailbox->take(options_.look);
    if (event) take_event(job, *event);
    job.routed.look(job.results);
  }
  return true;
}

void Batches::run(const std::string& id, const std::stop_token& stop) {
  const Json batch = find(id);
  const std::string input = files_.path_of(batch["input_file_id"].get<std::string>()).string();
  const std::string endpoint = batch["endpoint"];
  std::ifstream counted(input);
  if (!counted) throw Error(ErrorKind::kFile, "the input file is gone");
  const auto total = jobs::count_requests(counted, input).requests;
  if (total > kMostLines)
    throw Error(ErrorKind::kUser,
                fmt::format("the input file has {} lines; a batch may have {}", total, kMostLines),
                "send them as several files");
  Job job{jobs::ResultsFile(path_of(id, ".results.jsonl").string(), options_.config,
                            options_.names.model_name)};
  const auto count = [&](Json& of) {
    of["request_counts"] = {{"total", total},
                            {"completed", job.results.answers()},
                            {"failed", job.results.records() - job.results.answers()}};
  };
  if (status_of(id) == "validating")
    change(id, [&](Json& of) {
      of["status"] = "in_progress";
      of["in_progress_at"] = std::time(nullptr);
      of["sluice"] = {{"config", config_hash_}};
      count(of);
    });
  auto looked = Clock::now();
  const auto goes_on = [&] {
    if (Clock::now() - looked >= options_.look) {
      job.results.flush();
      change(id, count, /*is_durable=*/false);
      looked = Clock::now();
    }
    return !stop.stop_requested() && status_of(id) != "cancelling";
  };
  Phase phase;
  phase.endpoint = endpoint;
  do {
    if (!run_lines(job, phase, input, goes_on)) return;
  } while (goes_on() && phase.go_on());
  job.results.flush();
  change(id, count);
  if (stop.stop_requested()) return;
  job.running.clear();
  job.routed.clear();
  finish(id, status_of(id) == "cancelling" ? "cancelled" : "completed");
}

// What there is becomes the output and the error file.
void Batches::finish(const std::string& id, const std::string& status) {
  if (status == "completed")
    change(id, [](Json& batch) {
      batch["status"] = "finalizing";
      batch["finalizing_at"] = std::time(nullptr);
    });
  const std::string results = path_of(id, ".results.jsonl").string();
  const auto output = path_of(id, ".output.jsonl"), errors = path_of(id, ".errors.jsonl");
  const jobs::SplitCounts counts = jobs::split_results(results, output.string(), errors.string());
  std::error_code error;
  const Json batch = find(id);
  const int64_t life = output_life_of(batch);
  const auto stored = [&](const std::filesystem::path& path, int64_t lines) -> Json {
    if (lines > 0)
      return files_
          .take(fmt::format("{}_{}", id, path.stem().extension().string().substr(1)) + ".jsonl",
                "batch_output", path, life)
          .id;
    std::filesystem::remove(path, error);  // empty: it may stay
    return nullptr;
  };
  const Json output_id = stored(output, counts.answers), error_id = stored(errors, counts.errors);
  change(id, [&](Json& batch) {
    batch["status"] = status;
    batch[status + "_at"] = std::time(nullptr);
    batch["output_file_id"] = output_id;
    batch["error_file_id"] = error_id;
  });
  std::filesystem::remove(results, error);  // a next start takes it for what it is
}

}  // namespace sluice::serve
