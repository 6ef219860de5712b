/* One decoding step of what lies between the matrix products: rows are completions, each with one new token.

   The residual stream is float32; what goes in and out of matrix products has the storage type `type`. */
#include <math.h>
#include <stdlib.h>

#include "vectors.h"

/* Elements below which a loop is over before a second thread has begun. */
#define WORTH_THREADS (1 << 14)

/* Lanes of a vector, for the layout of keys. */
void vector_width(int64_t *width) { *width = WIDTH; }

/* residual += update (if there is one); normed = residual / rms(residual) * scale. [rows, width] each. */
HOT void add_norm_row(float *residual, const void *update, const float *scale, void *normed, int64_t from,
                      int64_t width, float eps, int type) {
  float *x = residual + from;
  vfloat squares = splat(0);
  int64_t whole = width / WIDTH * WIDTH, rest = width - whole;
  for (int64_t i = 0; i < whole; i += WIDTH) {
    vfloat v = load_f32(x + i);
    if (update) {
      v += load_any(update, from + i, type);
      store_f32(x + i, v);
    }
    squares += v * v;
  }
  if (rest) {
    vfloat v = load_rest(x, whole, rest, 0, FLOAT32);
    if (update) {
      v += load_rest(update, from + whole, rest, 0, type);
      store_rest(x, whole, rest, v, FLOAT32);
    }
    squares += v * v;
  }
  vfloat factor = splat(1.0f / sqrtf(sum(squares) / (float)width + eps));
  for (int64_t i = 0; i < whole; i += WIDTH)
    store_any(normed, from + i, load_f32(x + i) * factor * load_f32(scale + i), type);
  if (rest) {
    vfloat v = load_rest(x, whole, rest, 0, FLOAT32) * factor * load_rest(scale, whole, rest, 0, FLOAT32);
    store_rest(normed, from + whole, rest, v, type);
  }
}

void add_norm(float *residual, const void *update, const float *scale, void *normed, int64_t rows, int64_t width,
              float eps, int64_t type) {
#pragma omp parallel for if (rows * width > WORTH_THREADS)
  for (int64_t row = 0; row < rows; row++) {
    if (type == FLOAT32)
      add_norm_row(residual, update, scale, normed, row * width, width, eps, FLOAT32);
    else
      add_norm_row(residual, update, scale, normed, row * width, width, eps, BFLOAT16);
  }
}

/* silu(gate) * up, or gelu(gate) * up with GELU's approximation by tanh. */
HOT vfloat gated(vfloat gate, vfloat up, const int gelu) {
  if (!gelu) return gate / (1.0f + exp_v(-gate)) * up;
  return 0.5f * gate * (1.0f + tanh_v(0.79788456f * (gate + 0.044715f * gate * gate * gate))) * up;
}

HOT void gated_row(const void *gate, const void *up, int64_t from, void *out, int64_t to, int64_t width,
                   const int gelu, int type) {
  int64_t i = 0;
  for (; i + WIDTH <= width; i += WIDTH)
    store_any(out, to + i, gated(load_any(gate, from + i, type), load_any(up, from + i, type), gelu), type);
  if (i < width) {
    vfloat v = gated(load_rest(gate, from + i, width - i, 0, type), load_rest(up, from + i, width - i, 0, type), gelu);
    store_rest(out, to + i, width - i, v, type);
  }
}

/* out = silu(gate) * up, or gelu(gate) * up; rows of gate and up lie `stride` elements apart. */
void silu_mul(const void *gate, const void *up, int64_t stride, void *out, int64_t rows, int64_t width, int64_t gelu,
              int64_t type) {
#pragma omp parallel for if (rows * width > WORTH_THREADS)
  for (int64_t row = 0; row < rows; row++) {
    if (type == FLOAT32 && !gelu)
      gated_row(gate, up, row * stride, out, row * width, width, 0, FLOAT32);
    else if (type == FLOAT32)
      gated_row(gate, up, row * stride, out, row * width, width, 1, FLOAT32);
    else if (!gelu)
      gated_row(gate, up, row * stride, out, row * width, width, 0, BFLOAT16);
    else
      gated_row(gate, up, row * stride, out, row * width, width, 1, BFLOAT16);
  }
}

/* Tokens whose probabilities are summed in float32 before double takes over. */
#define BLOCK 256

/* logits * inverse - top: the exponent of a token's share. */
HOT vfloat exponents(const void *logits, int64_t at, int64_t count, float inverse, float top, int type) {
  if (count >= WIDTH) return load_any(logits, at, type) * inverse - top;
  return load_rest(logits, at, count, -INFINITY, type) * inverse - top;
}

HOT void draw_row(const void *logits, int64_t from, int64_t vocabulary, double uniform, double temperature,
                  double *ends, int64_t *token, float *logprob, int type) {
  vfloat highest = splat(-INFINITY);
  for (int64_t i = 0; i < vocabulary; i += WIDTH) {
    int64_t count = vocabulary - i;
    vfloat v = count >= WIDTH ? load_any(logits, from + i, type)
                              : load_rest(logits, from + i, count, -INFINITY, type);
    highest = max_v(v, highest);
  }
  float inverse = temperature == 0 ? 1.0f : (float)(1.0 / temperature);
  float top_logit = largest(highest), top = top_logit * inverse;
  int64_t blocks = (vocabulary + BLOCK - 1) / BLOCK;
  double total = 0;
  for (int64_t block = 0; block < blocks; block++) {
    vfloat mass = splat(0);
    for (int64_t i = block * BLOCK; i < vocabulary && i < (block + 1) * BLOCK; i += WIDTH)
      mass += exp_v(exponents(logits, from + i, vocabulary - i, inverse, top, type));
    total += (double)sum(mass);
    ends[block] = total;
  }
  int64_t chosen = 0;
  if (temperature == 0) {
    while (chosen < vocabulary - 1 && load_one(logits, from + chosen, type) != top_logit) chosen++;
  } else if (total == total) {
    double target = uniform * total;
    int64_t block = 0, inside = 0;
    while (block < blocks - 1 && ends[block] <= target) block++;
    double rest = target - (block ? ends[block - 1] : 0), passed = 0;
    /* The vector that passes the target, then the token in it. Where rounding lets none pass, the last with any
       probability is taken. */
    for (int64_t i = block * BLOCK; i < vocabulary && i < (block + 1) * BLOCK; i += WIDTH) {
      double mass = (double)sum(exp_v(exponents(logits, from + i, vocabulary - i, inverse, top, type)));
      if (mass > 0) inside = i;
      if (passed + mass > rest) break;
      passed += mass;
    }
    vfloat shares = exp_v(exponents(logits, from + inside, vocabulary - inside, inverse, top, type));
    for (int64_t lane = 0; lane < WIDTH && passed <= rest; lane++) {
      passed += (double)shares[lane];
      if (shares[lane] > 0) chosen = inside + lane;
    }
  }
  *token = chosen;
  *logprob = (float)((double)load_one(logits, from + chosen, type) * inverse - top - log(total));
}

/* One token per row of logits [rows, vocabulary] from softmax(logits / temperature), at the place `uniform` of its
   cumulative distribution, never one of probability 0; at temperature 0 the most probable one. Logprobs in nats.
   Logits that are not finite show as a logprob that is not a number. */
void draw(const void *logits, const double *uniform, int64_t *tokens, float *logprobs, int64_t rows,
          int64_t vocabulary, double temperature, int64_t type) {
#pragma omp parallel if (rows * vocabulary > WORTH_THREADS)
  {
    double *ends = malloc(sizeof(double) * (size_t)(vocabulary / BLOCK + 1));
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      int64_t from = row * vocabulary;
      if (type == FLOAT32)
        draw_row(logits, from, vocabulary, uniform[row], temperature, ends, tokens + row, logprobs + row, FLOAT32);
      else
        draw_row(logits, from, vocabulary, uniform[row], temperature, ends, tokens + row, logprobs + row, BFLOAT16);
    }
    free(ends);
  }
}
