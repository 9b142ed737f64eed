#include "src/app/calibration_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/checkpoint/imatrix.h"
#include "src/app/imatrix_calibration.h"
#include "src/app/model_tokenizer.h"
#include "src/app/perplexity.h"
#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::app {

namespace {
void check(const CalibrationSource& source, const QuantisationRequest& request) {
  if (request.bits && request.to)
    throw Error(ErrorKind::kUser, "`bits` with `weights`",
                "`bits` chooses a format for each matrix; leave one of them out");
  if (!source.is_given()) return;
  if (source.most_tokens < 1)
    throw Error(ErrorKind::kUser, fmt::format("`calibrate_tokens` is {}", source.most_tokens),
                "run at least one token of the text");
  if (source.read_text && !source.imatrix.empty())
    throw Error(ErrorKind::kUser, "`imatrix` with `calibrate`",
                "a text says all that an importance matrix does and more; leave one of them out");
  if (!request.bits && (!request.to || !request.to->is_quantised()))
    throw Error(ErrorKind::kUser,
                std::string(source.read_text ? "`calibrate`" : "`imatrix`") +
                    " without quantised `weights`",
                "say which, as int4, or `bits`, as 4.5; or leave it out");
}

// Cut into windows.
CalibrationText cut(const CalibrationSource& source, const BoundModel& model, int64_t& used) {
  model.require_runnable();
  const auto tokenizer = need_tokenizer(model.path(), source.pretokenizer);
  const std::string text = source.read_text();
  if (const auto at = text::first_invalid_utf8(text))
    throw Error(ErrorKind::kUser, fmt::format("{} is not UTF-8 at byte {}", source.text_name, *at),
                "save it as UTF-8 and try again");
  std::vector<int32_t> tokens = tokenizer->encode(text, text::AddSpecial::kNo);
  if (std::ssize(tokens) > source.most_tokens)
    tokens.resize(static_cast<size_t>(std::max<int64_t>(source.most_tokens, 0)));
  used = std::ssize(tokens);
  const int64_t window = std::min<int64_t>(512, model.shape().max_positions);
  CalibrationText out{perplexity_windows(tokens, tokenizer->bos(), window), {}};
  EngineOptions& options = out.options;
  options.memory_budget_bytes = source.memory_budget_bytes;
  options.workload.sequences = std::min<int64_t>(std::ssize(out.windows), 16);
  options.workload.max_prompt_tokens = options.workload.max_total_tokens = window;
  return out;
}
}  // namespace

int64_t add_calibration(const CalibrationSource& source, const BoundModel& model,
                        QuantisationRequest& request) {
  check(source, request);
  if (!source.imatrix.empty())
    request.inputs =
        calibration_of(io::read_imatrix(source.imatrix), model, source.imatrix.string());
  int64_t used = 0;
  if (source.read_text) request.text = cut(source, model, used);
  return used;
}

}  // namespace sluice::app
