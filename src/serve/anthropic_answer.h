#pragma once
// An answer of /v1/messages: a message, or its events. One thread.
#include <nlohmann/json.hpp>
#include <string>

#include "src/serve/block_answer.h"

namespace sluice::serve {

class AnthropicAnswer final : public BlockAnswer {
 public:
  AnthropicAnswer(AnswerShape shape, bool streams) : BlockAnswer(std::move(shape), streams) {}

  std::string whole() override;
  ErrorShape error_shape() const noexcept override { return ErrorShape::kAnthropic; }
  const char* sign_of_life() const noexcept override {
    return "event: ping\ndata: {\"type\":\"ping\"}\n\n";
  }

 protected:
  std::string begun() override;
  std::string opened(size_t block) override;
  std::string grown(size_t block, const std::string& more) override;
  std::string closed(size_t block) override;
  std::string ended() override;
  std::string failed(const ApiError& error) override;

 private:
  nlohmann::ordered_json message() const;
  nlohmann::ordered_json usage() const;
  nlohmann::ordered_json reason() const;
  nlohmann::ordered_json stop_json() const;
};

}  // namespace sluice::serve
