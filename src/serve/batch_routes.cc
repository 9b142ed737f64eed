#include "src/serve/batch_routes.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/serve/api_error.h"
#include "src/serve/api_request.h"
#include "src/serve/json_text.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

Batches& kept(Batches* batches) {
  if (!batches)
    throw ApiError{404, "this server keeps no files; start it with --batch-dir FOLDER", "", "", 0};
  return *batches;
}

void add_file_routes(httplib::Server& server, Batches* batches,
                     const std::function<Handler(Handler)>& guarded) {
  constexpr const char* kOne = R"(/v1/files/([\w-]{1,100}))";
  constexpr const char* kContent = R"(/v1/files/([\w-]{1,100})/content)";
  const auto describe = [](const StoredFile& file) -> ordered_json {
    return {{"id", file.id},
            {"object", "file"},
            {"bytes", file.bytes},
            {"created_at", file.created},
            {"filename", file.filename},
            {"purpose", file.purpose},
            {"status", "processed"},
            {"status_details", nullptr}};
  };
  const auto find = [=](const httplib::Request& request) {
    const auto file = kept(batches).files().find(request.matches[1]);
    if (!file)
      throw ApiError{404, fmt::format("there is no file {}", request.matches[1].str()), "not_found",
                     "file_id", 0};
    return *file;
  };
  server.Post("/v1/files", guarded([=](const auto& request, auto& response) {
                FileStore& files = kept(batches).files();
                if (!request.has_file("file") || !request.has_file("purpose"))
                  throw ApiError{400,
                                 "send a form (multipart/form-data) with \"file\" and \"purpose\"",
                                 "", "file", 0};
                const auto file = request.get_file_value("file");
                if (request.get_file_value("purpose").content != "batch")
                  throw ApiError{400, "purpose must be \"batch\"", "", "purpose", 0};
                const std::string name = text::mend_utf8(file.filename.substr(0, 255));
                response.set_content(dump(describe(files.add(name, "batch", file.content))),
                                     "application/json");
              }));
  server.Get(
      "/v1/files", guarded([=](const auto& request, auto& response) {
        auto data = ordered_json::array();
        for (const StoredFile& file : kept(batches).files().list())
          if (!request.has_param("purpose") || request.get_param_value("purpose") == file.purpose)
            data.push_back(describe(file));
        response.set_content(dump({{"object", "list"}, {"data", data}, {"has_more", false}}),
                             "application/json");
      }));
  server.Get(kOne, guarded([=](const auto& request, auto& response) {
               response.set_content(dump(describe(find(request))), "application/json");
             }));
  server.Get(kContent, guarded([=](const auto& request, auto& response) {
               const StoredFile file = find(request);
               const auto input = std::make_shared<std::ifstream>(
                   kept(batches).files().path_of(file.id), std::ios::binary);
               response.set_content_provider(
                   static_cast<size_t>(file.bytes), "application/jsonl",
                   [input](size_t offset, size_t length, httplib::DataSink& sink) {
                     std::vector<char> piece(std::min<size_t>(length, size_t{1} << 20));
                     input->seekg(static_cast<std::streamoff>(offset));
                     input->read(piece.data(), static_cast<std::streamsize>(piece.size()));
                     return input->gcount() > 0 &&
                            sink.write(piece.data(), static_cast<size_t>(input->gcount()));
                   });
             }));
  server.Delete(
      kOne, guarded([=](const auto& request, auto& response) {
        const StoredFile file = find(request);
        if (kept(batches).is_in_use(file.id))
          throw ApiError{409, "a batch that has not ended reads the file; cancel it first", "",
                         "file_id", 0};
        kept(batches).files().remove(file.id);
        response.set_content(dump({{"id", file.id}, {"object", "file"}, {"deleted", true}}),
                             "application/json");
      }));
}
}  // namespace

void add_batch_routes(httplib::Server& server, Batches* batches,
                      const std::function<Handler(Handler)>& guarded) {
  add_file_routes(server, batches, guarded);
  const auto answer = [](httplib::Response& response, const ordered_json& json) {
    response.set_content(dump(json), "application/json");
  };
  server.Post("/v1/batches", guarded([=](const auto& request, auto& response) {
                answer(response, kept(batches).create(parse_object(request.body)));
              }));
  server.Get(
      "/v1/batches", guarded([=](const auto& request, auto& response) {
        size_t limit = 20;
        if (request.has_param("limit")) {
          const std::string text = request.get_param_value("limit");
          const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
          if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > 100)
            throw ApiError{400, "limit must be from 1 to 100", "", "limit", 0};
        }
        answer(response, kept(batches).list(request.get_param_value("after"), limit));
      }));
  server.Get(R"(/v1/batches/(\w{1,100}))", guarded([=](const auto& request, auto& response) {
               answer(response, kept(batches).find(request.matches[1]));
             }));
  server.Post(R"(/v1/batches/(\w{1,100})/cancel)",
              guarded([=](const auto& request, auto& response) {
                answer(response, kept(batches).cancel(request.matches[1]));
              }));
}

}  // namespace sluice::serve
