#include <fmt/format.h>
#include <sluice/session.h>

#include <map>
#include <utility>

#include "src/api/found_plan.h"
#include "src/api/values.h"
#include "src/base/error.h"
#include "src/base/mutex.h"
#include "src/serve/generation_service.h"

namespace sluice {

namespace {
constexpr int64_t kMostWaiting = int64_t{1} << 40;  // who asks also waits: no bound is needed

sampling::GuideKind kind_of(Guide::Kind kind) {
  switch (kind) {
    case Guide::Kind::kNone: return sampling::GuideKind::kNone;
    case Guide::Kind::kJson: return sampling::GuideKind::kJson;
    case Guide::Kind::kJsonSchema: return sampling::GuideKind::kJsonSchema;
    case Guide::Kind::kRegex: return sampling::GuideKind::kRegex;
    case Guide::Kind::kChoice: return sampling::GuideKind::kChoice;
    case Guide::Kind::kCalls: return sampling::GuideKind::kCalls;
    case Guide::Kind::kGrammar: return sampling::GuideKind::kGrammar;
  }
  return sampling::GuideKind::kNone;
}

// For models without a tokenizer: ids are all there is.
class NoText final : public text::Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view, text::AddSpecial) const override { return {}; }
  std::string decode(std::span<const int32_t>, text::SkipSpecial) const override { return {}; }
  std::string token_bytes(int32_t) const override { return {}; }
  int32_t vocab_size() const override { return 0; }
  std::optional<int32_t> find(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t) const override { return true; }
  std::string description() const override { return "none"; }
};

// A decoder without text gives none; what would watch or hold the text can't be.
void refuse_text(const Question& question) {
  const char* field =
      !question.stop.empty()                      ? "stop"
      : question.guide.kind != Guide::Kind::kNone ? "a guide"
      : question.sampling.dry_multiplier > 0 && !question.sampling.dry_sequence_breakers.empty()
          ? "a text of dry_sequence_breakers"
          : nullptr;
  if (field)
    throw Error(ErrorKind::kUser,
                fmt::format("{} needs text, and the model has no tokenizer", field),
                "copy its tokenizer files beside its weights");
}

void check_tokens(const Question& question, int64_t vocabulary) {
  const auto check = [&](const char* name, int32_t id) {
    if (id < 0 || id >= vocabulary)
      throw Error(ErrorKind::kUser, fmt::format("{} has token id {}; the model's are 0 to {}", name,
                                                id, vocabulary - 1));
  };
  for (int32_t id : question.prompt) check("prompt", id);
  for (int32_t id : question.sampling.stop_tokens) check("stop_token_ids", id);
  for (const auto& [id, bias] : question.sampling.logit_bias) check("logit_bias", id);
}

serve::Pooling pooling_of(Pooling pooling) {
  switch (pooling) {
    case Pooling::kNone: return serve::Pooling::kNone;
    case Pooling::kLast: return serve::Pooling::kLast;
    case Pooling::kMean: return serve::Pooling::kMean;
    case Pooling::kFirst: return serve::Pooling::kFirst;
  }
  return serve::Pooling::kNone;
}

Pooling pooling_from(serve::Pooling pooling) {
  switch (pooling) {
    case serve::Pooling::kNone: return Pooling::kNone;
    case serve::Pooling::kLast: return Pooling::kLast;
    case serve::Pooling::kMean: return Pooling::kMean;
    case serve::Pooling::kFirst: return Pooling::kFirst;
  }
  return Pooling::kNone;
}

serve::Submission submission_of(Question& question, int64_t vocabulary) {
  check_tokens(question, vocabulary);
  if (!question.generates && !question.scores_prompt && question.pooling == Pooling::kNone)
    throw Error(ErrorKind::kUser, "a question neither generates nor scores its prompt");
  if (question.beams > 1 && question.scores_prompt)
    throw Error(ErrorKind::kUser, "a beam search does not score its prompt",
                "ask for that in another question");
  if (question.pooling != Pooling::kNone && (question.scores_prompt || question.beams > 1))
    throw Error(ErrorKind::kUser, "an embedding goes with no scores and no beams",
                "ask for these in another question");
  serve::Submission out;
  out.pooling = pooling_of(question.pooling);
  out.params = params_of(question.sampling);
  out.params.stop = std::move(question.stop);
  out.params.num_beams = question.beams;
  out.params.length_penalty = question.length_penalty;
  out.params.guide = {kind_of(question.guide.kind), std::move(question.guide.text),
                      std::move(question.guide.choices)};
  sampling::validate(out.params);
  out.prompt = std::move(question.prompt);
  out.scores_prompt = question.scores_prompt;
  out.generates = question.generates;
  out.stops_are_kept = question.keeps_stop;
  out.keeps_special = question.keeps_special;
  out.keeps_tokens = true;
  out.on_logits = std::move(question.on_logits);
  return out;
}

Finish finish_of(const std::string& reason) {
  if (reason == "stop") return Finish::kStop;
  if (reason == "cancelled") return Finish::kCancelled;
  return reason == "scored" ? Finish::kScored : Finish::kLength;
}

Piece piece_of(serve::Event event) {
  Piece out;
  switch (event.kind) {
    case serve::Event::Kind::kStarted: out.kind = Piece::Kind::kStarted; break;
    case serve::Event::Kind::kPrompt: out.kind = Piece::Kind::kPrompt; break;
    case serve::Event::Kind::kText: out.kind = Piece::Kind::kText; break;
    case serve::Event::Kind::kFinished: out.kind = Piece::Kind::kFinished; break;
    case serve::Event::Kind::kRefused: out.kind = Piece::Kind::kRefused; break;
    case serve::Event::Kind::kFailed: out.kind = Piece::Kind::kFailed; break;
  }
  out.question = static_cast<size_t>(event.index);
  out.text = std::move(event.text);
  for (const sampling::Choice& choice :
       event.kind == serve::Event::Kind::kPrompt ? event.prompt_tokens : event.choices)
    out.tokens.push_back(choice_of(choice));
  out.embedding = std::move(event.embedding);
  out.finish = finish_of(event.finish_reason);
  out.output_tokens = event.output_tokens;
  out.cached_tokens = event.cached_tokens;
  return out;
}
}  // namespace

// Tickets are the session's, so that it can end before those who wait for answers.
struct Session::Impl {
  Impl(const Plan::Found& found, std::shared_ptr<const text::Tokenizer> text)
      : tokenizer(std::move(text)),
        has_text(tokenizer->vocab_size() > 0),
        vocabulary(found.model->shape().vocab_size),
        engine(std::make_unique<Engine>(found.model, found.options, found.input, found.plan.plan)) {
  }

  void begin() {
    service = std::make_unique<serve::GenerationService>(*engine, *tokenizer, "", kMostWaiting,
                                                         serve::QueueOrder::kFirstCome);
  }

  std::shared_ptr<const text::Tokenizer> tokenizer;
  bool has_text;
  int64_t vocabulary;
  mutable Mutex mutex;  // of what follows; the engine is the service's
  std::unique_ptr<Engine> engine;
  std::unique_ptr<serve::GenerationService> service;
  std::map<uint64_t, std::unique_ptr<serve::GenerationService::Ticket>> tickets
      SLUICE_GUARDED_BY(mutex);
  uint64_t next_ticket SLUICE_GUARDED_BY(mutex) = 1;
  bool is_closed SLUICE_GUARDED_BY(mutex) = false;
};

struct Answers::Impl {
  std::weak_ptr<Session::Impl> session;
  uint64_t ticket = 0;
  std::shared_ptr<serve::Mailbox> mailbox;

  void give_up() {
    const auto of = session.lock();
    if (!of) return;
    const MutexLock lock(of->mutex);
    of->tickets.erase(ticket);
  }
};

EmbeddingForm embedding_form(const Model& model) {
  const serve::EmbeddingForm form = serve::read_embedding_form(model.bound_->checkpoint().folder(),
                                                               model.bound_->shape().hidden_size);
  return {pooling_from(form.pooling), form.is_normalised};
}

Answers::Answers(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Answers::Answers(Answers&&) noexcept = default;
Answers& Answers::operator=(Answers&&) noexcept = default;
Answers::~Answers() {
  if (!impl_) return;
  impl_->mailbox->watch({});
  impl_->give_up();
}

std::optional<Piece> Answers::take(std::chrono::milliseconds timeout) {
  auto event = impl_->mailbox->take(timeout);
  if (!event) return std::nullopt;
  return piece_of(std::move(*event));
}

void Answers::cancel() { impl_->give_up(); }
void Answers::watch(std::function<void()> filled) { impl_->mailbox->watch(std::move(filled)); }

Session::Session(const Plan& plan, const Tokenizer& tokenizer, std::stop_token cancel)
    : impl_(std::make_shared<Impl>(*plan.found_, tokenizer.impl_)) {
  impl_->engine->load(std::move(cancel));
  impl_->begin();
}
Session::Session(const Plan& plan, std::stop_token cancel)
    : impl_(std::make_shared<Impl>(*plan.found_, std::make_shared<NoText>())) {
  impl_->engine->load(std::move(cancel));
  impl_->begin();
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  close();
  impl_ = std::move(other.impl_);
  return *this;
}
Session::~Session() { close(); }

void Session::close() noexcept {
  if (!impl_) return;
  std::unique_ptr<Engine> engine;  // goes after the service
  std::unique_ptr<serve::GenerationService> service;
  const MutexLock lock(impl_->mutex);
  impl_->is_closed = true;
  impl_->tickets.clear();
  service = std::move(impl_->service);
  engine = std::move(impl_->engine);
}

Answers Session::ask(std::vector<Question> questions) {
  std::vector<serve::Submission> submissions;
  for (Question& question : questions) {
    if (!impl_->has_text) refuse_text(question);
    submissions.push_back(submission_of(question, impl_->vocabulary));
  }
  auto out = std::make_unique<Answers::Impl>();
  out->session = impl_;
  out->mailbox = std::make_shared<serve::Mailbox>();
  const MutexLock lock(impl_->mutex);
  if (impl_->is_closed) throw Error(ErrorKind::kCancelled, "the session is closed");
  if (!questions.empty()) {
    auto admission = impl_->service->submit(std::move(submissions), out->mailbox);
    if (!admission.ticket)
      throw Error(impl_->service->failure_kind(),
                  "the session has ended: " + impl_->service->failure());
    out->ticket = impl_->next_ticket++;
    impl_->tickets.emplace(out->ticket, std::move(admission.ticket));
  }
  return Answers(std::move(out));
}

int64_t Session::waiting() const {
  const MutexLock lock(impl_->mutex);
  return impl_->service ? impl_->service->waiting() : 0;
}
int64_t Session::running() const {
  const MutexLock lock(impl_->mutex);
  return impl_->service ? impl_->service->running() : 0;
}

}  // namespace sluice
