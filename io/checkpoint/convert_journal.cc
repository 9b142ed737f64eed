#include "io/checkpoint/convert_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "io/files/durable_file.h"
#include "src/base/files.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {

using nlohmann::json;

constexpr const char* kVersionKey = "sluice-convert";
constexpr int kJournalVersion = 1;
constexpr int64_t kMostJournalBytes = 64 << 20;  // 100 bytes a group

std::optional<FinishedGroup> parse_group(const json& line) {
  try {
    return FinishedGroup{.name = line.at("group").get<std::string>(),
                         .file = line.at("file").get<std::string>(),
                         .bytes = line.at("bytes").get<int64_t>(),
                         .checksum = line.at("crc32c").get<uint32_t>()};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

ConvertJournal::ConvertJournal(const std::filesystem::path& folder) : path_(folder / kJournalName) {
  fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd_) fail_with_errno(path_, "opening the journal");
  load(read_file(path_, kMostJournalBytes));
}

void ConvertJournal::load(const std::string& text) {
  size_t at = 0;
  while (true) {
    const size_t newline = text.find('\n', at);
    if (newline == std::string::npos) return;
    const json line =
        json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                    text.begin() + static_cast<std::ptrdiff_t>(newline), nullptr, false);
    if (!line.is_object()) return;
    if (at == 0) {
      if (line.value(kVersionKey, json()) != json(kJournalVersion) ||
          !line.value("identity", json()).is_string())
        return;
      identity_ = line["identity"].get<std::string>();
    } else {
      std::optional<FinishedGroup> group = parse_group(line);
      if (!group) return;
      finished_.push_back(std::move(*group));
    }
    at = newline + 1;
    end_ = static_cast<int64_t>(at);
  }
}

void ConvertJournal::restart(const std::string& identity) {
  end_ = 0;
  identity_ = identity;
  finished_.clear();
  append(json{{kVersionKey, kJournalVersion}, {"identity", identity}}.dump());
  sync_folder(path_.parent_path());
}

void ConvertJournal::add(const FinishedGroup& group) {
  append(json{{"group", group.name},
              {"file", group.file},
              {"bytes", group.bytes},
              {"crc32c", group.checksum}}
             .dump());
  finished_.push_back(group);
}

void ConvertJournal::append(const std::string& line) {
  const std::string text = line + '\n';
  if (::ftruncate(fd_.get(), end_) != 0) fail_with_errno(path_, "writing the journal");
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = ::pwrite(fd_.get(), text.data() + done, text.size() - done,
                                 end_ + static_cast<off_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail_with_errno(path_, "writing the journal");
    done += static_cast<size_t>(put);
  }
  if (::fdatasync(fd_.get()) != 0) fail_with_errno(path_, "writing the journal");
  end_ += static_cast<int64_t>(text.size());
}

void ConvertJournal::remove() {
  if (::unlink(path_.c_str()) != 0) fail_with_errno(path_, "removing the journal");
  sync_folder(path_.parent_path());
}

}  // namespace sluice::io
