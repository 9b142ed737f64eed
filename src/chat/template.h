#pragma once
// A Jinja template, parsed once and rendered any number of times: for loops with their loop object,
// if, set, macros, call and filter blocks, Python's operators, slices, string and dictionary
// methods, with the settings of Hugging Face's chat templates (trim_blocks, lstrip_blocks, loop
// controls, {% generation %}). Bounded: a template that runs away or prints without end is an
// error. Immutable after construction, so any number of threads may render it.
#include <memory>
#include <string>
#include <string_view>

#include "src/chat/value.h"

namespace sluice::chat {

class Template {
 public:
  /// Errors: TemplateError with the line.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// Beside `variables`: range, namespace and dict as Jinja has them,
  /// raise_exception and strftime_now (local time) as Hugging Face has them. Errors:
  /// TemplateRefusal when the template raises; TemplateError with the line.
  std::string render(const Dict& variables) const;

 private:
  struct Root;
  std::unique_ptr<Root> root_;
};

}  // namespace sluice::chat
