#pragma once
// What quantisation is calibrated on, as users name it: a text or an importance matrix. What
// `convert` of the program and of the library do alike.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "src/app/quantisation.h"

namespace sluice::app {

/// A text, or what llama.cpp's llama-imatrix has gathered on one.
struct CalibrationSource {
  std::function<std::string()> read_text;  ///< UTF-8; called when all else is right; empty: none
  std::string text_name;                   ///< for errors: its file
  int64_t most_tokens = 16384;             ///< of it
  int64_t memory_budget_bytes = 0;         ///< host memory of its run; 0: what is free
  std::filesystem::path imatrix;           ///< .dat or .gguf, in place of a text; empty: none
  std::string pretokenizer;                ///< how a GGUF file's text is cut; empty: it says
  bool is_given() const { return read_text || !imatrix.empty(); }
};

/// Adds to `request`, whose `to` and `bits` are set, what it is calibrated on, and says how many
/// tokens that is (0 without a text). Errors: kUser where `to` and `bits` are both there, for a
/// text with an importance matrix, for either without quantised weights, for a text that is not
/// UTF-8, and for a model without a tokenizer (kFile) or kinds of layers that do not run; those of
/// reading an importance matrix.
int64_t add_calibration(const CalibrationSource& source, const BoundModel& model,
                        QuantisationRequest& request);

}  // namespace sluice::app
