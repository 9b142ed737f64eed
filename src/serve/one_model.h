#pragma once
// One model that is served from the server's start to its end.
#include <nlohmann/json.hpp>

#include "src/serve/model_routes.h"

namespace sluice::serve {

class OneModel final : public ServedModels {
 public:
  /// As ModelRoutes.
  OneModel(GenerationService& service, const text::Tokenizer& tokenizer,
           const chat::ChatTemplate* chat, const HttpOptions& options)
      : routes_(service, tokenizer, chat, options) {}

  void add_routes(http::Router& router, const Guard& guarded) override {
    routes_.add_to(router, guarded);
  }
  nlohmann::ordered_json list(int64_t created) const override;
  nlohmann::ordered_json find(const std::string& name, int64_t created) const override;
  void tell_health(nlohmann::ordered_json& health) const override;
  std::string metrics() const override;
  int64_t most_requests() const override;

 private:
  /// Of the model, or of one of its adapters.
  nlohmann::ordered_json json_of(const std::string& name, int64_t created) const;

  const ModelRoutes routes_;
};

}  // namespace sluice::serve
