#include "src/serve/model_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/system_error.h"
#include "src/serve/api_request.h"
#include "src/serve/model_routes.h"
#include "src/serve/model_wish.h"
#include "src/serve/ollama_request.h"
#include "src/serve/waiting_answer.h"

namespace sluice::serve {

namespace {
constexpr int kBeginners = 2;                        // threads that begin what has waited
constexpr std::chrono::milliseconds kLook{1000};     // between two looks at who may go
constexpr std::chrono::seconds kRefusalTime{10};     // that a failed load is remembered
constexpr std::chrono::milliseconds kTurnLook{200};  // of a model that waits for a turn's end

// What callers are told of a load that failed; files' paths are for the log.
ApiError load_error(const std::string& name, const Error& error) {
  if (error.kind() == ErrorKind::kResource)
    return {503, fmt::format("the model \"{}\" can't be loaded: {}", name, error.text()),
            "model_load_failed", "model", 60};
  const bool is_told = error.kind() == ErrorKind::kUser;
  return {500,
          fmt::format("the model \"{}\" can't be loaded: {}", name,
                      is_told ? error.text() : "the server's log says why"),
          "model_load_failed", "model", 0};
}
}  // namespace

/// A model in memory.
struct ModelPool::Hosted {
  Hosted(ModelParts given, const std::string& name, const PoolOptions& options,
         const Guard& guarded)
      : parts(std::move(given)),
        service(*parts.engine, *parts.tokenizer, name, options.most_waiting, options.order,
                options.most_caller_tokens),
        routes(service, *parts.tokenizer, parts.chat.get(), parts.options) {
    routes.add_to(router, guarded);
  }

  const ModelParts parts;
  GenerationService service;
  const ModelRoutes routes;
  http::Router router;
};

/// A request whose model is not there.
struct ModelPool::Waiter {
  http::Request request;
  Caller caller;
  Clock::time_point since = Clock::now();
  std::shared_ptr<AwaitedResponse> awaited = std::make_shared<AwaitedResponse>();

  bool is_batch() const { return caller.id == kBatchCaller.id; }
};

struct ModelPool::Slot {
  size_t index = 0;
  ModelPlace place = ModelPlace::kAbsent;
  std::unique_ptr<Hosted> model;  ///< of kLoaded, and of kLeaving until it goes
  int64_t leases = 0;             ///< requests that are being answered
  int64_t caller_leases = 0;      ///< leases of requests that callers sent, not batches
  std::deque<std::unique_ptr<Waiter>> waiters;
  KeepTime keep;
  Clock::time_point last_used, loaded_at;
  ModelBytes bytes;
  LoadProgress progress;
  int64_t loads = 0;
  double load_seconds = 0;
  std::optional<ApiError> refusal;  ///< why the last load failed
  Clock::time_point refused_until;

  bool is_there() const { return model != nullptr; }
  bool is_idle() const { return leases == 0 && (waiters.empty() || place == ModelPlace::kLeaving); }
  void forget_left() {
    std::erase_if(waiters, [](const auto& one) { return one->awaited->is_left(); });
  }
  bool has_callers() const {
    return std::any_of(waiters.begin(), waiters.end(),
                       [](const auto& one) { return !one->is_batch(); });
  }
};

ModelPool::ModelPool(std::vector<PooledModel> models, PoolOptions options)
    : models_(std::move(models)), options_(std::move(options)), crew_("begin", kBeginners) {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < models_.size(); ++i) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->index = i;
  }
}

ModelPool::~ModelPool() { drain(std::chrono::milliseconds(0)); }

void ModelPool::start(Guard guarded) {
  guarded_ = std::move(guarded);
  worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void ModelPool::changed() {
  ++changes_;
  changed_.notify_all();
}

size_t ModelPool::find(const std::string& name) const {
  if (name.empty()) {
    const MutexLock lock(mutex_);
    return asked_last_;
  }
  for (size_t i = 0; i < models_.size(); ++i)
    if (models_[i].name == name || models_[i].name == without_tag(name, models_[i].name)) return i;
  std::string names;
  for (const PooledModel& one : models_)
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", one.name);
  throw ApiError{404,
                 fmt::format("the model \"{}\" is not served here; this server has {}",
                             name.substr(0, 200), names),
                 "model_not_found", "model", 0};
}

ModelPool::Lease ModelPool::take(Slot& slot, bool is_batch) {
  ++slot.leases;
  if (!is_batch) ++slot.caller_leases;
  slot.last_used = Clock::now();
  return {slot.model.get(), [this, &slot, is_batch](Hosted*) { give_back(slot, is_batch); }};
}

void ModelPool::give_back(Slot& slot, bool is_batch) {
  const MutexLock lock(mutex_);
  --slot.leases;
  if (!is_batch) --slot.caller_leases;
  slot.last_used = Clock::now();
  changed();
}

void ModelPool::serve(const Lease& lease, const http::Request& request,
                      http::Response& response) const {
  const auto match = lease->router.find(request.method, request.path);
  if (!match) {
    response = error_response({404, "there is no such route", "", "", 0});
    return;
  }
  (*match->handler)(request, response);
  if (response.live)
    response.live = std::make_shared<HoldingAnswer>(std::move(response.live), lease);
}

void ModelPool::answer(const http::Request& request, http::Response& response) {
  std::optional<ModelWish> wish;
  if (request.method == "POST") {
    wish = read_wish(request.body);
    if (!wish) parse_object(request.body);  // says what is wrong with it
  } else if (const std::string* named = request.parameter("model")) {
    wish = ModelWish{*named, {}, false};
  }
  const size_t index = find(wish ? wish->model : std::string());
  Lease lease;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) throw ApiError{503, "the server is shutting down", "", "", 0};
    Slot& slot = *slots_[index];
    if (slot.place == ModelPlace::kAbsent && slot.refusal && Clock::now() < slot.refused_until)
      throw ApiError(*slot.refusal);
    asked_last_ = index;
    slot.keep = wish && wish->keep ? *wish->keep : options_.keep;
    if (slot.place == ModelPlace::kLoaded && slot.waiters.empty()) {
      lease = take(slot, AnsweredCaller::is_batch());
    } else {
      int64_t waiting = 0;
      for (const auto& one : slots_) waiting += std::ssize(one->waiters);
      if (waiting >= options_.most_waiting)
        throw ApiError{429, "too many requests are waiting; try again later", "", "", 10};
      auto waiter = std::make_unique<Waiter>(Waiter{request, AnsweredCaller::now()});
      const bool has_end = options_.request_timeout.count() > 0 && !waiter->is_batch();
      const ApiError late{504,
                          fmt::format("the model was not there within the {} s that this server "
                                      "gives a request",
                                      options_.request_timeout.count()),
                          "timeout", "", 0};
      response.live = std::make_shared<WaitingAnswer>(
          waiter->awaited,
          has_end ? http::Clock::now() + options_.request_timeout : http::Clock::time_point::max(),
          error_response(late, error_shape(request.path)));
      slot.waiters.push_back(std::move(waiter));
      changed();
      return;
    }
  }
  serve(lease, request, response);
}

// In a thread of the crew: begins the answer of who has waited longest, if the model is still
// there.
void ModelPool::serve_next(Slot& slot) {
  std::unique_ptr<Waiter> waiter;
  Lease lease;
  {
    const MutexLock lock(mutex_);
    if (slot.place != ModelPlace::kLoaded || slot.waiters.empty()) return;
    waiter = std::move(slot.waiters.front());
    slot.waiters.pop_front();
    lease = take(slot, waiter->is_batch());
    changed();
  }
  if (waiter->awaited->is_left()) return;
  http::Response response;
  const AnsweredCaller caller(waiter->caller);
  serve(lease, waiter->request, response);
  waiter->awaited->put(std::move(response));
}

void ModelPool::refuse_all(Slot& slot, const ApiError& error) {
  std::deque<std::unique_ptr<Waiter>> waiters;
  {
    const MutexLock lock(mutex_);
    waiters.swap(slot.waiters);
  }
  const http::Handler refuse = [&](const http::Request&, http::Response&) {
    throw ApiError(error);
  };
  for (const auto& waiter : waiters) {
    http::Response response;
    guarded_(refuse)(waiter->request, response);
    waiter->awaited->put(std::move(response));
  }
}

void ModelPool::let_go(const std::string& name) {
  const size_t index = find(name);
  const MutexLock lock(mutex_);
  slots_[index]->keep = std::chrono::milliseconds(0);
  changed();
}

ModelPool::Slot* ModelPool::wanted() const {
  Slot* first = nullptr;
  const auto rank = [](const Slot& of) {
    return std::pair(!of.has_callers(), of.waiters.front()->since);
  };
  for (const auto& slot : slots_) {
    slot->forget_left();
    if (slot->place != ModelPlace::kAbsent || slot->waiters.empty()) continue;
    if (!first || rank(*slot) < rank(*first)) first = slot.get();
  }
  return first;
}

// Who is to go, asked for or not: nobody has asked it for its time, or its engine has stopped.
ModelPool::Slot* ModelPool::due() const {
  for (const auto& slot : slots_) {
    if (!slot->is_there()) continue;
    if (!slot->model->service.failure().empty()) {
      slot->place = ModelPlace::kLeaving;
      if (slot->leases == 0) return slot.get();
    }
    if (slot->place == ModelPlace::kLoaded && slot->is_idle() && slot->keep &&
        Clock::now() >= slot->last_used + *slot->keep)
      return slot.get();
  }
  return nullptr;
}

// Gives the lock back while the model's memory is freed, which the analysis does not follow.
void ModelPool::unload(Slot& slot, MutexLock& lock) SLUICE_NOT_ANALYSED {
  slot.place = ModelPlace::kLeaving;
  std::unique_ptr<Hosted> gone = std::move(slot.model);
  lock.unlock();
  const std::string failure = gone->service.failure();
  gone.reset();
  if (options_.log)
    options_.log(failure.empty() ? fmt::format("{} has left the memory", models_[slot.index].name)
                                 : fmt::format("{} has left the memory: its engine has stopped: {}",
                                               models_[slot.index].name, failure));
  lock.lock();
  slot.bytes = {};
  slot.place = ModelPlace::kAbsent;
  changed();
}

bool ModelPool::fits(const ModelBytes& more, const std::vector<Slot*>& gone) const {
  ModelBytes all = more;
  bool is_alone = true;
  for (const auto& slot : slots_) {
    if (!slot->is_there() || std::find(gone.begin(), gone.end(), slot.get()) != gone.end())
      continue;
    is_alone = false;
    all.host += slot->bytes.host;
    all.device += slot->bytes.device;
  }
  // What was planned alone fits alone.
  return is_alone || (all.host <= options_.budget.host && all.device <= options_.budget.device);
}

// The fewest that make room, asked longest ago first; all that may go where that is not enough.
std::vector<ModelPool::Slot*> ModelPool::in_the_way(
    const Slot& slot, const ModelBytes& bytes,
    const std::function<bool(const Slot&)>& may_go) const {
  std::vector<Slot*> all;
  for (const auto& one : slots_)
    if (one.get() != &slot && one->is_there() && may_go(*one)) all.push_back(one.get());
  std::sort(all.begin(), all.end(), [](const Slot* a, const Slot* b) {
    return std::pair(!a->is_idle(), a->last_used) < std::pair(!b->is_idle(), b->last_used);
  });
  std::vector<Slot*> going;
  for (Slot* one : all) {
    if (fits(bytes, going)) break;
    going.push_back(one);
  }
  for (size_t i = going.size(); i-- > 0;) {
    std::vector<Slot*> fewer = going;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (fits(bytes, fewer)) going = std::move(fewer);
  }
  return going;
}

// Who was to leave and has not stays after all.
void ModelPool::let_stay() {
  for (const auto& slot : slots_) {
    if (slot->place != ModelPlace::kLeaving || !slot->is_there()) continue;
    slot->place = ModelPlace::kLoaded;
    for (size_t i = 0; i < slot->waiters.size(); ++i)
      crew_.post([this, of = slot.get()] { serve_next(*of); });
  }
}

void ModelPool::make_room(Slot& slot, const ModelBytes& bytes, const std::stop_token& stop) {
  MutexLock lock(mutex_);
  const auto give_up = [](const char* why) { return Error(ErrorKind::kCancelled, why); };
  while (!fits(bytes, {})) {
    slot.forget_left();
    if (stop.stop_requested()) throw give_up("the server is shutting down");
    if (slot.waiters.empty()) throw give_up("nobody waits for the model any more");
    const bool is_batch = !slot.has_callers();
    if (const Slot* other = wanted(); is_batch && other && other->has_callers())
      throw give_up("callers come before batches");
    if (Slot* one = due()) {
      unload(*one, lock);
      continue;
    }
    const auto now = Clock::now();
    const auto idle = in_the_way(slot, bytes, [&](const Slot& one) {
      return one.is_idle() && (!is_batch || now >= one.last_used + options_.turn);
    });
    if (fits(bytes, idle)) {
      for (Slot* one : idle)
        if (one->is_there() && one->is_idle()) unload(*one, lock);
      continue;
    }
    if (!is_batch)
      for (Slot* one : in_the_way(slot, bytes, [](const Slot&) { return true; }))
        if (now >= one->loaded_at + options_.turn || one->caller_leases == 0)
          one->place = ModelPlace::kLeaving;
    const int64_t seen = changes_;
    changed_.wait_for(lock, stop, kTurnLook,
                      [&]() SLUICE_REQUIRES(mutex_) { return changes_ != seen; });
  }
  slot.bytes = bytes;
}

void ModelPool::load(Slot& slot, const std::stop_token& stop) {
  const std::string& name = models_[slot.index].name;
  const auto started = Clock::now();
  ModelOpening opening;
  opening.index = slot.index;
  opening.stop = stop;
  opening.make_room = [&](const ModelBytes& bytes) { make_room(slot, bytes, stop); };
  opening.progress = [&](const LoadProgress& progress) {
    const MutexLock lock(mutex_);
    slot.progress = progress;
  };
  std::optional<ApiError> refusal;
  try {
    ModelParts parts = options_.open(opening);
    auto hosted = std::make_unique<Hosted>(std::move(parts), name, options_, guarded_);
    const MutexLock lock(mutex_);
    slot.model = std::move(hosted);
    slot.place = ModelPlace::kLoaded;
    slot.loaded_at = slot.last_used = Clock::now();
    slot.refusal.reset();
    ++slot.loads;
    const double took = std::chrono::duration<double>(Clock::now() - started).count();
    slot.load_seconds += took;
    if (options_.log) options_.log(fmt::format("{} is in memory, after {:.1f} s", name, took));
    for (size_t i = 0; i < slot.waiters.size(); ++i)
      crew_.post([this, &slot] { serve_next(slot); });
    let_stay();
    changed();
  } catch (...) {
    const Error error = current_error();
    const MutexLock lock(mutex_);
    slot.place = ModelPlace::kAbsent;
    slot.bytes = {};
    let_stay();
    changed();
    if (error.kind() != ErrorKind::kCancelled) {
      if (options_.log) options_.log(fmt::format("{} can't be loaded: {}", name, error.what()));
      slot.refusal = refusal = load_error(name, error);
      slot.refused_until = Clock::now() + kRefusalTime;
    }
  }
  if (refusal) refuse_all(slot, *refusal);
}

void ModelPool::work(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "models");
  while (!stop.stop_requested()) {
    Slot* next = nullptr;
    {
      MutexLock lock(mutex_);
      if (Slot* one = due()) {
        unload(*one, lock);
        continue;
      }
      next = wanted();
      if (next) {
        next->place = ModelPlace::kLoading;
        next->progress = {};
      } else {
        changed_.wait_for(lock, stop, kLook,
                          [&]() SLUICE_REQUIRES(mutex_) { return wanted() || due(); });
      }
    }
    if (next) load(*next, stop);
  }
}

ModelState ModelPool::state(size_t index, WithMetrics with_metrics) const {
  const MutexLock lock(mutex_);
  const Slot& slot = *slots_[index];
  ModelState out;
  out.place = slot.place;
  out.bytes = slot.bytes;
  out.loaded_bytes = slot.progress.done_bytes;
  out.total_bytes = slot.progress.total_bytes;
  out.waiting = std::ssize(slot.waiters);
  out.loads = slot.loads;
  out.load_seconds = slot.load_seconds;
  if (slot.keep) {
    const auto from = slot.is_idle() ? slot.last_used : Clock::now();
    out.leaves = std::chrono::duration_cast<std::chrono::seconds>(
        std::max<Clock::duration>(from + *slot.keep - Clock::now(), Clock::duration::zero()));
  }
  if (!slot.is_there()) return out;
  const GenerationService& service = slot.model->service;
  out.running = service.running();
  out.waiting += service.waiting();
  if (with_metrics == WithMetrics::kYes) out.metrics = service.metrics_text();
  return out;
}

void ModelPool::drain(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    changed();
  }
  if (worker_.joinable()) {
    worker_.request_stop();
    worker_.join();
  }
  std::vector<Slot*> all;
  {
    const MutexLock lock(mutex_);
    for (const auto& slot : slots_) all.push_back(slot.get());
  }
  for (Slot* slot : all) refuse_all(*slot, {503, "the server is shutting down", "", "", 0});
  for (Slot* slot : all)
    if (slot->is_there())
      slot->model->service.drain(std::chrono::duration_cast<std::chrono::milliseconds>(
          std::max<Clock::duration>(deadline - Clock::now(), Clock::duration::zero())));
}

}  // namespace sluice::serve
