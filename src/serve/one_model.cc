#include "src/serve/one_model.h"

namespace sluice::serve {

using nlohmann::ordered_json;

ordered_json OneModel::json_of(const std::string& name, int64_t created) const {
  const HttpOptions& options = routes_.options();
  ordered_json json{{"id", name},
                    {"object", "model"},
                    {"created", created},
                    {"owned_by", "sluice"},
                    {"max_model_len", routes_.service().engine().context_tokens()}};
  if (!options.names(name)) json["parent"] = options.model_name;
  return json;
}

ordered_json OneModel::list(int64_t created) const {
  const HttpOptions& options = routes_.options();
  auto all = ordered_json::array({json_of(options.model_name, created)});
  for (const std::string& name : options.aliases) all.push_back(json_of(name, created));
  for (const AdapterPtr& adapter : routes_.service().adapters().list())
    all.push_back(json_of(adapter->name, created));
  return all;
}

ordered_json OneModel::find(const std::string& name, int64_t created) const {
  const AdapterPtr adapter = routes_.texts().model_of(name);
  const HttpOptions& options = routes_.options();
  if (adapter) return json_of(adapter->name, created);
  return json_of(options.names(name) ? name : options.model_name, created);
}

void OneModel::tell_health(ordered_json& health) const {
  const std::string failure = routes_.service().failure();
  if (!failure.empty()) throw ApiError{503, "the engine has stopped: " + failure, "", "", 0};
  health["running"] = routes_.service().running();
  health["waiting"] = routes_.service().waiting();
}

std::string OneModel::metrics() const { return routes_.service().metrics_text(); }

int64_t OneModel::most_requests() const {
  return routes_.service().most_waiting() + routes_.service().most_running();
}

}  // namespace sluice::serve
