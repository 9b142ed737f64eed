#pragma once
// Forms as browsers and clients upload them (multipart/form-data, RFC 7578). Pure.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::http {

/// One field or file of a form.
struct FormPart {
  std::string name;
  std::string filename;      ///< as sent; may be empty
  std::string_view content;  ///< within the body
};

/// The parts of a body that `content_type` says is multipart/form-data; nothing when it is not, or
/// is broken, or has more than `most_parts`.
std::optional<std::vector<FormPart>> read_form(std::string_view content_type, std::string_view body,
                                               size_t most_parts);

}  // namespace sluice::http
