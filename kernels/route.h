#pragma once
// Routers of mixtures of experts, and rows that come back from experts.
#include <cstdint>
#include <span>

#include "src/base/router_spec.h"

namespace sluice::kernels {

/// Of each of `rows` rows of x [rows, spec.experts] (row stride `stride` floats) its spec.chosen
/// best experts with their weights: choices [rows, spec.chosen], experts rising. Experts are chosen
/// by score + `vector` ([experts]; null: none), the lower number first where two are equal, and
/// weighted by score alone; or the vector scales weights (RouterSpec::vector_scales). A score that
/// is no number is never chosen before one that is. Formulas: Hugging Face transformers' routers
/// (softmax and sigmoid in f32).
void route(const RouterSpec& spec, const float* x, int64_t stride, int64_t rows,
           const float* vector, RoutedTo* choices) noexcept;

/// Which rows go to which expert: `rows` lists them expert by expert, rising; of expert e those
/// from begin[e] to begin[e + 1].
struct ExpertRows {
  std::span<int32_t> rows;   ///< [rows * chosen]
  std::span<float> weights;  ///< of these
  std::span<int32_t> begin;  ///< [experts + 1]
};
/// Fills `out` from `choices` [rows, chosen].
void group_by_expert(const RoutedTo* choices, int64_t rows, int64_t chosen, int64_t experts,
                     const ExpertRows& out) noexcept;

/// y[ids[i]] += weights[i * weight_stride] * x[i], `rows` rows of `cols` columns; ids differ; null:
/// row i. Row strides in floats. One multiplication and one addition an element, each rounded.
void add_weighted_rows(const float* x, int64_t x_stride, const int32_t* ids, const float* weights,
                       int64_t weight_stride, float* y, int64_t y_stride, int64_t rows,
                       int64_t cols) noexcept;

namespace reference {
void route(const RouterSpec& spec, const float* x, int64_t stride, int64_t rows,
           const float* vector, RoutedTo* choices);
void add_weighted_rows(const float* x, int64_t x_stride, const int32_t* ids, const float* weights,
                       int64_t weight_stride, float* y, int64_t y_stride, int64_t rows,
                       int64_t cols);
}  // namespace reference

}  // namespace sluice::kernels
