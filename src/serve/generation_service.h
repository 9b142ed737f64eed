#pragma once
// One engine that any number of threads ask for text. Three stages with queues between them: the
// caller's thread brings token ids; the engine's thread computes; a third thread turns tokens into
// text, watches for stop strings and fills the callers' mailboxes. So computing never waits for
// text, and never for a slow caller. Thread safe.
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/base/mutex.h"
#include "src/engine/engine.h"
#include "src/guide/guide_maker.h"
#include "src/sampling/stop.h"
#include "src/serve/engine_events.h"
#include "src/serve/metrics.h"
#include "src/serve/pooling.h"
#include "src/serve/request_queue.h"
#include "src/serve/token_shares.h"
#include "src/text/stream_decoder.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

/// What a caller hears of one of its samples.
struct Event {
  enum class Kind : uint8_t {
    kStarted,   ///< it is computed; cached_tokens
    kPrompt,    ///< prompt_tokens or embedding, where asked for
    kText,      ///< text, with the tokens it was made of
    kFinished,  ///< finish_reason, stop_string, output_tokens
    kRefused,   ///< text says why; nothing follows
    kFailed     ///< the engine has stopped: text says why; nothing follows
  };
  Kind kind = Kind::kText;
  int index = 0;  ///< of the sample
  std::string text;
  std::vector<sampling::Choice> choices;        ///< with a logprob where asked for
  std::vector<sampling::Choice> prompt_tokens;  ///< the first has no logprob: NaN
  std::vector<float> embedding;                 ///< [hidden_size], not normalised
  std::string finish_reason;                    ///< "stop", "length", "scored", "cancelled"
  std::string stop_string;                      ///< the one that ended it, where one did
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;

  bool is_last() const noexcept {
    return kind == Kind::kFinished || kind == Kind::kRefused || kind == Kind::kFailed;
  }
};

/// Where the events of a submission arrive, in order for each sample.
class Mailbox {
 public:
  void put(Event event);
  /// The next event, or nothing after `timeout`.
  std::optional<Event> take(std::chrono::milliseconds timeout);
  /// `filled` is called after each put(), in its thread; it is cheap and asks nothing of the
  /// mailbox. Once this returns, what was given before is not called any more.
  void watch(std::function<void()> filled);

 private:
  Mutex mutex_;
  Condition filled_;
  std::deque<Event> events_ SLUICE_GUARDED_BY(mutex_);
  std::function<void()> watcher_ SLUICE_GUARDED_BY(mutex_);
};

/// A prompt and how often it is to be answered.
struct Submission {
  std::vector<int32_t> prompt;
  sampling::SamplingParams params;
  int samples = 1;  ///< each with a seed of its own; of a beam search the best that it ends with
  bool scores_prompt = false;
  bool generates = true;  ///< false: only the prompt is scored
  /// An embedding of the prompt instead of all else.
  Pooling pooling = Pooling::kNone;
  int32_t priority = 0;
  bool stops_are_kept = false;  ///< the stop string stays at the end of the text
  bool keeps_special = false;   ///< special tokens are text, but for the one that ends it
  bool keeps_tokens = false;    ///< text comes with its tokens also where no logprobs are asked for
  /// With scores_prompt: logits [vocabulary] behind the prompt's token `position`, rising; from the
  /// engine's thread. May be empty.
  std::function<void(int64_t position, std::span<const float> logits)> on_logits;
  AdapterPtr adapter;  ///< of the engine's; null: the model as it is
  Caller caller{};     ///< one for all submissions of a call
};

class GenerationService {
 public:
  /// `engine` and `tokenizer` outlive the service; the engine is used by nobody else.
  /// `most_caller_tokens`: of the prompts and answers of one caller that wait or run together.
  GenerationService(Engine& engine, const text::Tokenizer& tokenizer, const std::string& model_name,
                    int64_t most_waiting, QueueOrder order,
                    int64_t most_caller_tokens = std::numeric_limits<int64_t>::max());
  /// Cancels what still runs.
  ~GenerationService();
  GenerationService(const GenerationService&) = delete;
  GenerationService& operator=(const GenerationService&) = delete;

  /// A submission's place: gives its samples up when it goes before they have ended.
  class Ticket {
   public:
    Ticket(GenerationService& service, std::shared_ptr<Mailbox> mailbox, std::vector<uint64_t> ids)
        : service_(&service), mailbox_(std::move(mailbox)), ids_(std::move(ids)) {}
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    Mailbox& mailbox() { return *mailbox_; }

   private:
    GenerationService* service_;
    std::shared_ptr<Mailbox> mailbox_;
    std::vector<uint64_t> ids_;
  };

  struct Admission {
    RequestQueue::Outcome outcome;
    std::unique_ptr<Ticket> ticket;      ///< when taken
    std::vector<std::string> relaxed{};  ///< what the guides do not hold (Guide::relaxed)
  };
  /// Sample i of submission s arrives with index s * samples + i (samples of the submissions before
  /// it counted). All or none are taken. Errors: kUser for a guide that can't be made.
  /// With a `mailbox`, the events go there, the first sample's with `first_index`.
  Admission submit(std::vector<Submission> submissions, std::shared_ptr<Mailbox> mailbox = nullptr,
                   int first_index = 0);

  /// Takes no more and waits for what runs, at most so long; then cancels the rest.
  void drain(std::chrono::milliseconds timeout);
  /// Why the engine has stopped; empty while it works.
  std::string failure() const;
  /// Of what kind that is; kCancelled while it works.
  ErrorKind failure_kind() const;
  /// Seconds until a refused caller may try again: the wait of those before it.
  int retry_after_seconds() const;

  int64_t waiting() const;
  int64_t running() const;
  int64_t most_waiting() const noexcept { return queue_.most_waiting(); }
  int64_t most_caller_tokens() const;
  /// Prompts and the longest answers together.
  static int64_t tokens_of(const std::vector<Submission>& submissions);
  int64_t most_running() const noexcept { return engine_.plan().policy.block_sequences(); }
  /// Whether one more request would be refused just now.
  bool is_full() const { return queue_.waiting() >= queue_.most_waiting(); }
  const Metrics& metrics() const noexcept { return metrics_; }
  /// All that is counted, in the text format of Prometheus.
  std::string metrics_text() const;
  const Engine& engine() const noexcept { return engine_; }
  /// What requests may name; others may be loaded and unloaded meanwhile.
  AdapterBank& adapters() const noexcept { return engine_.adapters(); }

 private:
  using Clock = std::chrono::steady_clock;

  class Sink;

  struct Sample {
    std::shared_ptr<Mailbox> mailbox;
    int index = 0;
    std::unique_ptr<text::StreamDecoder> decoder;
    std::unique_ptr<sampling::StopMatcher> stops;
    std::vector<std::string> stop_strings;
    std::vector<sampling::Choice> unsent;      ///< tokens whose text is not decided yet
    std::vector<GenerationRequest> followers;  ///< wait for this one's first token or its end
    std::function<void(int64_t, std::span<const float>)> on_logits;  ///< until it runs
    std::vector<uint64_t> siblings;  ///< the other samples of this one's beam search
    Pooling pooling = Pooling::kNone;
    bool keeps_choices = false, stops_are_kept = false;
    bool is_stopped = false;   ///< a stop string was found: what still comes is dropped
    bool is_given_up = false;  ///< nobody listens
    int64_t output_tokens = 0, prompt_tokens = 0;
    uint64_t caller = 0;
    int64_t most_tokens = 0;  ///< prompt and answer
    Clock::time_point arrival, started, first_token, last_token;
    bool has_started = false;
  };

  void compute(std::stop_token stop);
  void post_process();
  void handle(EngineEvent& happened);
  void handle_hypotheses(Sample& sample, const EngineEvent& happened) SLUICE_REQUIRES(mutex_);
  void end_text(Sample& sample) SLUICE_REQUIRES(mutex_);
  void handle_token(Sample& sample, uint64_t id, const sampling::Choice& choice)
      SLUICE_REQUIRES(mutex_);
  void send_text(Sample& sample, std::string text) SLUICE_REQUIRES(mutex_);
  void finish(std::map<uint64_t, Sample>::iterator at, Event event) SLUICE_REQUIRES(mutex_);
  void release_followers(Sample& sample) SLUICE_REQUIRES(mutex_);
  void give_up(const std::vector<uint64_t>& ids);
  std::function<void(int64_t, std::span<const float>)> take_on_logits(uint64_t id);
  void give_back_on_logits(uint64_t id,
                           std::function<void(int64_t, std::span<const float>)> on_logits);
  void chain(std::vector<GenerationRequest>& leaders) SLUICE_REQUIRES(mutex_);
  static int64_t tokens_of_one(const Submission& submission);
  bool has_share(const std::vector<Submission>& submissions) const SLUICE_REQUIRES(mutex_);
  Pooling pooling_of(uint64_t id) const;

  Engine& engine_;
  const text::Tokenizer& tokenizer_;
  guide::GuideMaker guides_;
  Metrics metrics_;
  RequestQueue queue_;

  mutable Mutex mutex_;
  Condition ended_;
  std::map<uint64_t, Sample> samples_ SLUICE_GUARDED_BY(mutex_);
  TokenShares shares_ SLUICE_GUARDED_BY(mutex_);
  std::vector<double> first_tokens_ SLUICE_GUARDED_BY(mutex_);  // of the pass under way, s
  uint64_t next_id_ SLUICE_GUARDED_BY(mutex_) = 1;
  int64_t running_ SLUICE_GUARDED_BY(mutex_) = 0;
  struct {
    std::string what;  // empty: none
    ErrorKind kind = ErrorKind::kCancelled;
  } failure_ SLUICE_GUARDED_BY(mutex_);

  EngineEvents happened_;
  std::stop_source stop_;
  std::jthread post_thread_;
  std::jthread compute_thread_;
};

}  // namespace sluice::serve
