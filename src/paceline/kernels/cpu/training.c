/* Forward and backward passes of what lies between the matrix products of a decoder layer. Rows are independent. */
#include "vectors.h"

#define PARALLEL (1 << 14) /* elements from which on a second thread earns what starting it costs */

/* total = x + addend, normed = total * inverse * scale with inverse = 1 / rms(total), all [rows, width].

   x, scale and total are float32, addend is of `addend_kind`, normed of `kind`. Without an addend (null) total is x
   itself and nothing is written there. */
void add_rms_norm(const float *x, const void *addend, int64_t addend_kind, const float *scale, float *total,
                  void *normed, int64_t kind, float *inverse, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for if (rows * width > PARALLEL)
  for (int64_t row = 0; row < rows; row++) {
    const int64_t first = row * width;
    const float *sums = addend ? total + first : x + first;
    vfloat squares = splat(0);
    for (int64_t i = 0; i < width; i += WIDTH) {
      vfloat value = load_f32(x + first + i);
      if (addend) {
        value += load_any(addend, first + i, addend_kind);
        store_f32(total + first + i, value);
      }
      squares += value * value;
    }
    const float factor = 1.0f / __builtin_sqrtf(sum(squares) / width + eps);
    inverse[row] = factor;
    for (int64_t i = 0; i < width; i += WIDTH)
      store_any(normed, first + i, load_f32(sums + i) * factor * load_f32(scale + i), kind);
  }
}

/* The gradient by total: grad_total (null: none) plus what comes through the norm; also as addend's, where that has
   another storage type (null: it has not). grad_scale (null: not asked for) holds a sum per `chunk` rows,
   [chunks, width]: the caller adds them up, and the order of all sums is the same for any number of threads. */
void add_rms_norm_backward(const float *total, const float *scale, const float *inverse, const void *grad_normed,
                           int64_t kind, const float *grad_total, float *grad_x, uint16_t *grad_addend,
                           float *grad_scale, int64_t chunk, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows * width > PARALLEL)
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    float *part = grad_scale ? grad_scale + begin / chunk * width : 0;
    if (part) memset(part, 0, width * sizeof(float));
    for (int64_t row = begin; row < rows && row < begin + chunk; row++) {
      const int64_t first = row * width;
      const float factor = inverse[row];
      vfloat products = splat(0);
      for (int64_t i = 0; i < width; i += WIDTH) {
        const vfloat value = load_f32(total + first + i), grad = load_any(grad_normed, first + i, kind);
        products += value * grad * load_f32(scale + i);
        if (part) store_f32(part + i, load_f32(part + i) + grad * value * factor);
      }
      const float along = sum(products) / width * factor * factor;
      for (int64_t i = 0; i < width; i += WIDTH) {
        const vfloat grad = load_any(grad_normed, first + i, kind) * load_f32(scale + i);
        vfloat by_x = factor * (grad - load_f32(total + first + i) * along);
        if (grad_total) by_x += load_f32(grad_total + first + i);
        store_f32(grad_x + first + i, by_x);
        if (grad_addend) store_bf16(grad_addend + first + i, by_x);
      }
    }
  }
}

/* product = gate / (1 + e^-gate) * up, all of one storage type. */
void gated_product(const void *gate, const void *up, void *product, int64_t kind, int64_t count) {
#pragma omp parallel for if (count > PARALLEL)
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vfloat g = load_any(gate, i, kind);
    store_any(product, i, g / (1.0f + exp_v(-g)) * load_any(up, i, kind), kind);
  }
}

void gated_product_backward(const void *gate, const void *up, const void *grad, void *grad_gate, void *grad_up,
                            int64_t kind, int64_t count) {
#pragma omp parallel for if (count > PARALLEL)
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vfloat g = load_any(gate, i, kind), by_product = load_any(grad, i, kind);
    const vfloat share = 1.0f / (1.0f + exp_v(-g));
    store_any(grad_up, i, by_product * g * share, kind);
    store_any(grad_gate, i, by_product * load_any(up, i, kind) * share * (1.0f + g * (1.0f - share)), kind);
  }
}
