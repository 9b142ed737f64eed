#pragma once
// Several models behind one server, as many in memory together as the budget has room for. A model
// is loaded when a request names it; where there is no room, the models that were asked longest ago
// go. A model that goes finishes what it runs, and what comes for it meanwhile waits in order. One
// that is asked all the time gives way once it has had its turn, so that nobody waits for ever. One
// thread loads and unloads. Thread safe.
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "src/base/mutex.h"
#include "src/engine/engine.h"
#include "src/http/crew.h"
#include "src/serve/api_error.h"
#include "src/serve/generation_service.h"
#include "src/serve/http_server.h"
#include "src/serve/keep_time.h"
#include "src/serve/served_models.h"

namespace sluice::serve {

/// One of the models, whether it is loaded or not.
struct PooledModel {
  std::string name;                         ///< that requests and answers call it by
  std::shared_ptr<const BoundModel> files;  ///< null: they can't be read
  std::string problem;                      ///< why not
  int64_t context_tokens = 0;               ///< of the longest sequence
};

/// What a model takes of the machine.
struct ModelBytes {
  int64_t host = 0, device = 0;
};

/// What reads and writes a model's text.
struct ModelFront {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<chat::ChatTemplate> chat;  ///< null: it has none
  HttpOptions options;
};
/// A model in memory.
struct ModelParts : ModelFront {
  std::shared_ptr<Engine> engine;  ///< its weights are loaded
};

/// How a model is opened: it is planned for the whole budget; `make_room` is told what that takes
/// and returns when it is there; then the weights are loaded. Errors: whatever went wrong;
/// kCancelled once `stop` asks.
struct ModelOpening {
  size_t index = 0;  ///< of the model
  std::function<void(const ModelBytes&)> make_room;
  std::function<void(const LoadProgress&)> progress;
  std::stop_token stop;
};

/// What a pool is run with.
struct PoolOptions {
  ModelBytes budget;
  std::function<ModelParts(const ModelOpening&)> open;
  /// Of the model of that index, without its weights. Errors: kFile.
  std::function<ModelFront(size_t)> front;
  KeepTime keep = std::chrono::minutes(5);  ///< after the last request, where it does not say
  /// A model that others wait for takes new requests so long from its loading on.
  std::chrono::milliseconds turn{30000};
  std::chrono::seconds request_timeout{0};  ///< of the wait for a model; 0: none
  int64_t most_waiting = 256;               ///< for models that are not there, and at each model
  QueueOrder order = QueueOrder::kFirstCome;
  int64_t most_caller_tokens = std::numeric_limits<int64_t>::max();
  std::function<void(std::string_view)> log;  ///< one line at a time; may be empty
};

/// Where a model is.
enum class ModelPlace : uint8_t { kAbsent, kLoading, kLoaded, kLeaving };

/// A model as it is just now.
struct ModelState {
  ModelPlace place = ModelPlace::kAbsent;
  ModelBytes bytes;                            ///< that it takes; 0 while absent
  int64_t loaded_bytes = 0, total_bytes = 0;   ///< of kLoading
  int64_t running = 0, waiting = 0;            ///< requests
  std::optional<std::chrono::seconds> leaves;  ///< from now, where nobody asks; nothing: never
  int64_t loads = 0;                           ///< from the server's start
  double load_seconds = 0;                     ///< of all of them
  std::string metrics;                         ///< where asked for
};

class ModelPool {
 public:
  /// `models`: at least one, of different names.
  ModelPool(std::vector<PooledModel> models, PoolOptions options);
  /// After drain() and the end of all answers.
  ~ModelPool();
  ModelPool(const ModelPool&) = delete;
  ModelPool& operator=(const ModelPool&) = delete;

  /// From now on models are loaded; their routes are guarded so.
  void start(Guard guarded);
  /// Answers by the route of the model that is asked for, once that is there. Throws ApiError: no
  /// model of that name; it can't be loaded; too many wait; the server ends.
  void answer(const http::Request& request, http::Response& response);
  /// Unloads a model as soon as it has answered what it was asked. Throws ApiError as find().
  void let_go(const std::string& name);
  /// The index of the model of that name, Ollama's tag left out; of none, the model that was asked
  /// last. Throws ApiError (404).
  size_t find(const std::string& name) const;

  const std::vector<PooledModel>& models() const noexcept { return models_; }
  enum class WithMetrics : bool { kNo, kYes };
  ModelState state(size_t index, WithMetrics with_metrics = WithMetrics::kNo) const;
  const PoolOptions& options() const noexcept { return options_; }

  /// Loads nothing more, refuses what waits for a model, and waits for what runs, at most so long.
  void drain(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  struct Hosted;
  struct Waiter;
  struct Slot;
  using Lease = std::shared_ptr<Hosted>;

  Lease take(Slot& slot, bool is_batch) SLUICE_REQUIRES(mutex_);
  void give_back(Slot& slot, bool is_batch);
  void serve(const Lease& lease, const http::Request& request, http::Response& response) const;
  void serve_next(Slot& slot);
  void refuse_all(Slot& slot, const ApiError& error);
  void work(const std::stop_token& stop);
  /// Whose first request has waited longest, batches' behind all callers'; null: nobody's.
  Slot* wanted() const SLUICE_REQUIRES(mutex_);
  Slot* due() const SLUICE_REQUIRES(mutex_);
  void unload(Slot& slot, MutexLock& lock) SLUICE_REQUIRES(mutex_);
  void let_stay() SLUICE_REQUIRES(mutex_);
  void changed() SLUICE_REQUIRES(mutex_);
  void load(Slot& slot, const std::stop_token& stop);
  void make_room(Slot& slot, const ModelBytes& bytes, const std::stop_token& stop);
  std::vector<Slot*> in_the_way(const Slot& slot, const ModelBytes& bytes,
                                const std::function<bool(const Slot&)>& may_go) const
      SLUICE_REQUIRES(mutex_);
  bool fits(const ModelBytes& more, const std::vector<Slot*>& gone) const SLUICE_REQUIRES(mutex_);

  const std::vector<PooledModel> models_;
  const PoolOptions options_;
  Guard guarded_;
  mutable Mutex mutex_;
  StoppableCondition changed_;
  std::vector<std::unique_ptr<Slot>> slots_ SLUICE_GUARDED_BY(mutex_);
  bool is_stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  int64_t changes_ SLUICE_GUARDED_BY(mutex_) = 0;
  size_t asked_last_ SLUICE_GUARDED_BY(mutex_) = 0;
  http::Crew crew_;  ///< begins what has waited
  std::jthread worker_;
};

}  // namespace sluice::serve
