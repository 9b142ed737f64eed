#pragma once
// An answer of /v1/responses: a response object, or its typed events. One thread.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/serve/block_answer.h"
#include "src/serve/responses_request.h"

namespace sluice::serve {

class ResponsesAnswer final : public BlockAnswer {
 public:
  /// `call`: what is answered.
  ResponsesAnswer(AnswerShape shape, const ResponsesRequest& call);

  std::string whole() override;

 protected:
  std::string begun() override;
  std::string opened(size_t block) override;
  std::string grown(size_t block, const std::string& more) override;
  std::string closed(size_t block) override;
  std::string ended() override;
  std::string failed(const ApiError& error) override;

 private:
  std::string event(const char* type, nlohmann::ordered_json fields);
  /// Of an event about a block.
  nlohmann::ordered_json place(size_t block);
  const std::string& item_id(size_t block);
  nlohmann::ordered_json part_json(size_t block, const std::string& text) const;
  nlohmann::ordered_json item_json(size_t block, std::string_view status);
  nlohmann::ordered_json response_json(std::string_view status, bool has_output);
  std::string_view status() const;

  const nlohmann::ordered_json echo_;
  const sampling::SamplingParams params_;
  std::vector<std::string> item_ids_;
  int64_t sequence_ = 0;
  nlohmann::ordered_json error_;  // null, or why it failed
};

}  // namespace sluice::serve
