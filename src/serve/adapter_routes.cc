#include "src/serve/adapter_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/app/named_adapters.h"
#include "src/base/error.h"
#include "src/serve/api_error.h"
#include "src/serve/api_request.h"

namespace sluice::serve {

namespace {
using http::Place;
using http::Request;
using http::Response;

std::string text_field(const nlohmann::ordered_json& body, const char* name) {
  if (!body.contains(name) || !body[name].is_string() ||
      body[name].get_ref<const std::string&>().empty())
    throw ApiError{400, fmt::format("give \"{}\", a string", name), "", name, 0};
  return body[name].get<std::string>();
}

void require_loading(const std::filesystem::path& folder) {
  if (folder.empty())
    throw ApiError{404,
                   "adapters are not loaded while this server runs; start it with a folder for "
                   "them (`lora_dir`)",
                   "", "", 0};
}

void load_adapter(AdapterBank& adapters, const std::filesystem::path& root,
                  const std::function<bool(const std::string&)>& is_models, const Request& request,
                  Response& response) {
  require_loading(root);
  const auto body = parse_object(request.body);
  const std::string name = text_field(body, "lora_name");
  const std::filesystem::path folder = folder_within(root, text_field(body, "lora_path"));
  try {
    app::check_adapter_name(name);
    if (is_models(name) || adapters.find(name))
      throw ApiError{400, fmt::format("\"{}\" is served already", name), "", "lora_name", 0};
    adapters.load(name, LoraAdapter::open(folder));
  } catch (const Error& error) {
    // Files' paths are for the log: of what is wrong with an adapter the caller hears by its name.
    if (error.kind() == ErrorKind::kResource)
      throw ApiError{400, error.text() + "; " + error.mend(), "", "lora_name", 0};
    if (error.kind() == ErrorKind::kUser || error.kind() == ErrorKind::kFile)
      throw ApiError{400, fmt::format("adapter {}: {}", name, error.text()), "", "lora_path", 0};
    throw;
  }
  response.set_content(fmt::format("Success: LoRA adapter '{}' added successfully.", name),
                       "text/plain; charset=utf-8");
}

void unload_adapter(AdapterBank& adapters, const std::filesystem::path& root,
                    const Request& request, Response& response) {
  require_loading(root);
  const std::string name = text_field(parse_object(request.body), "lora_name");
  // Requests that have it end with it; its memory is free then.
  if (!adapters.unload(name))
    throw ApiError{404, fmt::format("there is no adapter \"{}\"", name.substr(0, 200)), "",
                   "lora_name", 0};
  response.set_content(fmt::format("Success: LoRA adapter '{}' removed successfully.", name),
                       "text/plain; charset=utf-8");
}
}  // namespace

std::filesystem::path folder_within(const std::filesystem::path& root, const std::string& named) {
  const auto refuse = [] {
    return ApiError{400, "lora_path is no folder within the server's folder of adapters", "",
                    "lora_path", 0};
  };
  if (named.find('\0') != std::string::npos || named.size() > 4096) throw refuse();
  std::error_code error;
  const auto base = std::filesystem::canonical(root, error);
  if (error) throw refuse();
  const auto whole = std::filesystem::canonical(base / named, error);  // a whole path stays one
  if (error || !std::filesystem::is_directory(whole, error)) throw refuse();
  const auto [end, at] = std::mismatch(base.begin(), base.end(), whole.begin(), whole.end());
  if (end != base.end() || at == whole.end()) throw refuse();
  return whole;
}

void add_adapter_routes(http::Router& router, AdapterBank& adapters,
                        const std::filesystem::path& folder,
                        const std::function<bool(const std::string&)>& is_models,
                        const std::function<http::Handler(http::Handler)>& guarded) {
  router.add("POST", "/v1/load_lora_adapter", Place::kWork,
             guarded([=, &adapters](const Request& request, Response& response) {
               load_adapter(adapters, folder, is_models, request, response);
             }));
  router.add("POST", "/v1/unload_lora_adapter", Place::kWork,
             guarded([=, &adapters](const Request& request, Response& response) {
               unload_adapter(adapters, folder, request, response);
             }));
}

}  // namespace sluice::serve
