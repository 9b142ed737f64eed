// sluice._core: the library's values for the package beside it, which has the names that people
// use. Nothing here is for others.
#include "python/src/binding.h"

namespace sluice::python {

namespace {
const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUser: return "user";
    case ErrorKind::kFile: return "file";
    case ErrorKind::kResource: return "resource";
    case ErrorKind::kDevice: return "device";
    case ErrorKind::kCancelled: return "cancelled";
    case ErrorKind::kInternal: break;
  }
  return "internal";
}

// sluice._errors has the classes, and Python's names of parameters.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const py::object made = py::module_::import("sluice._errors")
                                .attr("made")(kind_name(error.kind()), error.text(), error.mend());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  }
}

void add_tokenizer(py::module_& module) {
  py::class_<Tokenizer>(module, "Tokenizer")
      .def_static("load",
                  [](const std::string& path, const std::string& pretokenizer) {
                    return Tokenizer::load(path, pretokenizer);
                  })
      .def("encode", &Tokenizer::encode, py::arg("text"), py::arg("adds_special"))
      .def(
          "decode",
          [](const Tokenizer& of, const std::vector<int32_t>& ids, bool skips_special) {
            return of.decode(ids, skips_special);
          },
          py::arg("ids"), py::arg("skips_special"))
      .def("find", &Tokenizer::find)
      .def_property_readonly("begin_token", &Tokenizer::begin_token)
      .def_property_readonly("end_token", &Tokenizer::end_token)
      .def_property_readonly("vocabulary", &Tokenizer::vocabulary);
}

void add_chat(py::module_& module) {
  const auto parts = [](std::vector<ChatPart> of) {
    py::list out;
    for (const ChatPart& part : of)
      out.append(py::make_tuple(static_cast<int>(part.kind), part.text, part.call, part.id));
    return out;
  };
  py::class_<ChatReader>(module, "ChatReader")
      .def("add", [parts](ChatReader& of, const std::string& text) { return parts(of.add(text)); })
      .def("finish", [parts](ChatReader& of) { return parts(of.finish()); });
  py::class_<ChatPrompt>(module, "ChatPrompt")
      .def_property_readonly("text", &ChatPrompt::text)
      .def_property_readonly("calls", [](const ChatPrompt& of) { return of.guide().text; })
      .def_property_readonly("keeps_special", &ChatPrompt::keeps_special)
      .def("reader", &ChatPrompt::reader);
  py::class_<Chat>(module, "Chat")
      .def_static("find",
                  [](const std::string& model, const Tokenizer& tokenizer,
                     const std::string& text) { return Chat::find(model, tokenizer, text); })
      .def("prompt", [](const Chat& of, const std::string& request, bool is_guided) {
        return of.prompt(request, is_guided);
      });
}
}  // namespace

PYBIND11_MODULE(_core, module) {
  module.attr("version") = SLUICE_VERSION;
  py::register_exception_translator(translate);
  py::class_<Log, std::shared_ptr<Log>>(module, "Log").def(py::init<>()).def("take", &Log::take);
  add_tokenizer(module);
  add_chat(module);
  add_planning(module);
  add_answers(module);
}

}  // namespace sluice::python
