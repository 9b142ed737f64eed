#include "io/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/checkpoint/convert_journal.h"
#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/packed_store.h"
#include "io/checkpoint/parallel_ranges.h"
#include "io/checkpoint/piece_reader.h"
#include "io/checkpoint/store_checksum.h"
#include "io/convert/convert_plan.h"
#include "io/convert/panel_writer.h"
#include "io/files/direct_writer.h"
#include "io/files/durable_file.h"
#include "io/files/folder_lock.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallestRange =
    256 << 10;  // elements a thread converts at least: some 0.1 ms, ten times its start
constexpr int64_t kRoomForSmallFiles = 4 << 20;  // index, journal and folder entries

void refuse_same_folder(const Checkpoint& checkpoint, const fs::path& destination) {
  if (checkpoint.format() == CheckpointFormat::kGenerated) return;
  const fs::path& source = checkpoint.folder();
  std::error_code ignored;
  const fs::path from = source.empty() ? fs::path(".") : source;
  if (fs::exists(destination, ignored) && fs::equivalent(from, destination, ignored))
    throw Error(ErrorKind::kUser,
                fmt::format("{}: source and destination are the same folder", destination.string()),
                "choose another destination");
}

// What is read for a tensor, in this order.
std::vector<TensorEntry> read_of(const PlannedTensor& tensor) {
  return tensor.make ? tensor.sources : std::vector<TensorEntry>{tensor.source};
}

[[noreturn]] void refuse_overflow(const std::string& tensor, DType to) {
  throw Error(
      ErrorKind::kUser,
      fmt::format("tensor {}: a value is too large for {}", in_quotes(tensor), dtype_name(to)),
      "choose a type with the range of the source's: `weights` bf16 or f32");
}

class Conversion {
 public:
  Conversion(const Checkpoint& source, std::span<const StoreGroup> groups,
             const ConvertOptions& options)
      : source_(source), options_(options), plan_(plan_conversion(source, groups)) {}

  ConvertReport run() {
    refuse_same_folder(source_, options_.destination);
    make_folder(options_.destination);
    const FolderLock lock(options_.destination);
    require_free_folder();
    ConvertJournal journal(options_.destination);
    try {
      start_or_continue(journal);
    } catch (...) {
      if (!journal.identity()) journal.remove();  // nothing was begun
      throw;
    }
    copy_small_files();
    write_groups(journal);
    write_index();
    journal.remove();
    return report_;
  }

 private:
  void require_free_folder() {
    if (options_.overwrite || is_there(options_.destination / kJournalName)) return;
    refuse_finished_store();
    if (!folder_entries(options_.destination).empty())
      throw Error(ErrorKind::kUser, fmt::format("{}: is not empty", options_.destination.string()),
                  "choose a new folder, or say `overwrite` to write into this one");
  }

  void refuse_finished_store() const {
    if (is_packed_store(options_.destination))
      throw Error(ErrorKind::kUser,
                  fmt::format("{}: already holds a packed store", options_.destination.string()),
                  "say `overwrite` to replace it, or choose another folder");
  }

  void start_or_continue(ConvertJournal& journal) {
    const std::string identity = run_identity(source_, plan_, options_.quantiser_name);
    if (!journal.identity() && !options_.overwrite) refuse_finished_store();
    if (journal.identity() == identity) {
      for (const FinishedGroup& group : journal.finished())
        if (is_still_there(group)) finished_[group.name] = group;
    } else if (journal.identity() && !options_.overwrite) {
      throw Error(ErrorKind::kUser,
                  fmt::format("{}: holds an unfinished conversion of another model, of other "
                              "settings, or of files that "
                              "changed since",
                              options_.destination.string()),
                  "say `overwrite` to start anew, or choose another folder");
    }
    require_room(journal);
    if (journal.identity() == identity) return;
    remove_old_store(journal);
    journal.restart(identity);
  }

  bool is_still_there(const FinishedGroup& group) const {
    const fs::path path = options_.destination / group.file;
    std::error_code problem;
    const uintmax_t size = fs::file_size(path, problem);
    if (problem || size != static_cast<uintmax_t>(group.bytes)) return false;
    return !options_.verify_finished ||
           file_checksum(path, group.bytes, {}, options_.stop) == group.checksum;
  }

  // What an earlier store or run left there, as far as it says itself what belongs to it.
  std::vector<fs::path> old_files(const ConvertJournal& journal) const {
    std::vector<std::string> names;
    for (const FinishedGroup& group : journal.finished()) names.push_back(group.file);
    for (const PlannedGroup& group : plan_.groups) names.push_back(group.file);
    try {
      if (is_packed_store(options_.destination))
        for (const PackedGroup& group : read_packed_index(options_.destination).groups)
          names.push_back(group.file);
    } catch (const Error&) {
      // A damaged index names nothing that could be removed; it is replaced itself.
    }
    std::vector<fs::path> paths;
    for (const std::string& name : names) {
      if (fs::path(name).filename() != name) continue;
      paths.push_back(options_.destination / name);
      paths.push_back(partial_path(paths.back()));
    }
    std::sort(paths.begin(), paths.end());
    paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
    return paths;
  }

  void require_room(const ConvertJournal& journal) const {
    int64_t needed = plan_.total_bytes + kRoomForSmallFiles;
    for (const auto& [name, group] : finished_) needed -= group.bytes;
    int64_t freed = 0;
    for (const fs::path& path : old_files(journal)) {
      const bool is_kept =
          std::any_of(finished_.begin(), finished_.end(), [&](const auto& finished) {
            return options_.destination / finished.second.file == path;
          });
      std::error_code problem;
      const uintmax_t size = fs::file_size(path, problem);
      if (!is_kept && !problem) freed += static_cast<int64_t>(size);
    }
    require_disk_space(options_.destination, needed, freed);
  }

  void remove_old_store(const ConvertJournal& journal) const {
    std::vector<fs::path> paths = old_files(journal);
    paths.insert(paths.begin(),
                 options_.destination / kStoreIndexName);  // first: without it nothing is a store
    for (const fs::path& path : paths) remove_file(path);
  }

  void copy_small_files() {
    std::vector<fs::path> paths;
    if (!source_.config_text().empty() && source_.format() != CheckpointFormat::kGenerated)
      paths = companion_files(source_.folder());
    paths.insert(paths.end(), options_.extra_files.begin(), options_.extra_files.end());
    for (const fs::path& path : paths) {
      refuse_stop();
      copy_file_durably(path, options_.destination / path.filename());
      small_files_.insert(path.filename().string());
    }
    for (const auto& [name, text] : options_.texts) {
      write_file_durably(options_.destination / name, text);
      small_files_.insert(name);
    }
  }

  void write_groups(ConvertJournal& journal) {
    std::vector<fs::path> files;
    for (const CheckpointFile& file : source_.files()) files.push_back(file.path);
    std::vector<Piece> pieces;
    for (const PlannedGroup& group : plan_.groups) {
      if (finished_.contains(group.name)) continue;
      for (const PlannedTensor& tensor : group.tensors)
        for (const TensorEntry& source : read_of(tensor))
          append_pieces(pieces, source.file_index, source.offset, source.bytes);
    }
    PieceReader reader(std::move(files), std::move(pieces), options_.source_bytes);
    report_ = {.total_bytes = plan_.total_bytes,
               .groups = static_cast<int64_t>(plan_.groups.size()),
               .resumed_groups = static_cast<int64_t>(finished_.size())};
    for (const auto& [name, group] : finished_) done_bytes_ += group.bytes;
    for (const PlannedGroup& group : plan_.groups) {
      if (finished_.contains(group.name)) continue;
      const FinishedGroup written = write_group(group, reader);
      journal.add(written);
      finished_[group.name] = written;
      done_bytes_ += written.bytes;
      report_.written_bytes += written.bytes;
    }
  }

  FinishedGroup write_group(const PlannedGroup& group, PieceReader& reader) const {
    const fs::path path = options_.destination / group.file;
    DirectWriter writer(partial_path(path), group.file_bytes, DirectWriter::Checksum::kCrc32c);
    writer.append(std::as_bytes(std::span(group.header)));
    for (const PlannedTensor& tensor : group.tensors) {
      writer.append_zeros(tensor.target.offset - writer.bytes());
      write_tensor(group, tensor, reader, writer);
    }
    refuse_stop();
    writer.append_zeros(group.file_bytes - writer.bytes());
    writer.finish();
    publish_file(path);
    report_progress(group, writer);
    return {group.name, group.file, group.file_bytes, writer.checksum()};
  }

  void write_tensor(const PlannedGroup& group, const PlannedTensor& tensor, PieceReader& reader,
                    DirectWriter& writer) const {
    if (tensor.make) {
      std::vector<std::vector<std::byte>> parts;
      for (const TensorEntry& source : tensor.sources) {
        std::vector<std::byte>& part = parts.emplace_back();
        part.reserve(static_cast<size_t>(source.bytes));
        while (static_cast<int64_t>(part.size()) < source.bytes) {
          refuse_stop();
          const std::span<const std::byte> piece = reader.next();
          part.insert(part.end(), piece.begin(), piece.end());
        }
      }
      const std::vector<std::byte> made = tensor.make(parts);
      SLUICE_ASSERT(static_cast<int64_t>(made.size()) == tensor.target.bytes,
                    "what is made has the size that was planned");
      writer.append(made);
      report_progress(group, writer);
      return;
    }
    if (tensor.target.quantised.is_quantised() && !tensor.source.quantised.is_quantised()) {
      PanelWriter panels(tensor, options_, writer);
      for (int64_t read = 0; read < tensor.source.bytes;) {
        refuse_stop();
        report_progress(group, writer);
        const std::span<const std::byte> piece = reader.next();
        read += static_cast<int64_t>(piece.size());
        panels.add(piece);
      }
      return;
    }
    const int64_t in_element = dtype_bytes(tensor.source.dtype);
    const int64_t out_element = dtype_bytes(tensor.target.dtype);
    for (int64_t read = 0; read < tensor.source.bytes;) {
      refuse_stop();
      report_progress(group, writer);
      std::span<const std::byte> piece = reader.next();
      read += static_cast<int64_t>(piece.size());
      while (!piece.empty()) {
        // Tensors start aligned and buffers are whole blocks: a buffer always ends between two
        // elements.
        const std::span<std::byte> space = writer.space();
        const int64_t count = std::min(static_cast<int64_t>(piece.size()) / in_element,
                                       static_cast<int64_t>(space.size()) / out_element);
        parallel_ranges(options_.threads, count, kSmallestRange, [&](int64_t begin, int64_t end) {
          const auto part = [&](auto bytes, int64_t element) {
            return bytes.subspan(static_cast<size_t>(begin * element),
                                 static_cast<size_t>((end - begin) * element));
          };
          convert_elements(tensor.source.dtype, part(piece, in_element), tensor.target.dtype,
                           part(space, out_element));
          if (first_overflow(tensor.source.dtype, part(piece, in_element), tensor.target.dtype,
                             part(space, out_element)) >= 0)
            refuse_overflow(tensor.source.name, tensor.target.dtype);
        });
        writer.advance(static_cast<size_t>(count * out_element));
        piece = piece.subspan(static_cast<size_t>(count * in_element));
      }
    }
  }

  void write_index() const {
    std::string name = source_.folder().filename().string();
    if (name.empty()) name = source_.folder().parent_path().filename().string();
    // Folders may be called anything, JSON is UTF-8; hours of work must not end at a name.
    name = nlohmann::json::parse(
               nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
               .get<std::string>();
    PackedIndex index{.source_name = std::move(name),
                      .source_format = std::string(checkpoint_format_name(source_.format())),
                      .source_identity = plan_.source_identity};
    for (const PlannedGroup& group : plan_.groups) {
      PackedGroup entry{.name = group.name,
                        .file = group.file,
                        .bytes = group.file_bytes,
                        .checksum = finished_.at(group.name).checksum};
      for (const PlannedTensor& tensor : group.tensors) entry.tensors.push_back(tensor.target);
      index.groups.push_back(std::move(entry));
    }
    for (const std::string& name : small_files_)
      index.small_files.push_back(describe_small_file(options_.destination / name));
    write_file_durably(options_.destination / kStoreIndexName, format_packed_index(index));
  }

  void refuse_stop() const {
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed))
      throw Error(ErrorKind::kCancelled,
                  fmt::format("{}: conversion stopped", options_.destination.string()),
                  "run the same command again to continue");
  }

  void report_progress(const PlannedGroup& group, const DirectWriter& writer) const {
    if (options_.progress)
      options_.progress({done_bytes_ + writer.bytes(), plan_.total_bytes, group.name});
  }

  const Checkpoint& source_;
  const ConvertOptions& options_;
  ConvertPlan plan_;
  std::map<std::string, FinishedGroup> finished_;  // by group name
  std::set<std::string> small_files_;              // names, in the destination
  int64_t done_bytes_ = 0;                         // of finished groups
  ConvertReport report_;
};

}  // namespace

ConvertReport convert_checkpoint(const Checkpoint& source, std::span<const StoreGroup> groups,
                                 const ConvertOptions& options) {
  return Conversion(source, groups, options).run();
}

std::vector<fs::path> companion_files(const fs::path& folder) {
  constexpr std::array kNames = {"config.json",
                                 "generation_config.json",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "tokenizer.model",
                                 "tiktoken.model",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "vocab.json",
                                 "merges.txt",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "preprocessor_config.json",
                                 "LICENSE",
                                 "LICENSE.txt",
                                 "LICENSE.md"};
  std::vector<fs::path> paths;
  for (const char* name : kNames)
    if (is_file(folder / name)) paths.push_back(folder / name);
  return paths;
}

}  // namespace sluice::io
