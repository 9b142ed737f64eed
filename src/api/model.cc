#include <sluice/model.h>

#include "src/app/open_model.h"

namespace sluice {

Model Model::open(const std::filesystem::path& path, const ModelOptions& options) {
  auto bound = app::open_model(path, {options.rope_scaling, options.rope_factor, options.rope_theta,
                                      options.rope_original, options.context_tokens, 0});
  bound->require_runnable();
  return Model(std::move(bound));
}

const std::filesystem::path& Model::path() const { return bound_->path(); }
std::string Model::family() const { return bound_->shape().family; }
std::string Model::weights() const { return bound_->shape().weights_name(); }
int64_t Model::parameters() const { return bound_->shape().num_parameters(); }
int64_t Model::weight_bytes() const { return bound_->shape().weight_bytes(); }
int64_t Model::layers() const { return bound_->shape().num_layers; }
int64_t Model::vocabulary() const { return bound_->shape().vocab_size; }
int64_t Model::longest_context() const { return bound_->shape().max_positions; }
std::vector<int32_t> Model::end_tokens() const { return bound_->eos_token_ids(); }
std::vector<std::string> Model::notes() const { return bound_->notes(); }

}  // namespace sluice
