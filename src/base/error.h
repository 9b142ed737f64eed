#pragma once
// The one exception type of sluice. Text = what, where (path, tensor, layer, offset, flag); mend =
// what to do about it. Expected outcomes (queue full, sequence ended) are values, never exceptions.
// Thread safe as any value.
#include <stdexcept>
#include <string>

namespace sluice {

/// Why something could not be done; tools/ maps each to an exit code (2, 3, 4, 5, 130, 70).
enum class ErrorKind { kUser, kFile, kResource, kDevice, kCancelled, kInternal };

/// Process exit code of a kind, as the command line promises it.
int exit_code(ErrorKind kind) noexcept;

class Error : public std::runtime_error {
 public:
  /// `what`: what happened and where. `mend`: how the reader can mend it; may be empty.
  explicit Error(ErrorKind kind, std::string what, std::string mend = {});

  ErrorKind kind() const noexcept { return kind_; }
  /// What and where, without the mend.
  const std::string& text() const noexcept { return text_; }
  const std::string& mend() const noexcept { return mend_; }

  /// The same error, told from further out: "<context>: <text>".
  Error with_context(const std::string& context) const;

 private:
  ErrorKind kind_;
  std::string text_;
  std::string mend_;
};

/// What SLUICE_ASSERT throws: kInternal, with file and line.
[[noreturn]] void assertion_failed(const char* condition, const char* why, const char* file,
                                   int line);

}  // namespace sluice

/// For our own mistakes only: what input or hardware can cause is an Error. On in every build.
#define SLUICE_ASSERT(condition, why)                                  \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::sluice::assertion_failed(#condition, why, __FILE__, __LINE__); \
  } while (false)
