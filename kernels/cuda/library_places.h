#pragma once
// Where libraries of the CUDA toolkit lie that the loader does not look for: toolkits that no one
// told it of, and Python's packages of them. Thread safe.
#include <string>
#include <vector>

namespace sluice::cuda {

/// The files called `name` ("libcublasLt.so.13") in those folders, in the order to try them in:
/// the toolkit in use, others, newest first, Python's packages. `root` is put before every folder.
/// Throws nothing but std::bad_alloc.
std::vector<std::string> toolkit_libraries(const std::string& name, const std::string& root = "");

/// Those folders in words, for messages.
std::string toolkit_folders();

}  // namespace sluice::cuda
