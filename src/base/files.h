#pragma once
// Files and folders by name: what is there, a whole small file under a bound, the names in a
// folder. Everything that sluice reads whole goes through read_file, so that no file, device or
// pipe can take all memory; everything that asks what a path is goes through path_kind, so that
// "not there" and "the system does not say" are never taken for each other. Thread safe; shares
// nothing.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What is there under a name.
enum class PathKind { kMissing, kFile, kFolder, kOther };

/// What is at `path`, links followed; a link to nothing is kMissing. Errors: kFile where the system
/// does not say (a folder that may not be entered, a loop of links, a name too long, a disk's
/// fault).
PathKind path_kind(const std::filesystem::path& path);
/// path_kind is kFile. Errors as there.
bool is_file(const std::filesystem::path& path);
/// path_kind is kFolder. Errors as there.
bool is_folder(const std::filesystem::path& path);
/// path_kind is not kMissing. Errors as there.
bool is_there(const std::filesystem::path& path);

constexpr int64_t kMostSettingsBytes = 16 << 20;    ///< policies, profiles, schemas, templates
constexpr int64_t kMostTokenizerBytes = 512 << 20;  ///< the largest known have 35 MB
constexpr int64_t kMostTextBytes = 256 << 20;  ///< prompts and texts to score: 60 million tokens

/// May a file be a pipe or a device? What a person names may (-f <(command), /dev/stdin); what lies
/// in a model's folder may not, since whoever made the folder could let a reader wait for ever.
enum class Streams : uint8_t { kRefuse, kAllow };

/// The whole file, at most `max_bytes`. Errors: kFile (missing, a folder, a stream where none may
/// be, unreadable, a Git LFS pointer, more than `max_bytes`: of which no more is read).
std::string read_file(const std::filesystem::path& path, int64_t max_bytes,
                      Streams streams = Streams::kRefuse);
/// The same, or nothing where there is no such file; a link to nothing is an error all the same.
std::optional<std::string> read_file_if_there(const std::filesystem::path& path, int64_t max_bytes);
/// Standard input to its end. Errors as read_file's.
std::string read_standard_input(int64_t max_bytes);

/// Replaces the file's whole content. Errors: kFile, kResource (no space).
void write_file(const std::filesystem::path& path, std::string_view text);

/// The paths in a folder, by name. Errors: kFile.
std::vector<std::filesystem::path> folder_entries(const std::filesystem::path& folder);
/// Makes the folder and those above it where they are missing. Errors: kFile, kResource.
void make_folder(const std::filesystem::path& folder);
/// Removes the file where there is one. Errors: kFile.
void remove_file(const std::filesystem::path& path);
/// Where large temporary files go when nothing else is said: $TMPDIR (or $TMP, $TEMP, $TEMPDIR),
/// else /tmp. Errors: kFile when that is no folder.
std::string temporary_folder();

/// Throws the kFile error for a Git LFS pointer when `first_bytes` of the file `path` are one.
void refuse_lfs_pointer(std::string_view first_bytes, const std::filesystem::path& path);

}  // namespace sluice
