#pragma once
// Adapters that come and go while the server runs: /v1/load_lora_adapter and
// /v1/unload_lora_adapter, as vLLM has them. Thread safe as what they are given.
#include <filesystem>
#include <functional>
#include <string>

#include "src/engine/stores/adapter_bank.h"
#include "src/http/router.h"

namespace sluice::serve {

/// `folder`: adapters that may be loaded lie in it; empty: the routes say that none may be.
/// `is_models`: whether a name is the model's, and no adapter's. `guarded` makes answers of what a
/// handler throws.
void add_adapter_routes(http::Router& router, AdapterBank& adapters,
                        const std::filesystem::path& folder,
                        const std::function<bool(const std::string&)>& is_models,
                        const std::function<http::Handler(http::Handler)>& guarded);

/// The folder that a caller has named, which lies in `root`: by its path from there, or its whole
/// path. Errors: ApiError where it does not, also by a link out of it.
std::filesystem::path folder_within(const std::filesystem::path& root, const std::string& named);

}  // namespace sluice::serve
