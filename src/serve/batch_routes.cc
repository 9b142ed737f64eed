#include "src/serve/batch_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/http/multipart.h"
#include "src/serve/api_error.h"
#include "src/serve/api_request.h"
#include "src/serve/json_text.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using http::Place;
using http::Request;
using http::Response;
using nlohmann::ordered_json;
using Guarded = std::function<http::Handler(http::Handler)>;

constexpr size_t kMostParts = 32;          // of a form
constexpr size_t kPieceBytes = 256 << 10;  // of a file that goes out

Batches& kept(Batches* batches) {
  if (!batches)
    throw ApiError{404, "this server keeps no files; start it with a folder for them", "", "", 0};
  return *batches;
}

void answer(Response& response, const ordered_json& json) {
  response.set_content(dump(json), "application/json");
}

// A file as it lies on the disk.
class LiveFile final : public http::LiveAnswer {
 public:
  LiveFile(const std::filesystem::path& path, int64_t bytes)
      : file_(path, std::ios::binary), left_(bytes) {}
  void watch(std::function<void()>) override {}
  http::Piece next() override {
    if (!std::exchange(has_begun_, true)) {
      Response head;
      head.set_header("Content-Type", "application/jsonl");
      head.length = left_;
      return http::Piece::begin(std::move(head));
    }
    std::string piece(static_cast<size_t>(std::min<int64_t>(left_, kPieceBytes)), '\0');
    file_.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (file_.gcount() != static_cast<std::streamsize>(piece.size())) return http::Piece::broken();
    left_ -= static_cast<int64_t>(piece.size());
    return left_ == 0 ? http::Piece::end(std::move(piece)) : http::Piece::more(std::move(piece));
  }

 private:
  std::ifstream file_;
  int64_t left_;
  bool has_begun_ = false;
};

// Which part of a list is asked for. Other parameters are refused: they would change the answer.
struct ListQuery {
  size_t limit;
  std::string after, purpose;
  bool is_ascending;
};
ListQuery list_query(const Request& request, size_t limit, size_t most,
                     std::initializer_list<std::string_view> known) {
  ListQuery out{limit, {}, {}, false};
  for (const auto& [name, value] : request.query) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw ApiError{400, fmt::format("the parameter \"{}\" is unknown", name.substr(0, 100)), "",
                     name.substr(0, 100), 0};
    if (name == "after") out.after = value;
    if (name == "purpose") out.purpose = value;
    if (name == "order") {
      if (value != "asc" && value != "desc")
        throw ApiError{400, "order must be asc or desc", "", "order", 0};
      out.is_ascending = value == "asc";
    }
    if (name != "limit") continue;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.limit);
    if (error != std::errc() || end != value.data() + value.size() || out.limit < 1 ||
        out.limit > most)
      throw ApiError{400, fmt::format("limit must be a number from 1 to {}", most), "", "limit", 0};
  }
  return out;
}

ordered_json describe(const StoredFile& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.bytes},
          {"created_at", file.created},
          {"expires_at", file.expires > 0 ? ordered_json(file.expires) : ordered_json(nullptr)},
          {"filename", file.filename},
          {"purpose", file.purpose},
          {"status", "processed"},
          {"status_details", nullptr}};
}

// "expires_after[anchor]" and "expires_after[seconds]" of a form.
int64_t life_in_form(const http::FormPart* anchor, const http::FormPart* seconds) {
  if (!anchor && !seconds) return 0;
  ordered_json after = ordered_json::object();
  if (anchor) after["anchor"] = anchor->content;
  if (seconds) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(
        seconds->content.data(), seconds->content.data() + seconds->content.size(), value);
    if (error == std::errc() && end == seconds->content.data() + seconds->content.size())
      after["seconds"] = value;
  }
  return life_of("expires_after", after);
}

StoredFile find_file(Batches* batches, const Request& request) {
  const auto file = kept(batches).files().find(request.parts.front());
  if (!file)
    throw ApiError{404, fmt::format("there is no file {}", request.parts.front()), "not_found",
                   "file_id", 0};
  return *file;
}

void upload(Batches* batches, const Request& request, Response& response) {
  FileStore& files = kept(batches).files();
  const auto form = http::read_form(request.header("Content-Type"), request.body, kMostParts);
  const auto part = [&](const char* name) -> const http::FormPart* {
    for (size_t i = 0; form && i < form->size(); ++i)
      if ((*form)[i].name == name) return &(*form)[i];
    return nullptr;
  };
  if (!part("file") || !part("purpose"))
    throw ApiError{400, "send a form (multipart/form-data) with \"file\" and \"purpose\"", "",
                   "file", 0};
  if (part("purpose")->content != "batch")
    throw ApiError{400, "purpose must be \"batch\"", "", "purpose", 0};
  const std::string name = text::mend_utf8(part("file")->filename.substr(0, 255));
  const int64_t life = life_in_form(part("expires_after[anchor]"), part("expires_after[seconds]"));
  answer(response, describe(files.add(name, "batch", part("file")->content, life)));
}

void list_files(Batches* batches, const Request& request, Response& response) {
  const ListQuery query = list_query(request, 10000, 10000, {"limit", "after", "order", "purpose"});
  std::vector<StoredFile> files = kept(batches).files().list();
  if (!query.after.empty() && !kept(batches).files().find(query.after))
    throw ApiError{400, fmt::format("after: there is no file {}", query.after.substr(0, 100)), "",
                   "after", 0};
  if (!query.is_ascending) std::reverse(files.begin(), files.end());
  auto data = ordered_json::array();
  bool is_behind = query.after.empty(), has_more = false;
  for (const StoredFile& file : files) {
    const bool is_asked = is_behind && (query.purpose.empty() || query.purpose == file.purpose);
    has_more = is_asked && data.size() == query.limit;
    if (has_more) break;
    if (is_asked) data.push_back(describe(file));
    is_behind = is_behind || file.id == query.after;
  }
  answer(response, {{"object", "list"}, {"data", data}, {"has_more", has_more}});
}

void add_file_routes(http::Router& router, Batches* batches, const Guarded& guarded) {
  router.add("POST", "/v1/files", Place::kWork, guarded([=](const auto& request, auto& response) {
               upload(batches, request, response);
             }));
  router.add("GET", "/v1/files", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               list_files(batches, request, response);
             }));
  router.add("GET", "/v1/files/{}", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               answer(response, describe(find_file(batches, request)));
             }));
  router.add("GET", "/v1/files/{}/content", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               const StoredFile file = find_file(batches, request);
               if (file.bytes == 0)
                 response.set_content("", "application/jsonl");
               else
                 response.live =
                     std::make_shared<LiveFile>(kept(batches).files().path_of(file.id), file.bytes);
             }));
  router.add("DELETE", "/v1/files/{}", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               const StoredFile file = find_file(batches, request);
               if (kept(batches).is_in_use(file.id))
                 throw ApiError{409, "a batch that has not ended reads the file; cancel it first",
                                "", "file_id", 0};
               kept(batches).files().remove(file.id);
               answer(response, {{"id", file.id}, {"object", "file"}, {"deleted", true}});
             }));
}
}  // namespace

void add_batch_routes(http::Router& router, Batches* batches, const Guarded& guarded) {
  add_file_routes(router, batches, guarded);
  router.add("POST", "/v1/batches", Place::kWork, guarded([=](const auto& request, auto& response) {
               answer(response, kept(batches).create(parse_object(request.body)));
             }));
  router.add("GET", "/v1/batches", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               const ListQuery query = list_query(request, 20, 100, {"limit", "after"});
               answer(response, kept(batches).list(query.after, query.limit));
             }));
  router.add("GET", "/v1/batches/{}", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               answer(response, kept(batches).find(request.parts.front()));
             }));
  router.add("POST", "/v1/batches/{}/cancel", Place::kReserved,
             guarded([=](const auto& request, auto& response) {
               answer(response, kept(batches).cancel(request.parts.front()));
             }));
}

}  // namespace sluice::serve
