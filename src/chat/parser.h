#pragma once
// The grammar of Jinja templates as chat templates use it. Pure.
#include <string_view>

#include "src/chat/ast.h"

namespace sluice::chat {

/// Errors: TemplateError with the line: what was found, what was expected; statements that are not
/// supported (import, extends) by name.
Statements parse_template(std::string_view source);

}  // namespace sluice::chat
