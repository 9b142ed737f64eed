// Python with the module built in, for tests: it is linked from the objects of any build, which a
// module that is loaded is not (they can't be moved).
#include <pybind11/embed.h>

#include <cstdio>

extern "C" PyObject* PyInit__core();

namespace {
// What `import sluice` finds in its own folder elsewhere.
extern "C" PyObject* make_core() {
  PyObject* const core = PyInit__core();
  if (core) PyDict_SetItemString(PyImport_GetModuleDict(), "sluice._core", core);
  return core;
}
}  // namespace

int main(int argc, char** argv) {
  if (PyImport_AppendInittab("_core", make_core) != 0) {
    std::fputs("no room for the module\n", stderr);
    return 1;
  }
  return Py_BytesMain(argc, argv);
}
