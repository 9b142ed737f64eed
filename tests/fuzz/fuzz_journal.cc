// The journal of a conversion as a crash, or somebody else, left it: what it knows can be added to
// and is there again the next time.
#include "io/checkpoint/convert_journal.h"
#include "src/base/error.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::io::ConvertJournal;
  static const sluice::fuzz::Folder folder;
  folder.write(std::string(sluice::io::kJournalName), sluice::fuzz::text_of(data, size));
  try {
    size_t finished = 0;
    std::string identity = "0123456789abcdef";
    {
      ConvertJournal journal(folder.path());
      sluice::fuzz::require(journal.identity().has_value() || journal.finished().empty());
      if (journal.identity()) {
        sluice::fuzz::accepted();
        identity = *journal.identity();
      } else {
        journal.restart(identity);
      }
      journal.add({"layer-00000", "layer-00000.safetensors", 4096, 7});
      finished = journal.finished().size();
    }
    ConvertJournal again(folder.path());
    sluice::fuzz::require(again.identity() == identity && again.finished().size() == finished);
    sluice::fuzz::require(again.finished().back().checksum == 7);
    again.remove();
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile);
  }
  return 0;
}
