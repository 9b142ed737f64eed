#include "tools/serve_several.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "io/checkpoint/packed_store.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/http/listener.h"
#include "src/serve/model_pool.h"
#include "src/serve/pooled_models.h"
#include "tools/arguments.h"
#include "tools/flag_words.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
namespace fs = std::filesystem;

constexpr int kFolderDepth = 2;  // a publisher's folder and the model's, as LM Studio has them
constexpr int64_t kServedContext = 4096;

// Not the first part of a split model, or what sees pictures for another.
bool is_part(const fs::path& gguf) {
  const std::string name = gguf.stem().string();
  const size_t at = name.rfind("-of-");
  if (name.starts_with("mmproj")) return true;
  return at != std::string::npos && at >= 5 && name.substr(at - 5, 5) != "00001";
}

bool has_extension(const fs::path& path, const char* extension) {
  return path.extension() == extension;
}

/// What a folder has of models.
struct Found {
  bool is_model = false;
  std::vector<fs::path> ggufs, folders;
};

Found look_into(const fs::path& folder) {
  Found found;
  found.is_model = io::is_packed_store(folder) || is_there(folder / "config.json");
  std::error_code error;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  for (const fs::path& path : entries) {
    if (has_extension(path, ".safetensors")) found.is_model = true;
    if (has_extension(path, ".gguf") && !is_part(path)) found.ggufs.push_back(path);
    if (fs::is_directory(path, error) && !path.filename().string().starts_with('.'))
      found.folders.push_back(path);
  }
  return found;
}

// The models in it, in order; none: it is nothing of that kind.
void add_models(const fs::path& path, int depth, std::vector<fs::path>& out) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return out.push_back(path);
  const Found found = look_into(path);
  if (found.is_model || (found.ggufs.size() == 1 && found.folders.empty()))
    return out.push_back(path);
  out.insert(out.end(), found.ggufs.begin(), found.ggufs.end());
  if (depth > 0)
    for (const fs::path& folder : found.folders) add_models(folder, depth - 1, out);
}
}  // namespace

std::vector<ServedPath> served_paths(const ServeFlags& flags) {
  std::vector<fs::path> paths;
  const auto add = [&](const std::string& given) {
    const size_t before = paths.size();
    add_models(given, kFolderDepth, paths);
    if (paths.size() == before) paths.emplace_back(given);  // opening it says what is wrong
  };
  add(flags.engine.model);
  for (const std::string& more : flags.more_models) add(more);
  std::vector<ServedPath> out;
  if (paths.size() > 1 && !flags.names.empty() && flags.names.size() != paths.size())
    throw Error(ErrorKind::kUser,
                fmt::format("--served-model-name gives {} names for {} models", flags.names.size(),
                            paths.size()),
                "give each of them one, in their order, or leave it out");
  for (size_t i = 0; i < paths.size(); ++i) {
    const bool is_named = i < flags.names.size();
    out.push_back({is_named ? flags.names[i] : model_name(paths[i].string()), paths[i].string()});
  }
  // Two of one name are told apart by the folders that they lie in.
  std::multiset<std::string> names;
  for (const ServedPath& one : out) names.insert(one.name);
  for (ServedPath& one : out)
    if (names.count(one.name) > 1)
      one.name = fs::absolute(one.path).lexically_normal().parent_path().filename().string() + "/" +
                 one.name;
  std::set<std::string> known;
  for (const ServedPath& one : out)
    if (!known.insert(one.name).second)
      throw Error(ErrorKind::kUser, fmt::format("two models are called {}", one.name),
                  "name them with --served-model-name, in their order");
  return out;
}

namespace {
/// Opens one of several models as the flags say.
class Opener {
 public:
  Opener(const ServeFlags& flags, const std::vector<ServedPath>& paths,
         const serve::HttpOptions& http)
      : flags_(flags), http_(http) {
    for (const ServedPath& one : paths) add(one);
  }
  const std::vector<serve::PooledModel>& models() const { return models_; }
  serve::ModelFront front(size_t index) const;
  serve::ModelParts open(const serve::ModelOpening& opening) const;
  /// What all models together may take. Errors: as EngineFlags::options().
  serve::ModelBytes budget();
  /// All that decides the answers to batch lines beside the lines.
  std::string answers_of_all() const;
  /// Prints the plan of each.
  void print_plans(const std::stop_token& stop) const;

 private:
  void add(const ServedPath& path);
  EngineFlags flags_of(size_t index) const;
  bool is_cuda() const { return flags_.engine.device == "cuda" || flags_.engine.gpu >= 0; }

  ServeFlags flags_;
  const serve::HttpOptions http_;
  std::vector<ServedPath> paths_;
  std::vector<serve::PooledModel> models_;
  serve::ModelBytes budget_;
};

void Opener::add(const ServedPath& path) {
  serve::PooledModel model;
  model.name = path.name;
  try {
    EngineFlags flags = flags_.engine;
    flags.model = path.path;
    flags.context = 0;
    model.files = open_model(flags);
    const int64_t most = model.files->shape().max_positions;
    model.context_tokens =
        std::min(most, flags_.engine.context > 0 ? flags_.engine.context : kServedContext);
  } catch (const Error& error) {
    // The other models go on; who asks for this one hears of it.
    model.problem = error.what();
    tell(fmt::format("warning: {} can't be served: {}", path.name, in_flags(error.what())));
  }
  paths_.push_back(path);
  models_.push_back(std::move(model));
}

EngineFlags Opener::flags_of(size_t index) const {
  EngineFlags out = flags_.engine;
  out.model = paths_[index].path;
  out.context = models_[index].context_tokens;
  out.prefers_memory = true;
  return out;
}

serve::ModelBytes Opener::budget() {
  budget_.host = flags_.engine.memory.empty() ? free_memory_budget()
                                              : parse_bytes(flags_.engine.memory, "--cpu-mem");
  const EngineOptions options = flags_.engine.options({});
  if (options.device) budget_.device = options.device->memory_bytes;
  if (options.backend) budget_.device = options.backend->device().memory().limit();
  return budget_;
}

serve::ModelFront Opener::front(size_t index) const {
  EngineFlags flags = flags_.engine;
  flags.model = paths_[index].path;
  serve::ModelFront out;
  out.tokenizer = need_tokenizer(flags);
  out.chat = flags_.chat.load_template(flags.model, *out.tokenizer);
  const serve::ChatStyle style = flags_.chat.style(out.chat.get());
  out.options = http_;
  out.options.defaults = flags_.chat.defaults(flags.model);
  out.options.model_name = paths_[index].name;
  out.options.takes_any_name = true;  // it was chosen by its name
  out.options.leaves = true;
  out.options.tool_format = style.tools;
  out.options.splits_thoughts = style.splits_thoughts;
  return out;
}

serve::ModelParts Opener::open(const serve::ModelOpening& opening) const {
  const serve::PooledModel& model = models_[opening.index];
  if (!model.files) throw Error(ErrorKind::kFile, model.problem);
  serve::ModelParts out{front(opening.index), nullptr};
  // A GPU's memory is looked at when it is opened: nothing else may hold it then.
  if (is_cuda()) opening.make_room(budget_);
  const EngineFlags flags = flags_of(opening.index);
  const auto adjust = [&](EngineOptions& options) {
    adjust_engine(flags_, options);
    options.memory_budget_bytes = budget_.host;
    options.load_progress = opening.progress;
  };
  const auto planned = [&](const policy::Plan& plan) {
    if (!is_cuda()) opening.make_room({plan.memory_bytes(), plan.device_bytes()});
  };
  auto opened = std::make_shared<OpenedEngine>(
      open_engine(flags, model.files, workload_of(flags_, model.context_tokens), opening.stop,
                  adjust, planned));
  (*opened)->load(opening.stop);
  out.engine = std::shared_ptr<Engine>(opened, opened->engine.get());
  return out;
}

std::string Opener::answers_of_all() const {
  ChatOptions chat = flags_.chat;
  std::string out = "several";
  if (!chat.chat_template.empty())
    out += "|" + read_text(std::exchange(chat.chat_template, ""), kMostSettingsBytes);
  for (const serve::PooledModel& one : models_)
    if (one.files) out += "|" + answers_key(one.name, *one.files, nullptr, chat, flags_.engine);
  return out;
}

void Opener::print_plans(const std::stop_token& stop) const {
  for (size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].files) continue;
    tell(fmt::format("{}:", paths_[i].name));
    open_engine(flags_of(i), models_[i].files, workload_of(flags_, models_[i].context_tokens), stop,
                [&](EngineOptions& options) { adjust_engine(flags_, options); });
  }
}

// Null: no files are kept.
std::unique_ptr<serve::Batches> batches_of(const ServeFlags& flags, const Opener& opener,
                                           const serve::ModelPool& pool) {
  if (flags.batch_dir.empty()) return nullptr;
  serve::BatchOptions options;
  options.folder = flags.batch_dir;
  options.names.model_name = "several";  // of records; answers say their own
  options.model_of = [&](const std::string& name) { return pool.models()[pool.find(name)].name; };
  options.together = flags.sequences;
  options.config = opener.answers_of_all();
  options.files.bytes = parse_bytes(flags.batch_quota, "--batch-dir-quota");
  options.log = tell;
  return std::make_unique<serve::Batches>(std::move(options));
}

// What is of one model has no meaning for several.
void check_flags(const ServeFlags& flags) {
  const auto refuse = [](const char* flag, const char* why) {
    throw Error(ErrorKind::kUser,
                fmt::format("{} and several models don't go together: {}", flag, why),
                "leave it out, or serve one model");
  };
  if (!flags.engine.loras.empty()) refuse("--lora", "an adapter is of one model");
  if (!flags.lora_dir.empty()) refuse("--lora-dir", "adapters are of one model");
  if (!flags.engine.trace.empty()) refuse("--trace", "a trace is of one model's run");
  if (flags.http.takes_any_name) refuse("--any-model", "requests choose the model by its name");
}

void wait_for_stop(const std::stop_token& stop) {
  Mutex mutex;
  StoppableCondition stopped;
  MutexLock lock(mutex);
  stopped.wait(lock, stop, [] { return false; });
}
}  // namespace

void serve_several(const ServeFlags& flags, const std::vector<ServedPath>& models,
                   const std::stop_token& stop) {
  check_flags(flags);
  if (flags.names.size() > models.size())
    throw Error(ErrorKind::kUser, "--served-model-name gives several names for a model that may go",
                "give it one");
  checked_swap(flags);
  const serve::HttpOptions http = http_options(flags);
  serve::PoolOptions options;
  options.keep = checked_keep(flags);
  ServiceManager manager;
  const http::Listener address = open_listener(flags, manager);
  Opener opener(flags, models, http);
  if (flags.engine.dry_run) return opener.print_plans(stop);
  options.budget = opener.budget();
  options.open = [&](const serve::ModelOpening& opening) { return opener.open(opening); };
  options.front = [&](size_t index) { return opener.front(index); };
  if (flags.turn_seconds >= 0) options.turn = std::chrono::seconds(flags.turn_seconds);
  options.request_timeout = http.request_timeout;
  options.most_waiting = flags.waiting;
  options.order = order_of(flags.order);
  if (flags.most_caller_tokens > 0) options.most_caller_tokens = flags.most_caller_tokens;
  options.log = tell;
  serve::ModelPool pool(opener.models(), options);
  serve::PooledModels pooled(pool);
  const auto batches = batches_of(flags, opener, pool);
  serve::HttpServer server(pooled, http, batches.get());
  server.listen(address);
  std::string names;
  for (const ServedPath& one : models) names += (names.empty() ? "" : ", ") + one.name;
  tell_address(http, address,
               fmt::format("{} ({}) at", models.size() > 1 ? "models" : "a model", names),
               "each loaded when a request names it");
  std::jthread listener([&] { server.serve(); });
  manager.notify("READY=1\nSTATUS=serving");
  wait_for_stop(stop);
  manager.notify("STOPPING=1");
  server.drain();
  if (batches) batches->stop();
  pool.drain(std::chrono::seconds(flags.drain_seconds));
  server.stop();
}

}  // namespace sluice::tools
