#include "src/serve/page.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::serve {

namespace {
// Whether If-None-Match names the tag: a list, weak tags compared as the strong ones they stand
// for, or "*" (RFC 9110, 13.1.2).
bool names_tag(std::string_view list, std::string_view tag) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    std::string_view one = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    one.remove_prefix(std::min(one.find_first_not_of(" \t"), one.size()));
    one = one.substr(0, one.find_last_not_of(" \t") + 1);
    if (one == "*") return true;
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == tag) return true;
  }
  return false;
}
}  // namespace

std::string page_policy(const PageText& page) {
  return fmt::format(
      "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'",
      page.script_digest, page.style_digest);
}

void answer_page(const http::Request& request, http::Response& response) {
  response.set_header("ETag", std::string(kPageText.etag));
  response.set_header("Cache-Control", "no-cache");  // asked for again each time, by its tag
  response.set_header("Content-Security-Policy", page_policy(kPageText));
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  if (names_tag(request.header("If-None-Match"), kPageText.etag)) {
    response.status = 304;
    return;
  }
  response.set_content(std::string(kPageText.html), "text/html; charset=utf-8");
}

}  // namespace sluice::serve
