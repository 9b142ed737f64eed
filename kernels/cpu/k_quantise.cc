#include "kernels/cpu/k_quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/quantise.h"
#include "src/base/dtype.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kRows = WeightFormat::kPanelRows;

// Four rows at a time, on any processor.
constexpr int kFour = 4;
typedef float Four __attribute__((vector_size(16)));
typedef int32_t Whole __attribute__((vector_size(16)));

inline Four all(float v) { return Four{v, v, v, v}; }
inline Four least(Four a, Four b) { return a < b ? a : b; }
inline Four most(Four a, Four b) { return a > b ? a : b; }
inline Four magnitude(Four v) { return most(v, -v); }
inline Four nearest(Four v) { return (v + 12582912.0f) - 12582912.0f; }  // |v| < 2^22
inline bool any(Whole v) { return (v[0] | v[1] | v[2] | v[3]) != 0; }
// 1 / v, or 0 where v is as good as 0 beside values near 1.
inline Four inverse_of(Four v) {
  const Whole is_some = magnitude(v) > all(1e-20f);
  return is_some ? 1.0f / (is_some ? v : all(1)) : all(0);
}
inline Four ratio(Four a, Four b) {
  const Whole is_some = b > all(0);
  return is_some ? a / (is_some ? b : all(1)) : all(0);
}
inline Four load(const float* p) {
  Four v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Four v) { std::memcpy(p, &v, sizeof v); }

constexpr int kRounds = 3;    // of small scales and then d and m
constexpr int kSettling = 8;  // steps of small scales, at most, until none is better

// What a type's whole numbers may be.
template <Encoding kEncoding>
struct KNumbers {
  static constexpr KLayout kLayout = k_layout(kEncoding);
  static constexpr int kLow = -kLayout.zero;
  static constexpr int kHigh = kLow + (1 << kLayout.block_lines()) - 1;
  static constexpr int kLeastScale = kEncoding == Encoding::kQ3K   ? -32
                                     : kEncoding == Encoding::kQ6K ? -128
                                                                   : 0;
  static constexpr int kMostScale = kEncoding == Encoding::kQ2K   ? 15
                                    : kEncoding == Encoding::kQ3K ? 31
                                    : kEncoding == Encoding::kQ6K ? 127
                                                                  : 63;
};

// A group of four rows, over a power of two of each so that its largest value is near 1.
template <Encoding kEncoding>
class FourRows {
 public:
  using Numbers = KNumbers<kEncoding>;
  static constexpr KLayout kLayout = Numbers::kLayout;
  static constexpr bool kHasMinima = kLayout.has_minima;
  static constexpr int kParts = kLayout.parts(), kOfPart = kLayout.part_columns;

  // weights null: large values count more.
  FourRows(const float* block, const float* weights, const float* unit) : unit_(load(unit)) {
    const Four inverse = 1.0f / unit_;
    for (int i = 0; i < kLayout.columns; ++i) x_[i] = load(block + i * kRows) * inverse;
    if (!weights) {
      weigh_by_size();
      return;
    }
    const float largest = *std::max_element(weights, weights + kLayout.columns);
    const float factor = largest > 0 ? 1 / largest : 0;
    for (int i = 0; i < kLayout.columns; ++i) w_[i] = all(weights[i] * factor);
  }

  // False: d or m is past f16.
  bool choose() {
    for (int part = 0; part < kParts; ++part) fit(part);
    begin_d();
    if constexpr (kHasMinima) begin_m();
    Four least_error = all(INFINITY), best_d = d_, best_m = m_;
    Four best_s[kParts], best_n[kParts];
    for (int round = 0; round < kRounds; ++round) {
      if (round > 0) refit();
      Four error = all(0);
      for (int part = 0; part < kParts; ++part) error += step(part);
      const Whole better = error < least_error;
      least_error = better ? error : least_error;
      best_d = better ? d_ : best_d;
      best_m = better ? m_ : best_m;
      for (int part = 0; part < kParts; ++part) {
        best_s[part] = better ? s_[part] : (round > 0 ? best_s[part] : s_[part]);
        best_n[part] = better ? n_[part] : (round > 0 ? best_n[part] : n_[part]);
      }
    }
    d_ = best_d;
    m_ = best_m;
    std::copy_n(best_s, kParts, s_);
    std::copy_n(best_n, kParts, n_);
    for (int part = 0; part < kParts; ++part) settle(part);
    const Four sum = (d_ + m_) * 0.0f;
    return sum[0] + sum[1] + sum[2] + sum[3] == 0;
  }

  void settle(int part) {
    for (int i = 0; i < kSettling; ++i) {
      const Four s = s_[part], n = n_[part];
      step(part);
      if (!any((s_[part] != s) | (n_[part] != n))) return;
    }
  }

  void read(const KScalesOf16& scales, int64_t lane) {
    d_ = load(scales.d + lane) / unit_;
    m_ = load(scales.m + lane) / unit_;
    for (int part = 0; part < kParts; ++part) {
      s_[part] = load(scales.s + part * kRows + lane);
      n_[part] = load(scales.n + part * kRows + lane);
    }
  }
  void write(KScalesOf16& scales, int64_t lane) const {
    store(scales.d + lane, d_ * unit_);
    store(scales.m + lane, m_ * unit_);
    for (int part = 0; part < kParts; ++part) {
      store(scales.s + part * kRows + lane, s_[part]);
      store(scales.n + part * kRows + lane, n_[part]);
    }
  }

 private:
  // Sums over a part's columns, times their weights, of x q, q q and q.
  struct Sums {
    Four xq, qq, q;
  };
  // A scale and a minimum that codes are best with, and by how much that lowers the error.
  struct Fit {
    Four f, g, gain;
  };

  static Four code(Four v) {
    return nearest(least(most(v, all(Numbers::kLow)), all(Numbers::kHigh)));
  }
  static Four small_scale(Four v) {
    return nearest(least(most(v, all(Numbers::kLeastScale)), all(Numbers::kMostScale)));
  }
  static Four small_minimum(Four v) {
    return nearest(least(most(v, all(0)), all(Numbers::kMostScale)));
  }

  Sums sums_of(int part, Four inverse, Four offset) const {
    Sums out{};
    for (int i = part * kOfPart; i < (part + 1) * kOfPart; ++i) {
      const Four q = kHasMinima ? code((x_[i] + offset) * inverse) : code(x_[i] * inverse);
      const Four wq = q * w_[i];
      out.xq += wq * x_[i];
      out.qq += wq * q;
      if constexpr (kHasMinima) out.q += wq;
    }
    return out;
  }

  Fit fit_of(int part, const Sums& sums) const {
    const Four alone = ratio(sums.xq, sums.qq);
    if constexpr (!kHasMinima) return {alone, all(0), alone * sums.xq};
    const Four w = weight_[part], x = sum_[part];
    const Four determinant = w * sums.qq - sums.q * sums.q;
    const Whole has_both = determinant > 1e-6f * w * sums.qq;
    const Four both = ratio(w * sums.xq - sums.q * x, has_both ? determinant : all(0));
    const Four g = ratio(both * sums.q - x, w);
    const Whole is_good = has_both & (g > all(0)) & (both > all(0));
    // All alike, and below 0: a minimum alone.
    const Four below = most(ratio(-x, w), all(0));
    const Whole is_flat = (below * below * w > alone * sums.xq) & ~is_good;
    Fit out{is_good ? both : alone, is_good ? g : all(0), all(0)};
    out.f = is_flat ? all(0) : out.f;
    out.g = is_flat ? below : out.g;
    out.gain = gain(part, sums, out.f, out.g);
    return out;
  }

  // Root mean square plus a share of the magnitude: that of the part where parts are 32 columns,
  // else of the group (docs/perf/quantisation.md has what the shares were chosen by).
  void weigh_by_size() {
    constexpr int kColumns = kOfPart == 32 ? 32 : kLayout.columns;
    constexpr float kShare = kOfPart == 32 ? 0.25f : 0.5f;
    for (int begin = 0; begin < kLayout.columns; begin += kColumns) {
      Four squares = all(0);
      for (int i = begin; i < begin + kColumns; ++i) squares += x_[i] * x_[i];
      Four size = squares * (1.0f / kColumns);
      for (int i = 0; i < kFour; ++i) size[i] = std::sqrt(size[i]);
      for (int i = begin; i < begin + kColumns; ++i) w_[i] = size + kShare * magnitude(x_[i]);
    }
  }

  // By how much the error grows from a part's own best to this scale and minimum, the codes being
  // the same.
  Four cost(int part, Four f, Four g) const {
    const Sums& sums = sums_[part];
    const Four more = f - f_[part], deeper = g - g_[part];
    if constexpr (!kHasMinima) return more * more * sums.qq;
    const Four slope = sum_[part] - f_[part] * sums.q + g_[part] * weight_[part];
    const Four tilt = sums.xq - f_[part] * sums.qq + g_[part] * sums.q;
    return more * (more * sums.qq - 2.0f * (deeper * sums.q + tilt)) +
           deeper * (deeper * weight_[part] + 2.0f * slope);
  }

  Four gain(int part, const Sums& sums, Four f, Four g) const {
    return f * (2.0f * sums.xq - f * sums.qq + 2.0f * g * sums.q) -
           g * (g * weight_[part] + 2.0f * sum_[part]);
  }

  void keep(int part, const Sums& sums, const Fit& fit) {
    const Whole better = fit.gain > gain_[part];
    gain_[part] = better ? fit.gain : gain_[part];
    f_[part] = better ? fit.f : f_[part];
    g_[part] = better ? fit.g : g_[part];
    sums_[part] = {better ? sums.xq : sums_[part].xq, better ? sums.qq : sums_[part].qq,
                   better ? sums.q : sums_[part].q};
  }

  void attempt(int part, Four inverse, Four offset) {
    const Sums sums = sums_of(part, inverse, offset);
    keep(part, sums, fit_of(part, sums));
  }

  // The best scale (and minimum) of a part on its own.
  void fit(int part) {
    gain_[part] = all(-1);
    f_[part] = g_[part] = all(0);
    sums_[part] = Sums{};
    if constexpr (kHasMinima) {
      fit_range(part);
    } else {
      fit_largest(part);
    }
    for (int i = 0; i < 2; ++i) attempt(part, inverse_of(f_[part]), g_[part]);
  }

  // The value of largest magnitude becomes a code near the lowest, or near the highest.
  void fit_largest(int part) {
    Four largest = all(0), extreme = all(0);
    for (int i = part * kOfPart; i < (part + 1) * kOfPart; ++i) {
      const Four size = magnitude(x_[i]);
      extreme = size > largest ? x_[i] : extreme;
      largest = most(largest, size);
    }
    const Four inverse = inverse_of(extreme);
    constexpr float kStep = kLayout.zero > 8 ? 1.0f : 0.2f;
    for (int i = -3; i <= 6; ++i) {
      attempt(part, inverse * (static_cast<float>(Numbers::kLow) + kStep * static_cast<float>(i)),
              all(0));
      attempt(part, inverse * (static_cast<float>(Numbers::kHigh) - kStep * static_cast<float>(i)),
              all(0));
    }
  }

  // The range, cut at either end by up to a step.
  void fit_range(int part) {
    Four low = all(0), high = x_[part * kOfPart], x = all(0);
    Four w = all(0);
    for (int i = part * kOfPart; i < (part + 1) * kOfPart; ++i) {
      low = least(low, x_[i]);
      high = most(high, x_[i]);
      x += x_[i] * w_[i];
      w += w_[i];
    }
    weight_[part] = w;
    sum_[part] = x;
    const Four step = (high - low) * (1.0f / static_cast<float>(Numbers::kHigh));
    for (int below = 0; below < 4; ++below)
      for (int above = 0; above < 4; ++above) {
        const Four from = low + step * (0.25f * static_cast<float>(below));
        const Four to = high - step * (0.25f * static_cast<float>(above));
        attempt(part, inverse_of(to - from) * static_cast<float>(Numbers::kHigh), -from);
      }
  }

  // d that the largest scale is a whole number with, and the others closest to one; minima follow.
  void begin_d() {
    Four largest = all(0), extreme = all(0), least_cost = all(INFINITY);
    for (int part = 0; part < kParts; ++part) {
      const Four size = magnitude(f_[part]);
      extreme = size > largest ? f_[part] : extreme;
      largest = most(largest, size);
    }
    constexpr int kLast = kHasMinima ? Numbers::kMostScale : -Numbers::kLeastScale;
    for (int whole = (kLast + 1) / 2; whole <= kLast; ++whole) {
      const Four d = extreme / static_cast<float>(kHasMinima ? whole : -whole);
      const Four inverse = inverse_of(d);
      Four sum = all(0);
      for (int part = 0; part < kParts; ++part) {
        const Four f = small_scale(f_[part] * inverse) * d;
        sum += cost(part, f, kHasMinima ? minimum_for(part, f) : all(0));
      }
      const Whole better = sum < least_cost;
      least_cost = better ? sum : least_cost;
      d_ = better ? d : d_;
    }
    d_ = stored(d_);
    const Four inverse = inverse_of(d_);
    for (int part = 0; part < kParts; ++part) {
      s_[part] = small_scale(f_[part] * inverse);
      n_[part] = all(0);
    }
  }

  Four minimum_for(int part, Four f) const {
    return most(ratio(f * sums_[part].q - sum_[part], weight_[part]), all(0));
  }

  // The same of m, scales being those in whole numbers.
  void begin_m() {
    Four wanted[kParts], largest = all(0), least_cost = all(INFINITY);
    for (int part = 0; part < kParts; ++part) {
      wanted[part] = minimum_for(part, s_[part] * d_);
      largest = most(largest, wanted[part]);
    }
    for (int whole = (Numbers::kMostScale + 1) / 2; whole <= Numbers::kMostScale; ++whole) {
      const Four m = largest / static_cast<float>(whole), inverse = inverse_of(m);
      Four sum = all(0);
      for (int part = 0; part < kParts; ++part)
        sum += cost(part, s_[part] * d_, small_minimum(wanted[part] * inverse) * m);
      const Whole better = sum < least_cost;
      least_cost = better ? sum : least_cost;
      m_ = better ? m : m_;
    }
    m_ = stored(m_);
    const Four inverse = inverse_of(m_);
    for (int part = 0; part < kParts; ++part) n_[part] = small_minimum(wanted[part] * inverse);
  }

  Four error_of(int part, Four s, Four n) const {
    const Four f = d_ * s, inverse = inverse_of(f);
    const Four g = kHasMinima ? m_ * n : all(0);
    Four error = all(0);
    for (int i = part * kOfPart; i < (part + 1) * kOfPart; ++i) {
      const Four x = kHasMinima ? x_[i] + g : x_[i];
      const Four off = code(x * inverse) * f - x;
      error += off * off * w_[i];
    }
    return error;
  }

  // The best of a part's small scales and those next to them; what the error is then.
  Four step(int part) {
    const Four s = s_[part], n = n_[part];
    Four best = error_of(part, s, n);
    for (int up = -1; up <= 1; ++up)
      for (int more = kHasMinima ? -1 : 0; more <= (kHasMinima ? 1 : 0); ++more) {
        if (up == 0 && more == 0) continue;
        const Four other = small_scale(s + static_cast<float>(up));
        const Four other_n = kHasMinima ? small_minimum(n + static_cast<float>(more)) : n;
        const Four error = error_of(part, other, other_n);
        const Whole better = error < best;
        best = better ? error : best;
        s_[part] = better ? other : s_[part];
        n_[part] = better ? other_n : n_[part];
      }
    return best;
  }

  // d (and m) that are best with these small scales and their codes.
  void refit() {
    Four xu = all(0), uu = all(0), xn = all(0), un = all(0), nn = all(0);
    for (int part = 0; part < kParts; ++part) {
      const Four g = m_ * n_[part];
      const Sums sums = sums_of(part, inverse_of(d_ * s_[part]), g);
      xu += s_[part] * sums.xq;
      uu += s_[part] * s_[part] * sums.qq;
      if constexpr (kHasMinima) {
        xn += n_[part] * sum_[part];
        un += s_[part] * n_[part] * sums.q;
        nn += n_[part] * n_[part] * weight_[part];
      }
    }
    Four d = ratio(xu, uu);
    if constexpr (kHasMinima) {
      const Four determinant = uu * nn - un * un;
      const Whole has_both = determinant > 1e-6f * uu * nn;
      const Four both = ratio(xu * nn - xn * un, has_both ? determinant : all(0));
      d = has_both ? both : d;
      d = d > all(0) ? d : d_;
      const Four m = stored(ratio(d * un - xn, nn));
      m_ = m > all(0) ? m : m_;
    }
    d = stored(d);
    d_ = d != all(0) ? d : d_;
  }

  // As a panel has it: f16; d that has no minimum beside it only where f16 is normal, so that it is
  // what other programs would read.
  Four stored(Four v) const {
    const Four whole = v * unit_;
    Four out = all(0);
    for (int i = 0; i < kFour; ++i) {
      const float size = std::fabs(whole[i]);
      if (kHasMinima || (size >= 0x1p-14f && size <= 65504.0f))
        out[i] = f16_to_f32(f32_to_f16(whole[i]));
      else if (size >= 0x1p-126f)
        out[i] = whole[i];
    }
    return out / unit_;
  }

  Four unit_;
  Four x_[kMostKColumns];
  Four w_[kMostKColumns];
  Sums sums_[kParts];
  Four gain_[kParts], f_[kParts], g_[kParts];
  Four sum_[kParts], weight_[kParts];  // of x times weights, of weights; with minima
  Four d_ = all(0), m_ = all(0);
  Four s_[kParts], n_[kParts];
};

// Powers of two near the rows' largest magnitudes; false: past a quarter of f32's range.
bool units_of(const float* block, int columns, float* units) {
  float largest[kRows] = {};
  for (int i = 0; i < columns; ++i)
    for (int64_t row = 0; row < kRows; ++row)
      largest[row] = std::max(largest[row], std::fabs(block[i * kRows + row]));
  for (int64_t row = 0; row < kRows; ++row) {
    int exponent = 0;
    std::frexp(largest[row], &exponent);
    if (exponent > 126) return false;
    units[row] = largest[row] > 0 ? std::ldexp(1.0f, std::max(exponent, -100)) : 1;
  }
  return true;
}

// visit(the type's FourRows as a type)
template <typename Visit>
void with_type(Encoding encoding, const Visit& visit) {
  switch (encoding) {
    case Encoding::kQ2K: return visit.template operator()<Encoding::kQ2K>();
    case Encoding::kQ3K: return visit.template operator()<Encoding::kQ3K>();
    case Encoding::kQ4K: return visit.template operator()<Encoding::kQ4K>();
    case Encoding::kQ5K: return visit.template operator()<Encoding::kQ5K>();
    default: return visit.template operator()<Encoding::kQ6K>();
  }
}

// Bytes of the small scales as blocks have them.
void scale_bytes_of(Encoding encoding, const int* s, const int* n, uint8_t* bytes) {
  const auto low = [](int v, int bits) { return static_cast<unsigned>(v) & ((1u << bits) - 1); };
  std::fill_n(bytes, 16, uint8_t{0});
  const auto add = [&](int at, unsigned value) { bytes[at] |= static_cast<uint8_t>(value); };
  for (int part = 0; part < k_layout(encoding).parts(); ++part) {
    if (encoding == Encoding::kQ2K) {
      add(part, low(s[part], 4) | low(n[part], 4) << 4);
    } else if (encoding == Encoding::kQ3K) {
      const int value = s[part] + 32;
      add(part % 8, low(value, 4) << (part / 8 * 4));
      add(8 + part % 4, low(value >> 4, 2) << (part / 4 * 2));
    } else if (encoding == Encoding::kQ6K) {
      add(part, low(s[part], 8));
    } else if (part < 4) {
      add(part, low(s[part], 6));
      add(part + 4, low(n[part], 6));
    } else {
      add(part + 4, low(s[part], 4) | low(n[part], 4) << 4);
      add(part - 4, low(s[part] >> 4, 2) << 6);
      add(part, low(n[part] >> 4, 2) << 6);
    }
  }
}
}  // namespace

bool choose_k_scales(Encoding encoding, const float* block, const float* weights,
                     KScalesOf16& out) noexcept {
  float units[kRows];
  if (!units_of(block, k_layout(encoding).columns, units)) return false;
  bool good = true;
  with_type(encoding, [&]<Encoding kEncoding>() {
    for (int64_t lane = 0; lane < kRows; lane += kFour) {
      FourRows<kEncoding> rows(block + lane, weights, units + lane);
      good &= rows.choose();
      rows.write(out, lane);
    }
  });
  return good;
}

void choose_k_part(Encoding encoding, int part, const float* block, const float* weights,
                   KScalesOf16& scales) noexcept {
  float units[kRows];
  if (!units_of(block, k_layout(encoding).columns, units)) return;
  with_type(encoding, [&]<Encoding kEncoding>() {
    for (int64_t lane = 0; lane < kRows; lane += kFour) {
      FourRows<kEncoding> rows(block + lane, weights, units + lane);
      rows.read(scales, lane);
      rows.settle(part);
      rows.write(scales, lane);
    }
  });
}

void choose_k_codes(Encoding encoding, const float* block, const KScalesOf16& scales,
                    uint8_t* codes, int64_t stride) noexcept {
  with_type(encoding, [&]<Encoding kEncoding>() {
    using Numbers = KNumbers<kEncoding>;
    constexpr KLayout kLayout = Numbers::kLayout;
    for (int64_t lane = 0; lane < kRows; lane += kFour)
      for (int i = 0; i < kLayout.columns; ++i) {
        const int part = i / kLayout.part_columns;
        const Four f = load(scales.d + lane) * load(scales.s + part * kRows + lane);
        const Four g = load(scales.m + lane) * load(scales.n + part * kRows + lane);
        const Whole is_some = magnitude(f) > all(0);
        const Four x = load(block + i * kRows + lane);
        const Four q = is_some ? (kLayout.has_minima ? x + g : x) / (is_some ? f : all(1)) : all(0);
        const Four code = nearest(least(most(q, all(Numbers::kLow)), all(Numbers::kHigh)));
        for (int j = 0; j < kFour; ++j)
          codes[(lane + j) * stride + i] =
              static_cast<uint8_t>(static_cast<int>(code[j]) + kLayout.zero);
      }
  });
}

void pack_k_group(Encoding encoding, const KScalesOf16& scales, const uint8_t* codes,
                  int64_t stride, std::byte* group) noexcept {
  const KLayout layout = k_layout(encoding);
  std::byte* const meta = group + layout.scale_words * kQuantLine;
  for (int64_t row = 0; row < kRows; ++row) {
    int s[kMostKParts], n[kMostKParts];
    for (int part = 0; part < layout.parts(); ++part) {
      s[part] = static_cast<int>(scales.s[part * kRows + row]);
      n[part] = static_cast<int>(scales.n[part * kRows + row]);
    }
    uint8_t bytes[16];
    scale_bytes_of(encoding, s, n, bytes);
    for (int word = 0; word < layout.scale_words; ++word)
      std::memcpy(group + word * kQuantLine + row * 4, bytes + 4 * word, 4);
    if (layout.has_minima) {
      const uint16_t d = f32_to_f16(scales.d[row]), m = f32_to_f16(scales.m[row]);
      std::memcpy(meta + row * 2, &d, 2);
      std::memcpy(meta + 32 + row * 2, &m, 2);
    } else {
      std::memcpy(meta + row * 4, scales.d + row, 4);
    }
  }
  pack_k_codes(encoding, codes, stride, group);
}

bool quantise_k_panel(const WeightFormat& format, const float* importance, const float* rows,
                      int64_t ld, int64_t row_count, int64_t cols, std::byte* panel) noexcept {
  const KLayout layout = k_layout(format.encoding);
  alignas(64) float block[kMostKColumns * kRows];
  float weights[kMostKColumns];
  uint8_t codes[kRows * kMostKColumns];
  for (int64_t begin = 0; begin < cols; begin += layout.columns, panel += layout.bytes()) {
    const int64_t count = std::min<int64_t>(layout.columns, cols - begin);
    std::fill_n(block, layout.columns * kRows, 0.0f);
    std::fill_n(weights, layout.columns, 0.0f);
    float check = 0;
    for (int64_t row = 0; row < row_count; ++row)
      for (int64_t i = 0; i < count; ++i) {
        const float value = rows[row * ld + begin + i];
        block[i * kRows + row] = value;
        check += value * 0.0f;  // infinity and NaN times 0 are NaN
      }
    if (check != 0) return false;
    for (int64_t i = 0; i < count && importance; ++i) weights[i] = importance[begin + i];
    KScalesOf16 scales;
    if (!choose_k_scales(format.encoding, block, importance ? weights : nullptr, scales))
      return false;
    choose_k_codes(format.encoding, block, scales, codes, layout.columns);
    pack_k_group(format.encoding, scales, codes, layout.columns, panel);
  }
  return true;
}

}  // namespace sluice::kernels
