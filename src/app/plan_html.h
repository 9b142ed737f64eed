#pragma once
// The answer of `sluice plan` as one self-contained page: what lies where, what the lanes do while
// a few layers pass, throughput against host memory and against the number of sequences, and where
// the products stand under the roofline. Inline SVG, no scripts, nothing from the network.
#include <string>

#include "src/app/plan_report.h"

namespace sluice::app {

/// Searches again for the two curves (a few seconds for a large model). Errors: none beyond
/// search_policy's for the request itself.
std::string plan_html(const PlanSubject& subject, const policy::SearchRequest& request,
                      const policy::SearchResult& result, const std::optional<WhatIfs>& what_ifs);

}  // namespace sluice::app
