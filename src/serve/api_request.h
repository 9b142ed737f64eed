#pragma once
// Bodies of /v1/completions and /v1/chat/completions: JSON in, checked values out. Nothing in them
// is ignored in silence: a field that would change the answer and is not supported is an error that
// names it. Pure, thread safe.
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/chat/tool_format.h"
#include "src/sampling/params.h"
#include "src/serve/api_error.h"

namespace sluice::serve {

constexpr int kMostSamples = 128;  // n and best_of, and prompts of a request

/// What both kinds have.
struct ApiRequest {
  std::string model;
  sampling::SamplingParams params;
  bool has_max_tokens = false;  ///< otherwise params.max_tokens is for the server to choose
  int samples = 1;              ///< n
  int best_of = 1;              ///< computed for each prompt; the n likeliest are answered
  bool streams = false;
  bool includes_usage = false;  ///< with streams: a last chunk with usage
  bool keeps_stop = false;      ///< include_stop_str_in_output
  bool uses_beams = false;      ///< use_beam_search; params.num_beams says how many
  int32_t priority = 0;
  std::optional<bool> adds_special;  ///< add_special_tokens
  /// truncate_prompt_tokens: so many last tokens of the prompt are kept; -1: what the context holds
  /// beside those to generate; 0: all.
  int kept_prompt_tokens = 0;
  int prompt_logprobs = -1;  ///< so many likeliest tokens at each of the prompt's; -1: no scores
  std::string guide_field;   ///< the one that asked for params.guide
};

/// A body of /v1/completions.
struct CompletionRequest : ApiRequest {
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  bool echoes = false;
  bool generates = true;       ///< max_tokens is not 0
  bool keeps_tokens = false;   ///< answers have their tokens also where no logprobs are asked for
  bool fills_context = false;  ///< without max_tokens: as many as the context holds
};

/// A body of /v1/chat/completions.
struct ChatRequest : ApiRequest {
  nlohmann::ordered_json messages;   ///< an array of objects with "role"
  nlohmann::ordered_json tools;      ///< as the template is shown them: null or an array
  std::vector<chat::Tool> callable;  ///< what tool_choice allows to be called; empty: nothing
  bool must_call = false;            ///< "required", or one by name
  bool calls_many = true;            ///< parallel_tool_calls
  bool calls_function = false;       ///< asked for as "functions": so is the call told
  nlohmann::ordered_json variables;  ///< chat_template_kwargs: null or an object
  bool adds_generation_prompt = true;
  bool continues_last = false;               ///< continue_final_message: the answer goes on with it
  nlohmann::ordered_json documents;          ///< for the template: null or an array of objects
  std::string chat_template;                 ///< in place of the model's; empty: none is given
  std::map<std::string, std::string> hints;  ///< reasoning_effort, verbosity: for the template
};

/// `defaults` hold for what the body does not give. Token ids must be below `vocab_size`. Throws
/// ApiError.
CompletionRequest parse_completion(std::string_view body, const sampling::SamplingParams& defaults,
                                   int64_t vocab_size);
ChatRequest parse_chat(std::string_view body, const sampling::SamplingParams& defaults,
                       int64_t vocab_size);
/// The same of bodies that are read, or made from those of other interfaces.
CompletionRequest read_completion(const nlohmann::ordered_json& body,
                                  const sampling::SamplingParams& defaults, int64_t vocab_size);
ChatRequest read_chat(const nlohmann::ordered_json& body, const sampling::SamplingParams& defaults,
                      int64_t vocab_size);
/// Any JSON object, bounded. Throws ApiError.
nlohmann::ordered_json parse_object(std::string_view body);

}  // namespace sluice::serve
