// A form: the content type up to the first line end, then the body. Its parts lie in the body, one
// behind the other, and are found again in the form that they make anew.
#include "src/http/multipart.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMostParts = 8;
  std::string_view body = sluice::fuzz::text_of(data, size);
  const std::string_view type = sluice::fuzz::cut(body, '\n');
  const auto form = sluice::http::read_form(type, body, kMostParts);
  if (!form) return 0;
  sluice::fuzz::accepted();
  sluice::fuzz::require(form->size() <= kMostParts);
  const char* at = body.data();
  for (const auto& part : *form) {
    if (part.content.empty()) continue;
    sluice::fuzz::require(part.content.data() > at &&
                          part.content.data() + part.content.size() <= body.data() + body.size());
    at = part.content.data() + part.content.size();
  }
  // Lines of dashes that no part holds.
  std::string boundary = "b";
  while (body.find("--" + boundary) != std::string_view::npos) boundary += 'b';
  if (boundary.size() > 70) return 0;
  std::string again;
  for (const auto& part : *form)
    again += "--" + boundary + "\r\nContent-Disposition: form-data; name=x\r\n\r\n" +
             std::string(part.content) + "\r\n";
  again += "--" + boundary + "--\r\n";
  const auto same =
      sluice::http::read_form("multipart/form-data; boundary=" + boundary, again, kMostParts);
  sluice::fuzz::require(same && same->size() == form->size());
  for (size_t i = 0; i < form->size(); ++i)
    sluice::fuzz::require((*same)[i].content == (*form)[i].content);
  return 0;
}
