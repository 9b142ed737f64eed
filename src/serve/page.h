#pragma once
// The page that a browser gets at "/": chat and live figures, in the program itself. It speaks to
// this server alone (/v1/models, /v1/chat/completions, /metrics), with the caller's own key; the
// page itself holds nothing that needs one. Its parts lie in src/serve/page; cmake/embed_page.cmake
// joins them. Pure, thread safe.
#include <string>
#include <string_view>

#include "src/http/message.h"

namespace sluice::serve {

/// The page as the build has joined it.
struct PageText {
  std::string_view html;           ///< all of it
  std::string_view etag;           ///< with its quotes; another for every other text
  std::string_view script_digest;  ///< 'sha256-...' of its one script
  std::string_view style_digest;   ///< of its one style
};
extern const PageText kPageText;

/// Content-Security-Policy: the page's own script and style run, requests go to the server it came
/// from, nothing else is loaded, and no text becomes markup (Trusted Types).
std::string page_policy(const PageText& page);
/// The answer to GET /; 304 without a body where the request's If-None-Match has its tag.
void answer_page(const http::Request& request, http::Response& response);

}  // namespace sluice::serve
