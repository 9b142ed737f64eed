#pragma once
// Steps that make files appear whole and stay after a crash: write beside, sync, rename, sync the
// folder. And the question whether a disk has room. Used by conversion and the safetensors writer.
// Thread safe; shares nothing.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sluice::io {

/// Throws what errno says (src/base/system_error.h): "<path>: <action>: ...", as in "opening the
/// folder".
[[noreturn]] void fail_with_errno(const std::filesystem::path& path, const char* action);

constexpr std::string_view kPartialSuffix = ".partial";  // of a file that is being written

/// `path` with kPartialSuffix.
std::filesystem::path partial_path(const std::filesystem::path& path);
/// Waits until the folder's entries are on the disk. Errors: kFile.
void sync_folder(const std::filesystem::path& folder);
/// Gives the complete, synced file `partial_path(path)` its final name. Errors: kFile.
void publish_file(const std::filesystem::path& path);
/// Writes a small file so that it is either the old or the new one, whatever happens. Errors:
/// kFile, kResource.
void write_file_durably(const std::filesystem::path& path, std::string_view text);
/// Copies a small file of at most 1 GiB the same way. Errors as above.
void copy_file_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Bytes that an ordinary user can still write on the disk of `folder`. Errors: kFile.
int64_t free_disk_bytes(const std::filesystem::path& folder);
/// Errors: kResource, with what is needed and what is there, when `bytes` do not fit; `freed_bytes`
/// will be freed first.
void require_disk_space(const std::filesystem::path& folder, int64_t bytes,
                        int64_t freed_bytes = 0);

}  // namespace sluice::io
