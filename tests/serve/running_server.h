#pragma once
// The small trained model behind a server on a port of its own, for the tests here.
#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "src/serve/http_server.h"
#include "tests/serve/served_model.h"

namespace sluice::serve {

/// Serves "stories" until it goes; chats by a template that joins the messages' texts.
class RunningServer {
 public:
  /// `folder`: of files and batches; empty: none are kept.
  explicit RunningServer(HttpOptions options = {}, int64_t most_waiting = 1000,
                         int64_t sequences = 4, const std::string& folder = {})
      : model_(most_waiting, sequences) {
    chat::ChatTemplateSource source;
    source.text =
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% "
        "endif %}"
        "{% if breaks %}{{ m.content.upper() }}{% endif %}{{ m.content }}{% endfor %}{% if tools "
        "%}{{ tools | length }}{% endif %}";
    source.origin = "test";
    chat_.emplace(std::move(source));
    options.port = 0;
    options.model_name = "stories";
    if (!folder.empty()) {
      BatchOptions batching;
      batching.folder = folder;
      batching.names.model_name = "stories";
      batches_ = std::make_unique<Batches>(model_.service(), model_.tokenizer(), &*chat_, batching);
    }
    server_ = std::make_unique<HttpServer>(model_.service(), model_.tokenizer(), &*chat_, options,
                                           batches_.get());
    port_ = server_->bind();
    listener_ = std::jthread([this] { server_->serve(); });
  }
  ~RunningServer() { server_->stop(); }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    return client;
  }
  nlohmann::json post(const std::string& path, const nlohmann::json& body, int status = 200) const {
    auto response = client().Post(path, body.dump(), "application/json");
    if (!response) {
      ADD_FAILURE() << path << ": " << httplib::to_string(response.error());
      return {};
    }
    EXPECT_EQ(response->status, status) << response->body;
    return nlohmann::json::parse(response->body);
  }
  GenerationService& service() { return model_.service(); }
  ServedModel& model() { return model_; }
  HttpServer& http() { return *server_; }
  int port() const { return port_; }

 private:
  ServedModel model_;
  std::optional<chat::ChatTemplate> chat_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::jthread listener_;
};

}  // namespace sluice::serve
