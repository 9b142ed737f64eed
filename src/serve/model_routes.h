#pragma once
// All routes that a model in memory answers, in every interface.
#include <span>
#include <string_view>

#include "src/serve/http_server.h"
#include "src/serve/served_models.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

/// A route that is asked of a model which its body names.
struct RoutePath {
  const char* method;
  const char* path;
};
/// Every such route of ModelRoutes::add_to(); the routes that list and manage models are not among
/// them, since they are answered whether a model is in memory or not.
std::span<const RoutePath> model_route_paths();

class ModelRoutes {
 public:
  /// What is given outlives the routes; `chat` may be null.
  ModelRoutes(GenerationService& service, const text::Tokenizer& tokenizer,
              const chat::ChatTemplate* chat, const HttpOptions& options)
      : service_(service),
        tokenizer_(tokenizer),
        options_(options),
        texts_(service, tokenizer, chat, options) {}

  /// The router may refer to these routes until it goes.
  void add_to(http::Router& router, const Guard& guarded) const;
  const TextRoutes& texts() const noexcept { return texts_; }
  GenerationService& service() const noexcept { return service_; }
  const HttpOptions& options() const noexcept { return options_; }

 private:
  GenerationService& service_;
  const text::Tokenizer& tokenizer_;
  const HttpOptions& options_;
  const TextRoutes texts_;
};

}  // namespace sluice::serve
