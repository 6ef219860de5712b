/* One decoding step of layers that carry a state of a fixed size: rows are completions, each with one new token.

   What goes in and out of matrix products, and a convolution's last inputs, have the storage type `type`; states and
   all sums are float32. A task is a row and a head (or a block of channels), so that no sum depends on the batch. */
#include <math.h>

#include "vectors.h"

/* Elements below which a loop is over before a second thread has begun. */
#define WORTH_THREADS (1 << 14)
/* Channels of a task of a convolution, a multiple of every WIDTH. */
#define CHANNELS 256

HOT vfloat load_some(const void *p, int64_t i, int64_t count, int type) {
  return count >= WIDTH ? load_any(p, i, type) : load_rest(p, i, count, 0, type);
}

HOT void store_some(void *p, int64_t i, int64_t count, vfloat v, int type) {
  if (count >= WIDTH)
    store_any(p, i, v, type);
  else
    store_rest(p, i, count, v, type);
}

HOT vfloat silu_v(vfloat x) { return x / (1.0f + exp_v(-x)); }

HOT float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* Channels of a convolution of a row, and what it reads: `taps` weights [taps, width], the own input's last; `bias` may
   be null; `last` [taps - 1, width] are the inputs before this one. */
typedef struct {
  const float *weight, *bias;
  int64_t taps, width;
} convolution;

/* The sum over `count` channels from the i-th on; the new input x moves into `last`. */
HOT vfloat convolved(const convolution *c, vfloat x, void *last, int64_t row, int64_t i, int64_t count, int type) {
  int64_t before = c->taps - 1, at = row * before * c->width + i;
  vfloat total = x * load_some(c->weight, before * c->width + i, count, FLOAT32);
  for (int64_t tap = 0; tap < before; tap++) {
    vfloat v = load_some(last, at + tap * c->width, count, type);
    total += v * load_some(c->weight, tap * c->width + i, count, FLOAT32);
    if (tap) store_some(last, at + (tap - 1) * c->width, count, v, type);
  }
  if (before) store_some(last, at + (before - 1) * c->width, count, x, type);
  return c->bias ? total + load_some(c->bias, i, count, FLOAT32) : total;
}

/* silu of the convolution of one block of a row's channels, whose inputs begin at `from`, in float32. */
HOT void convolve_block(const convolution *c, const void *inputs, int64_t from, void *last, int64_t row, int64_t first,
                        float *out, int type) {
  int64_t end = first + CHANNELS < c->width ? first + CHANNELS : c->width;
  for (int64_t i = first; i < end; i += WIDTH) {
    vfloat x = load_some(inputs, from + i, end - i, type);
    store_some(out, row * c->width + i, end - i, silu_v(convolved(c, x, last, row, i, end - i, type)), FLOAT32);
  }
}

HOT float squares(const float *x, int64_t width) {
  vfloat total = splat(0);
  for (int64_t i = 0; i < width; i += WIDTH) {
    vfloat v = load_some(x, i, width - i, FLOAT32);
    total += v * v;
  }
  return sum(total);
}

/* `vectors` vectors of a head's values, of which the last may be cut at `count` values. Twice over the state
   [keys, width]: what it holds at the key, then the update and what it holds at the query. */
HOT void delta_values(float *state, int64_t keys, int64_t width, const float *query, const float *key, float to_query,
                      float to_key, float decay, float beta, float *values, int64_t count, const int vectors) {
  vfloat known[4], off[4], out[4];
  for (int j = 0; j < vectors; j++) known[j] = out[j] = splat(0);
  for (int64_t k = 0; k < keys; k++)
    for (int j = 0; j < vectors; j++)
      known[j] += load_some(state, k * width + j * WIDTH, count - j * WIDTH, FLOAT32) * key[k];
  for (int j = 0; j < vectors; j++) {
    vfloat value = load_some(values, j * WIDTH, count - j * WIDTH, FLOAT32);
    off[j] = (value - known[j] * (decay * to_key)) * (beta * to_key);
  }
  for (int64_t k = 0; k < keys; k++)
    for (int j = 0; j < vectors; j++) {
      int64_t at = k * width + j * WIDTH, rest = count - j * WIDTH;
      vfloat next = load_some(state, at, rest, FLOAT32) * decay + off[j] * key[k];
      store_some(state, at, rest, next, FLOAT32);
      out[j] += next * query[k];
    }
  for (int j = 0; j < vectors; j++)
    store_some(values, j * WIDTH, count - j * WIDTH, out[j] * to_query, FLOAT32);
}

typedef struct {
  int64_t key_heads, value_heads, keys, values;
} delta_heads;

/* One value head of a row: the rule, then the norm of its output, gated. `mixed` holds the row's convolved queries, keys
   and values; outputs take the values' place. */
HOT void delta_head(const delta_heads *h, const void *projected, int64_t row, int64_t head, float *mixed, float *state,
                    const float *rates, const float *dt_bias, const float *scale, void *out, float eps,
                    float beta_scale, int type) {
  int64_t keys = h->keys, width = h->values, of_keys = h->key_heads * keys, of_values = h->value_heads * width;
  int64_t group = head / (h->value_heads / h->key_heads);
  int64_t from = row * (2 * of_keys + 2 * of_values + 2 * h->value_heads) + 2 * of_keys + of_values;
  const float *query = mixed + group * keys, *key = query + of_keys;
  float *values = mixed + 2 * of_keys + head * width;
  float b = load_one(projected, from + of_values + head, type);
  float a = load_one(projected, from + of_values + h->value_heads + head, type);
  float decay = expf(rates[head] * softplus(a + dt_bias[head])), beta = beta_scale / (1.0f + expf(-b));
  float to_query = 1.0f / sqrtf((squares(query, keys) + 1e-6f) * (float)keys);
  float to_key = 1.0f / sqrtf(squares(key, keys) + 1e-6f);
  int64_t i = 0;
  for (; i + 4 * WIDTH <= width; i += 4 * WIDTH)
    delta_values(state + i, keys, width, query, key, to_query, to_key, decay, beta, values + i, 4 * WIDTH, 4);
  for (; i + WIDTH <= width; i += WIDTH)
    delta_values(state + i, keys, width, query, key, to_query, to_key, decay, beta, values + i, WIDTH, 1);
  if (i < width)
    delta_values(state + i, keys, width, query, key, to_query, to_key, decay, beta, values + i, width - i, 1);
  float factor = 1.0f / sqrtf(squares(values, width) / (float)width + eps);
  for (i = 0; i < width; i += WIDTH) {
    vfloat z = load_some(projected, from + head * width + i, width - i, type);
    vfloat normed = load_some(values, i, width - i, FLOAT32) * factor * load_some(scale, i, width - i, FLOAT32);
    store_some(out, (row * h->value_heads + head) * width + i, width - i, normed * silu_v(z), type);
  }
}

HOT void delta_rows(const delta_heads *h, const convolution *c, const void *projected, void *last, float *states,
                    const float *rates, const float *dt_bias, const float *scale, float *mixed, void *out,
                    int64_t rows, float eps, float beta_scale, int type) {
  int64_t stride = c->width + h->value_heads * (h->values + 2), size = h->keys * h->values;
  int64_t blocks = (c->width + CHANNELS - 1) / CHANNELS;
#pragma omp parallel if (rows * h->value_heads * size > WORTH_THREADS)
  {
#pragma omp for
    for (int64_t task = 0; task < rows * blocks; task++) {
      int64_t row = task / blocks;
      convolve_block(c, projected, row * stride, last, row, task % blocks * CHANNELS, mixed, type);
    }
#pragma omp for
    for (int64_t task = 0; task < rows * h->value_heads; task++) {
      int64_t row = task / h->value_heads, head = task % h->value_heads;
      delta_head(h, projected, row, head, mixed + row * c->width, states + task * size, rates, dt_bias, scale, out, eps,
                 beta_scale, type);
    }
  }
}

/* Gated delta rule: projected [rows, queries | keys | values | gates | beta | decay], states [rows, value heads, keys,
   values], out [rows, value heads * values]; `mixed` is room for the convolved [rows, width]. */
void delta_step(const void *projected, void *last, float *states, const float *weight, const float *bias,
                const float *rates, const float *dt_bias, const float *scale, float *mixed, void *out, int64_t rows,
                int64_t key_heads, int64_t value_heads, int64_t keys, int64_t values, int64_t taps, double eps,
                double beta_scale, int64_t type) {
  const delta_heads h = {key_heads, value_heads, keys, values};
  const convolution c = {weight, bias, taps, 2 * key_heads * keys + value_heads * values};
  if (type == FLOAT32)
    delta_rows(&h, &c, projected, last, states, rates, dt_bias, scale, mixed, out, rows, (float)eps, (float)beta_scale,
               FLOAT32);
  else
    delta_rows(&h, &c, projected, last, states, rates, dt_bias, scale, mixed, out, rows, (float)eps, (float)beta_scale,
               BFLOAT16);
}

typedef struct {
  int64_t heads, groups, width, size;
} ssd_heads;

/* One head of a row: state [width, size]. Outputs take the inputs' place in `mixed`, the row's convolved channels. */
HOT void ssd_head(const ssd_heads *h, float dt, int64_t head, float *mixed, float *state, float rate, float skip) {
  int64_t inner = h->heads * h->width, group = head / (h->heads / h->groups);
  float *x = mixed + head * h->width, decay = expf(dt * rate);
  const float *b = mixed + inner + group * h->size, *c = b + h->groups * h->size;
  for (int64_t p = 0; p < h->width; p++) {
    vfloat total = splat(0);
    float *of_input = state + p * h->size, added = dt * x[p];
    for (int64_t i = 0; i < h->size; i += WIDTH) {
      int64_t rest = h->size - i;
      vfloat next = load_some(of_input, i, rest, FLOAT32) * decay + load_some(b, i, rest, FLOAT32) * added;
      store_some(of_input, i, rest, next, FLOAT32);
      total += next * load_some(c, i, rest, FLOAT32);
    }
    x[p] = sum(total) + skip * x[p];
  }
}

/* One group of a row: outputs times silu of their gates, then their norm. */
HOT void gated_norm(const void *projected, int64_t from, float *mixed, const float *scale, void *out, int64_t to,
                    int64_t width, float eps, int type) {
  for (int64_t i = 0; i < width; i += WIDTH) {
    vfloat gate = load_some(projected, from + i, width - i, type);
    store_some(mixed, i, width - i, load_some(mixed, i, width - i, FLOAT32) * silu_v(gate), FLOAT32);
  }
  float factor = 1.0f / sqrtf(squares(mixed, width) / (float)width + eps);
  for (int64_t i = 0; i < width; i += WIDTH) {
    vfloat normed = load_some(mixed, i, width - i, FLOAT32) * factor * load_some(scale, i, width - i, FLOAT32);
    store_some(out, to + i, width - i, normed, type);
  }
}

HOT void ssd_rows(const ssd_heads *h, const convolution *c, const void *projected, void *last, float *states,
                  const float *rates, const float *dt_bias, const float *skip, const float *scale, float *mixed,
                  void *out, int64_t rows, float eps, float least, float most, int type) {
  int64_t inner = h->heads * h->width, stride = inner + c->width + h->heads, of_group = inner / h->groups;
  int64_t blocks = (c->width + CHANNELS - 1) / CHANNELS;
#pragma omp parallel if (rows * inner * h->size > WORTH_THREADS)
  {
#pragma omp for
    for (int64_t task = 0; task < rows * blocks; task++) {
      int64_t row = task / blocks;
      convolve_block(c, projected, row * stride + inner, last, row, task % blocks * CHANNELS, mixed, type);
    }
#pragma omp for
    for (int64_t task = 0; task < rows * h->heads; task++) {
      int64_t row = task / h->heads, head = task % h->heads;
      float dt = softplus(load_one(projected, row * stride + inner + c->width + head, type) + dt_bias[head]);
      dt = dt < least ? least : dt > most ? most : dt;
      ssd_head(h, dt, head, mixed + row * c->width, states + task * h->width * h->size, rates[head], skip[head]);
    }
#pragma omp for
    for (int64_t task = 0; task < rows * h->groups; task++) {
      int64_t row = task / h->groups, first = task % h->groups * of_group;
      gated_norm(projected, row * stride + first, mixed + row * c->width + first, scale + first, out,
                 row * inner + first, of_group, eps, type);
    }
  }
}

/* Mamba-2: projected [rows, gates | inputs, B, C | time steps], states [rows, heads, width, size], out [rows, heads *
   width]; time steps lie between `least` and `most`; `mixed` is room for the convolved inputs, B and C. */
void ssd_step(const void *projected, void *last, float *states, const float *weight, const float *bias,
              const float *rates, const float *dt_bias, const float *skip, const float *scale, float *mixed, void *out,
              int64_t rows, int64_t heads, int64_t groups, int64_t width, int64_t size, int64_t taps, double eps,
              double least, double most, int64_t type) {
  const ssd_heads h = {heads, groups, width, size};
  const convolution c = {weight, bias, taps, heads * width + 2 * groups * size};
  if (type == FLOAT32)
    ssd_rows(&h, &c, projected, last, states, rates, dt_bias, skip, scale, mixed, out, rows, (float)eps, (float)least,
             (float)most, FLOAT32);
  else
    ssd_rows(&h, &c, projected, last, states, rates, dt_bias, skip, scale, mixed, out, rows, (float)eps, (float)least,
             (float)most, BFLOAT16);
}

HOT void convolution_block(const convolution *c, const void *projected, int64_t row, int64_t first, void *last,
                           void *out, int type) {
  int64_t from = row * 3 * c->width, end = first + CHANNELS < c->width ? first + CHANNELS : c->width;
  for (int64_t i = first; i < end; i += WIDTH) {
    int64_t rest = end - i;
    vfloat x = load_some(projected, from + i, rest, type) * load_some(projected, from + 2 * c->width + i, rest, type);
    if (type == BFLOAT16) { /* as a tensor of it would be */
      uint16_t half[WIDTH];
      store_bf16(half, x);
      x = load_bf16(half);
    }
    vfloat gate = load_some(projected, from + c->width + i, rest, type);
    store_some(out, row * c->width + i, rest, gate * convolved(c, x, last, row, i, rest, type), type);
  }
}

/* Gated short convolution: projected [rows, entry gate | exit gate | inputs] of `width` channels each. */
void convolution_step(const void *projected, void *last, const float *weight, const float *bias, void *out,
                      int64_t rows, int64_t width, int64_t taps, int64_t type) {
  const convolution c = {weight, bias, taps, width};
  int64_t blocks = (width + CHANNELS - 1) / CHANNELS;
#pragma omp parallel for if (rows * width > WORTH_THREADS)
  for (int64_t task = 0; task < rows * blocks; task++) {
    int64_t row = task / blocks, first = task % blocks * CHANNELS;
    if (type == FLOAT32)
      convolution_block(&c, projected, row, first, last, out, FLOAT32);
    else
      convolution_block(&c, projected, row, first, last, out, BFLOAT16);
  }
}
