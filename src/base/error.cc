#include "src/base/error.h"

#include <fmt/format.h>

#include "src/base/printable.h"

namespace sluice {

namespace {
std::string join(const std::string& text, const std::string& mend) {
  return mend.empty() ? text : text + "; " + mend;
}
}  // namespace

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kUser: return 2;
    case ErrorKind::kFile: return 3;
    case ErrorKind::kResource: return 4;
    case ErrorKind::kDevice: return 5;
    case ErrorKind::kCancelled: return 130;
    case ErrorKind::kInternal: return 70;
  }
  return 70;
}

// Both may quote what a file says.
Error::Error(ErrorKind kind, std::string what, std::string mend)
    : std::runtime_error(join(printable(what), printable(mend))),
      kind_(kind),
      text_(printable(what)),
      mend_(printable(mend)) {}

Error Error::with_context(const std::string& context) const {
  return Error(kind_, context + ": " + text_, mend_);
}

void assertion_failed(const char* condition, const char* why, const char* file, int line) {
  throw Error(ErrorKind::kInternal,
              fmt::format("internal error at {}:{}: {} ({})", file, line, why, condition),
              "this is a bug in sluice; please report it with the command that showed it");
}

}  // namespace sluice
