// Sessions and answers. Threads are the session's: a process that forks has none of them in the
// child, where everything here is refused, and let go of without a word.
#include <unistd.h>

#include "python/src/binding.h"

namespace sluice::python {

namespace {
void check_process(pid_t owner) {
  if (owner != getpid())
    throw Error(ErrorKind::kUser, "the model was opened before this process was forked",
                "open it in the process that uses it");
}

// Logits of a prompt's tokens as they come, [rows, vocabulary].
struct Logits {
  std::vector<float> values;
  size_t columns = 0;
};

// What a session answers, with the logits that were asked for.
class PyAnswers {
 public:
  PyAnswers(Answers answers, std::vector<std::shared_ptr<Logits>> logits, pid_t owner)
      : answers_(std::make_unique<Answers>(std::move(answers))),
        logits_(std::move(logits)),
        owner_(owner) {}
  PyAnswers(PyAnswers&&) = default;
  ~PyAnswers() {
    if (answers_ && owner_ != getpid()) static_cast<void>(answers_.release());
  }

  py::object take(double seconds) {
    check_process(owner_);
    const std::chrono::milliseconds timeout(static_cast<int64_t>(seconds * 1000));
    const auto piece = without_gil([&] { return answers_->take(timeout); });
    if (!piece) return py::none();
    return tuple_of(*piece);
  }
  void cancel() {
    check_process(owner_);
    without_gil([&] { answers_->cancel(); });
  }
  // A byte goes to `file` whenever a piece has come; negative: none.
  void watch(int file) {
    check_process(owner_);
    std::function<void()> filled;
    if (file >= 0)
      filled = [file] {
        const char byte = 1;
        // A full pipe wakes its reader as it is.
        static_cast<void>(!write(file, &byte, 1));
      };
    without_gil([&] { answers_->watch(std::move(filled)); });
  }
  std::shared_ptr<Logits> logits(size_t question) const { return logits_.at(question); }

 private:
  static py::tuple tuple_of(const Piece& piece) {
    py::list ids(piece.tokens.size()), logprobs(piece.tokens.size()), tops(piece.tokens.size());
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      const Choice& choice = piece.tokens[i];
      py::list top;
      for (const TokenLogprob& other : choice.top)
        top.append(py::make_tuple(other.token, other.logprob));
      ids[i] = choice.token;
      logprobs[i] = choice.logprob;
      tops[i] = std::move(top);
    }
    return py::make_tuple(static_cast<int>(piece.kind), piece.question, piece.text, ids, logprobs,
                          tops, static_cast<int>(piece.finish), piece.output_tokens,
                          piece.cached_tokens,
                          py::bytes(reinterpret_cast<const char*>(piece.embedding.data()),
                                    piece.embedding.size() * sizeof(float)));
  }

  std::unique_ptr<Answers> answers_;
  std::vector<std::shared_ptr<Logits>> logits_;
  pid_t owner_;
};

Sampling sampling_of(const py::dict& values) {
  Sampling out;
  read(values, "temperature", out.temperature);
  read(values, "top_k", out.top_k);
  read(values, "top_p", out.top_p);
  read(values, "min_p", out.min_p);
  read(values, "typical_p", out.typical_p);
  read(values, "top_n_sigma", out.top_n_sigma);
  read(values, "xtc_probability", out.xtc_probability);
  read(values, "xtc_threshold", out.xtc_threshold);
  read(values, "mirostat", out.mirostat);
  read(values, "mirostat_tau", out.mirostat_tau);
  read(values, "mirostat_eta", out.mirostat_eta);
  read(values, "dry_multiplier", out.dry_multiplier);
  read(values, "dry_base", out.dry_base);
  read(values, "dry_allowed_length", out.dry_allowed_length);
  read(values, "dry_penalty_last_n", out.dry_penalty_last_n);
  read(values, "dry_sequence_breakers", out.dry_sequence_breakers);
  read(values, "dry_breaker_tokens", out.dry_breaker_tokens);
  read(values, "repetition_penalty", out.repetition_penalty);
  read(values, "presence_penalty", out.presence_penalty);
  read(values, "frequency_penalty", out.frequency_penalty);
  read(values, "seed", out.seed);
  read(values, "max_tokens", out.max_tokens);
  read(values, "min_tokens", out.min_tokens);
  read(values, "ignore_eos", out.ignores_end);
  read(values, "stop_token_ids", out.stop_tokens);
  read(values, "logprobs", out.logprobs);
  read(values, "logit_bias", out.logit_bias);
  return out;
}

Guide guide_of(const py::dict& values) {
  Guide out;
  int kind = 0;
  read(values, "guide_kind", kind);
  out.kind = static_cast<Guide::Kind>(kind);
  read(values, "guide_text", out.text);
  read(values, "guide_choices", out.choices);
  return out;
}

Question question_of(const py::dict& values, std::shared_ptr<Logits>& logits) {
  Question out;
  read(values, "prompt", out.prompt);
  out.sampling = sampling_of(values);
  out.guide = guide_of(values);
  read(values, "stop", out.stop);
  read(values, "include_stop", out.keeps_stop);
  read(values, "keeps_special", out.keeps_special);
  read(values, "num_beams", out.beams);
  read(values, "length_penalty", out.length_penalty);
  read(values, "scores_prompt", out.scores_prompt);
  read(values, "generates", out.generates);
  int pooling = 0;
  read(values, "pooling", pooling);
  out.pooling = static_cast<Pooling>(pooling);
  bool keeps_logits = false;
  read(values, "keeps_logits", keeps_logits);
  if (!keeps_logits) return out;
  logits = std::make_shared<Logits>();
  out.on_logits = [logits](int64_t, std::span<const float> row) {
    logits->columns = row.size();
    logits->values.insert(logits->values.end(), row.begin(), row.end());
  };
  return out;
}

class PySession {
 public:
  PySession(const Plan& plan, const std::optional<Tokenizer>& tokenizer)
      : session_(std::make_unique<Session>(interruptible([&](std::stop_token stop) {
          return tokenizer ? Session(plan, *tokenizer, std::move(stop))
                           : Session(plan, std::move(stop));
        }))),
        owner_(getpid()) {}
  ~PySession() {
    if (owner_ != getpid()) static_cast<void>(session_.release());
  }

  PyAnswers ask(const py::list& asked) {
    check_process(owner_);
    std::vector<Question> questions;
    std::vector<std::shared_ptr<Logits>> logits(asked.size());
    for (size_t i = 0; i < asked.size(); ++i)
      questions.push_back(question_of(asked[i].cast<py::dict>(), logits[i]));
    return {without_gil([&] { return session_->ask(std::move(questions)); }), std::move(logits),
            owner_};
  }
  void close() {
    if (owner_ != getpid()) return;
    without_gil([&] { session_->close(); });
  }
  int64_t waiting() const { return owner_ == getpid() ? session_->waiting() : 0; }
  int64_t running() const { return owner_ == getpid() ? session_->running() : 0; }

 private:
  std::unique_ptr<Session> session_;
  pid_t owner_;
};
}  // namespace

void add_answers(py::module_& module) {
  py::class_<Logits, std::shared_ptr<Logits>>(module, "Logits", py::buffer_protocol())
      .def_buffer([](Logits& of) {
        const size_t columns = std::max<size_t>(of.columns, 1);
        return py::buffer_info(of.values.data(), {of.values.size() / columns, columns},
                               {columns * sizeof(float), sizeof(float)});
      });
  py::class_<PyAnswers>(module, "Answers")
      .def("take", &PyAnswers::take)
      .def("cancel", &PyAnswers::cancel)
      .def("watch", &PyAnswers::watch)
      .def("logits", &PyAnswers::logits);
  py::class_<PySession>(module, "Session")
      .def(py::init<const Plan&, const std::optional<Tokenizer>&>())
      .def("ask", &PySession::ask)
      .def("close", &PySession::close)
      .def_property_readonly("waiting", &PySession::waiting)
      .def_property_readonly("running", &PySession::running);
}

}  // namespace sluice::python
