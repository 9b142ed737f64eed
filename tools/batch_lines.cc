#include "tools/batch_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/app/named_adapters.h"
#include "src/base/error.h"

namespace sluice::tools {

BatchModel::BatchModel(const BatchFlags& flags)
    : model(open_model(flags.engine)),
      tokenizer(find_tokenizer(flags.engine)),
      name(model_name(flags.engine.model)) {
  if (tokenizer) {
    chat = flags.chat.load_template(flags.engine.model, *tokenizer);
    guides_.emplace(*tokenizer, model->eos_token_ids());
  }
  style_ = flags.chat.style(chat.get());
  style_.takes_templates = true;
  config = answers_key(name, *model, chat.get(), flags.chat, flags.engine);
  for (const app::NamedAdapter& one : app::open_adapters(flags.engine.loras, name))
    adapters.push_back(one.name);
  config += adapters_key(flags.engine.loras);
}

EncodedLine BatchModel::encode(const jobs::Request& request) const {
  EncodedLine out;
  GenerationRequest& generation = out.request;
  generation.id = static_cast<uint64_t>(request.line_number);
  serve::LinePrompt prompt = serve::line_prompt(request, tokenizer.get(), style_);
  generation.params = std::move(prompt.params);
  if (!generation.params.has_seed)
    generation.params.seed = sampling::derive_seed(generation.params.seed, generation.id);
  if (guides_) {
    generation.guide = guides_->make(generation.params.guide);
    guides_->find_breakers(generation.params);
  }
  generation.prompt = std::move(prompt.ids);
  out.form = std::move(prompt.form);
  out.keeps_special = prompt.keeps_special;
  return out;
}

int64_t BatchModel::longest(const BatchFlags& flags) const {
  return flags.engine.context > 0 ? flags.engine.context : model->shape().max_positions;
}

Survey survey(jobs::JobReader& reader, const BatchModel& model, int64_t longest,
              const std::function<void(const jobs::Request&, int64_t tokens)>& use) {
  Survey out;
  while (auto line = reader.next()) {
    const auto* request = std::get_if<jobs::Request>(&*line);
    if (!request) continue;
    int64_t tokens = 0;
    const bool is_ours = serve::other_model(*request, model.name, model.adapters).empty();
    out.requests += is_ours;
    try {
      if (is_ours) {
        const GenerationRequest generation = model.encode(*request).request;
        const auto length = static_cast<int64_t>(generation.prompt.size());
        const int64_t fresh = std::min<int64_t>(generation.params.max_tokens, longest - length);
        if (length < longest) {
          app::add_to_workload(out.workload, length, fresh, generation.params.num_beams);
          tokens = length + fresh;
        }
      }
    } catch (const Error&) {
      // becomes an error record when its turn comes
    }
    if (use) use(*request, tokens);
  }
  return out;
}

namespace {
jobs::Completion to_completion(const app::TextResult& result, const text::Tokenizer* tokenizer) {
  jobs::Completion completion;
  completion.text = tokenizer ? result.text : fmt::format("{}", fmt::join(result.token_ids, ","));
  completion.finish_reason = result.finish_reason;
  completion.prompt_tokens = static_cast<int64_t>(result.prompt_ids.size());
  completion.completion_tokens = static_cast<int64_t>(result.token_ids.size());
  if (!result.choices.empty()) completion.logprobs = serve::token_texts(result.choices, tokenizer);
  return completion;
}
}  // namespace

BatchRun::BatchRun(LineSource& lines, jobs::ResultsFile& results, const BatchModel& model,
                   const AdapterBank& adapters)
    : lines_(lines),
      results_(results),
      model_(model),
      adapters_(adapters),
      sink_(model.tokenizer.get(), model.model->eos_token_ids()) {
  sink_.on_result = [this](app::TextResult&& result) { take(result); };
}

void BatchRun::fail(const jobs::Request& request, const char* code, const std::string& why) {
  results_.write_error(request, code, why);
  ++failed_;
  tell();
}

std::optional<GenerationRequest> BatchRun::next() {
  while (auto line = lines_.next()) {
    if (const auto* error = std::get_if<jobs::RequestError>(&*line)) {
      results_.write_error(*error);
      ++failed_;
      tell();
      continue;
    }
    auto& request = std::get<jobs::Request>(*line);
    if (const auto why = serve::other_model(request, model_.name, model_.adapters); !why.empty()) {
      fail(request, "model_not_found", why);
      continue;
    }
    if (request.prompt_ids.empty() && !model_.tokenizer) {
      fail(request, "no_tokenizer",
           "the model has no tokenizer; give prompts as lists of token ids");
      continue;
    }
    EncodedLine encoded;
    try {
      encoded = model_.encode(request);
    } catch (const Error& error) {
      fail(request, request.is_chat ? "chat_template" : "guide", error.what());
      continue;
    }
    encoded.request.adapter = adapters_.find(request.model);
    sink_.expect(encoded.request, encoded.keeps_special);
    running_.emplace(encoded.request.id, Running{std::move(request), std::move(encoded.form)});
    return std::move(encoded.request);
  }
  return std::nullopt;
}

void BatchRun::take(const app::TextResult& result) {
  const auto it = running_.find(result.id);
  const Running& one = it->second;
  if (!result.refused.empty()) {
    results_.write_error(one.request, "refused", result.refused);
    ++failed_;
  } else if (result.finish_reason != "cancelled") {
    jobs::Completion completion = to_completion(result, model_.tokenizer.get());
    serve::read_answer(one.request, one.form, completion);
    results_.write(one.request, completion);
    ++answered_;
  }
  running_.erase(it);
  ++done_;
  tell();
}

void fail_for_errors(jobs::ResultsFile& results, const std::string& output) {
  results.flush();
  const int64_t errors = results.records() - results.answers();
  if (errors > 0)
    throw Error(ErrorKind::kUser,
                fmt::format("{} of {} lines have error records instead of answers", errors,
                            results.records()),
                fmt::format("they are in {}, each with its reason", output));
}

}  // namespace sluice::tools
