#pragma once
// What Ollama's callers are told of a model, whether it is loaded or not. Pure, thread safe.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "src/chat/chat_template.h"
#include "src/model/bound_model.h"
#include "src/sampling/params.h"

namespace sluice::serve {

/// When a model expires that stays until the server ends.
inline constexpr const char* kOllamaForever = "9999-12-31T23:59:59Z";

/// A name that requests may use.
struct OllamaListed {
  const BoundModel& model;
  std::string name;
  std::string parent;   ///< of an adapter, the model's name
  std::string started;  ///< ollama_time() of the server's start
};

/// An element of /api/tags.
nlohmann::ordered_json ollama_entry(const OllamaListed& listed);

/// What /api/show tells beside that.
struct OllamaShown {
  int64_t context_tokens = 0;
  const chat::ChatTemplate* chat = nullptr;  ///< null: the model has none
  bool has_tools = false, has_thoughts = false;
  sampling::SamplingParams defaults;
};
nlohmann::ordered_json ollama_show(const OllamaListed& listed, const OllamaShown& shown);

/// The model that a body names in "model" or "name". Throws ApiError where there is none.
std::string ollama_named(const nlohmann::ordered_json& body);
/// The answer to /api/pull of a model that is here: one object, or a line of a stream.
std::string ollama_pulled(const nlohmann::ordered_json& body);
/// Of a body of /api/show: refuses what is not known. Throws ApiError.
void check_ollama_show(const nlohmann::ordered_json& body);

}  // namespace sluice::serve
