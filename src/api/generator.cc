#include <sluice/generator.h>

#include "src/api/found_plan.h"
#include "src/api/values.h"
#include "src/base/error.h"

namespace sluice {

namespace {
Finish finish_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return Finish::kStop;
    case FinishReason::kCancelled: return Finish::kCancelled;
    case FinishReason::kScored: return Finish::kScored;
    case FinishReason::kLength: break;
  }
  return Finish::kLength;
}

// The engine's source and sink over the caller's. A request that can't be one is refused here.
class Adapter final : public RequestSource, public GenerationSink {
 public:
  Adapter(Source& source, Sink& sink, const AdapterBank& loras)
      : source_(source), sink_(sink), loras_(loras) {}

  std::optional<GenerationRequest> next() override {
    while (auto asked = source_.next()) {
      try {
        GenerationRequest request;
        request.id = asked->id;
        request.prompt = std::move(asked->prompt);
        request.params = params_of(asked->sampling);
        request.score_prompt = asked->scores_prompt;
        request.score_only = !asked->generates;
        if (!asked->adapter.empty() && !(request.adapter = loras_.find(asked->adapter)))
          throw Error(ErrorKind::kUser, "`adapter`: there is no " + asked->adapter,
                      "give it with `lora`, or leave it empty");
        return request;
      } catch (const Error& error) {
        sink_.on_refused(asked->id, error.what());
      }
    }
    return std::nullopt;
  }
  bool is_open() override { return source_.is_open(); }
  void wait(const std::stop_token& cancel) override { source_.wait(cancel); }

  bool on_token(uint64_t id, const sampling::Choice& choice) override {
    return sink_.on_choice(id, choice_of(choice));
  }
  void on_logits(uint64_t id, int64_t position, std::span<const float> logits) override {
    sink_.on_logits(id, position, logits);
  }
  void on_finish(uint64_t id, FinishReason reason) override {
    sink_.on_finish(id, finish_of(reason));
  }
  void on_refused(uint64_t id, const std::string& message) override {
    sink_.on_refused(id, message);
  }

 private:
  Source& source_;
  Sink& sink_;
  const AdapterBank& loras_;
};

// One request, its tokens kept.
class One final : public Source, public Sink {
 public:
  One(Request request, const std::function<bool(int32_t)>& on_token)
      : request_(std::move(request)), on_token_(on_token) {}

  std::optional<Request> next() override { return std::exchange(request_, std::nullopt); }
  bool on_token(uint64_t, int32_t token) override {
    tokens.push_back(token);
    return !on_token_ || on_token_(token);
  }
  void on_finish(uint64_t, Finish) override {}
  void on_refused(uint64_t, const std::string& why) override { refused = why; }

  std::vector<int32_t> tokens;
  std::string refused;

 private:
  std::optional<Request> request_;
  const std::function<bool(int32_t)>& on_token_;
};
}  // namespace

struct Generator::Impl {
  explicit Impl(const Plan::Found& found)
      : engine(found.model, found.options, found.input, found.plan.plan) {
    app::load_adapters(engine, found.adapters);
  }
  Engine engine;
};

Generator::Generator(const Plan& plan) : impl_(std::make_unique<Impl>(*plan.found_)) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

void Generator::load(std::stop_token cancel) { impl_->engine.load(std::move(cancel)); }

void Generator::run(Source& source, Sink& sink, std::stop_token cancel) {
  Adapter adapter(source, sink, impl_->engine.adapters());
  impl_->engine.generate(adapter, adapter, std::move(cancel));
}

std::vector<int32_t> Generator::generate(std::vector<int32_t> prompt, const Sampling& sampling,
                                         const std::function<bool(int32_t)>& on_token,
                                         std::stop_token cancel) {
  One one({0, std::move(prompt), sampling}, on_token);
  run(one, one, std::move(cancel));
  if (!one.refused.empty()) throw Error(ErrorKind::kUser, one.refused);
  return std::move(one.tokens);
}

Stats Generator::stats() const {
  const EngineStats of = impl_->engine.stats();
  Stats out;
  out.load_seconds = of.load_seconds;
  out.prefill_seconds = of.prefill_seconds;
  out.prefill_tokens = of.prefill_tokens;
  out.decode_seconds = of.decode_seconds;
  out.decode_tokens = of.decode_tokens;
  out.passes = of.passes;
  out.preemptions = of.preemptions;
  out.prefix_hit_tokens = of.prefix_hit_tokens;
  out.peak_memory_bytes = of.peak_memory_bytes;
  out.peak_device_bytes = of.peak_device_bytes;
  out.peak_disk_bytes = of.peak_disk_bytes;
  return out;
}

}  // namespace sluice
