#pragma once
// Several models as a server's routes see them: what a body names is answered by a ModelPool, and
// all of them are listed, loaded or not. Thread safe.
#include <nlohmann/json.hpp>
#include <string>

#include "src/serve/model_pool.h"
#include "src/serve/served_models.h"

namespace sluice::serve {

class PooledModels final : public ServedModels {
 public:
  /// `pool` outlives it.
  explicit PooledModels(ModelPool& pool);

  void add_routes(http::Router& router, const Guard& guarded) override;
  nlohmann::ordered_json list(int64_t created) const override;
  nlohmann::ordered_json find(const std::string& name, int64_t created) const override;
  void tell_health(nlohmann::ordered_json& health) const override;
  std::string metrics() const override;
  int64_t most_requests() const override;

 private:
  using Json = nlohmann::ordered_json;
  Json json_of(size_t index, int64_t created) const;
  void add_ollama_routes(http::Router& router, const Guard& guarded) const;
  /// What Ollama's list says of a model; null where its files can't be read.
  Json entry(size_t index) const;
  Json running() const;
  void show(const http::Request& request, http::Response& response) const;

  ModelPool& pool_;
  const std::string started_;
};

}  // namespace sluice::serve
