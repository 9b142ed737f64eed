#pragma once
// Which pages a server answers that asks for no key. A browser lets any page on the web send
// requests to addresses that only its user reaches: under a name of the page's own that it has made
// to mean this machine (DNS rebinding), or across origins, whose answers it then hides but whose
// requests have been done (CSRF). Both show in the head of a request: in Host, and in Origin and
// Sec-Fetch-Site (Fetch standard, 3.2; Fetch Metadata). Pure but for the name of the machine;
// thread safe.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/http/message.h"

namespace sluice::serve {

/// The names and origins that a server takes beside its own.
struct OriginRules {
  std::vector<std::string> hosts;    ///< names that Host may have; "*": any
  std::vector<std::string> origins;  ///< of pages that may ask, "https://a.example"; "*": any
};

/// Whether Host names this machine: an IP address, localhost, a name without dots (which no page
/// can have), the machine's name, or one of `hosts`. Without Host: no browser asks.
bool is_own_host(std::string_view host, const std::vector<std::string>& hosts);
/// Whether pages of another origin sent the request, and `origins` do not have it. Opening a page
/// is never foreign.
bool is_foreign(const http::Request& head, const std::vector<std::string>& origins);
/// Why a request is refused where no key is asked for; nothing: it is not.
std::optional<std::string> refusal(const http::Request& head, const OriginRules& rules);

/// Headers by which a browser lets a page of one of `origins` read the answer; none for any other.
http::Fields cors_headers(const http::Request& head, const std::vector<std::string>& origins);
/// Whether a browser asks what a page may send, before it does.
bool is_preflight(const http::Request& head);

/// Errors: kUser where `origin` is no "*" and no origin, such as "https://a.example:8443", in lower
/// case.
void check_origin(const std::string& origin);

}  // namespace sluice::serve
