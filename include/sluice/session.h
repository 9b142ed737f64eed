#pragma once
// A model that any number of threads ask for text at any time: a plan under way in threads of its
// own. What is asked while others run joins their block; tokens become text, stop strings are
// watched for, outputs are held to guides.
//
//   sluice::Session session(plan, tokenizer);
//   sluice::Answers answers = session.ask({question});
//   while (auto piece = answers.take(std::chrono::seconds(1))) ...
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "sluice/batch.h"
#include "sluice/model.h"
#include "sluice/plan.h"
#include "sluice/stats.h"
#include "sluice/tokenizer.h"

namespace sluice {

/// What the whole output has to be.
struct Guide {
  enum class Kind : uint8_t {
    kNone,
    kJson,        ///< any JSON object
    kJsonSchema,  ///< JSON that `text`, a schema, allows
    kRegex,       ///< what `text`, a regular expression, describes
    kChoice,      ///< one of `choices`
    kCalls,       ///< calls of tools, as Chat::prompt wrote `text`
    kGrammar      ///< what `text`, a grammar in llama.cpp's GBNF, describes
  };
  Kind kind = Kind::kNone;
  std::string text;
  std::vector<std::string> choices;
};

/// Which rows behind the model's final norm make a prompt's embedding.
enum class Pooling : uint8_t {
  kNone,
  kLast,  ///< the last token's
  kMean,  ///< the mean of all
  kFirst  ///< the first token's
};

/// A prompt, and what is wanted of it.
struct Question {
  std::vector<int32_t> prompt;
  Sampling sampling;
  Guide guide;
  std::vector<std::string> stop;  ///< texts that end the output; at most 64 of 4096 bytes
  bool keeps_stop = false;        ///< the stop string stays at the end of the text
  bool keeps_special = false;     ///< special tokens are text, but for the one that ends it
  int beams = 1;                  ///< [1, 64]; 2 or more: a beam search, its best is the answer
  float length_penalty = 1;       ///< [-100, 100]: beams' scores are divided by length to its power
  bool scores_prompt = false;     ///< a kPrompt piece with the log-likelihood of each of its tokens
  bool generates = true;          ///< false: only the prompt is scored
  /// With scores_prompt: logits [vocabulary] behind the prompt's token `position`, rising; from the
  /// engine's thread, which waits for it. May be empty.
  std::function<void(int64_t position, std::span<const float> logits)> on_logits;
  Pooling pooling = Pooling::kNone;  ///< else a kPrompt piece with the embedding, and nothing more
};

/// What has become of a question.
struct Piece {
  enum class Kind : uint8_t {
    kStarted,   ///< it is computed; cached_tokens
    kPrompt,    ///< tokens: the prompt's, the first without a log-probability (NaN); or embedding
    kText,      ///< text that is certain, with the tokens it was made of
    kFinished,  ///< finish, output_tokens
    kRefused,   ///< text says why it can't run; nothing follows
    kFailed     ///< the session has ended; text says why; nothing follows
  };
  Kind kind = Kind::kText;
  size_t question = 0;  ///< which of those that were asked together
  std::string text;
  std::vector<Choice> tokens;
  std::vector<float> embedding;  ///< [hidden size] as the model's rows are, not normalised
  Finish finish = Finish::kStop;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;  ///< of the prompt, known before

  bool is_last() const noexcept { return kind >= Kind::kFinished; }
};

/// The pieces of questions that were asked together, as they come. One thread at a time. What has
/// not ended when it goes is given up.
class Answers {
 public:
  Answers(Answers&&) noexcept;
  Answers& operator=(Answers&&) noexcept;
  ~Answers();

  /// The next piece; nothing where none comes within `timeout`.
  std::optional<Piece> take(std::chrono::milliseconds timeout);
  /// Gives up what has not ended: it ends as kCancelled before the next pass.
  void cancel();
  /// `filled` is called whenever a piece has come, from another thread: cheap, and asks nothing of
  /// this. Once this returns, what was given before is not called any more.
  void watch(std::function<void()> filled);

 private:
  friend class Session;
  struct Impl;
  explicit Answers(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// How embeddings are made of a model whose folder says it as Sentence Transformers do (modules.json
/// and what that names); where it says nothing, the last token's row, normalised to length 1.
struct EmbeddingForm {
  Pooling pooling = Pooling::kLast;
  bool is_normalised = true;
};
/// Errors: kFile naming the module or the setting that is not understood.
EmbeddingForm embedding_form(const Model& model);

class Session {
 public:
  /// Reserves what the plan names, reads the resident weights, and waits for questions. Errors:
  /// kResource, kFile, kCancelled.
  Session(const Plan& plan, const Tokenizer& tokenizer, std::stop_token cancel = {});
  /// Of a model without a tokenizer: answers are token ids, their text is empty.
  explicit Session(const Plan& plan, std::stop_token cancel = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  /// As close().
  ~Session();

  /// All or none are taken; any thread. Errors: kUser naming the field that is out of range or the
  /// guide that can't be, kCancelled after close(), what has ended the session.
  Answers ask(std::vector<Question> questions);
  /// Gives up what runs and gives everything back; answers that are there can still be taken.
  void close() noexcept;

  int64_t waiting() const;  ///< questions that are not computed yet
  int64_t running() const;  ///< questions under way

 private:
  friend class Answers;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace sluice
