#pragma once
// What the module's sources share: work that Ctrl-C ends, lines that the library tells, values of
// Python's by name.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sluice/sluice.h>

#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice::python {

namespace py = pybind11;

/// Lines of the library's, kept until Python asks for them: whoever tells one never needs the GIL.
/// Thread safe.
class Log {
 public:
  void add(std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// What `work` gives, which runs without the GIL. Not by a destructor: an interpreter that ends
/// takes threads away where they ask for the GIL again, by an exception that no destructor may let
/// pass.
template <typename Work>
auto without_gil(Work work) {
  PyThreadState* const state = PyEval_SaveThread();
  std::exception_ptr thrown;
  using Result = decltype(work());
  std::conditional_t<std::is_void_v<Result>, bool, std::optional<Result>> result{};
  try {
    if constexpr (std::is_void_v<Result>)
      work();
    else
      result.emplace(work());
  } catch (...) {
    thrown = std::current_exception();
  }
  PyEval_RestoreThread(state);
  if (thrown) std::rethrow_exception(thrown);
  if constexpr (!std::is_void_v<Result>) return std::move(*result);
}

/// Runs `work(stop_token)` in a thread of its own while this one waits without the GIL and looks
/// for signals: what Python's handlers raise ends the work, and then is raised. No object of
/// Python's may be touched by the work.
template <typename Work>
auto interruptible(Work work) {
  std::stop_source stop;
  auto done = std::async(std::launch::async, [&] { return work(stop.get_token()); });
  for (;;) {
    const auto waited = without_gil([&] { return done.wait_for(std::chrono::milliseconds(50)); });
    if (waited == std::future_status::ready) return done.get();
    if (PyErr_CheckSignals() == 0) continue;
    stop.request_stop();
    without_gil([&] { done.wait(); });
    throw py::error_already_set();
  }
}

/// Reads the entry `name` of `values` into `field`; an entry that is not there, or None, changes
/// nothing.
template <typename Field>
void read(const py::dict& values, const char* name, Field& field) {
  if (!values.contains(name)) return;
  const py::object value = values[name];
  if (!value.is_none()) field = value.cast<Field>();
}

/// Adds Session and Answers.
void add_answers(py::module_& module);
/// Adds Model, Plan, Profile, forecasts and conversion.
void add_planning(py::module_& module);

}  // namespace sluice::python
