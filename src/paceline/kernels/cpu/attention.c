/* Attention over a packed micro-batch, forward and backward, with the rotation of queries and keys in it.

   A sequence is a prompt, or a completion that also sees all of its prompt. Work is cut into units of one sequence and
   one key-value head: its keys and values are laid out once for the vector units, then its queries, those of all heads
   that share the key-value head, come in tiles of ROWS. Everything inside is float32.

   A token sees the last `window` keys up to its own. The table gives a completion the end of its prompt that its first
   token sees, so that key i of a sequence lies right before key i + 1, and one lower bound per row is enough.

   A prompt's keys and values collect gradients from each of its completions: each leaves its share in `shares`, and a
   second pass adds them up in the order of the table, so that the sum does not depend on the number of threads. */
#include <math.h>
#include <omp.h>

#include "blocks.h"

#define ROWS 24
#define PANEL 64 /* keys whose scores are computed together: a multiple of all vectors' widths */
#define WIDEST 512

typedef struct {
  int64_t start, length;               /* of its own tokens in the packed batch */
  int64_t prompt_start, prompt_length; /* of its prompt's tokens that it sees too; 0 tokens for a prompt */
  int64_t share;                       /* where its share of its prompt's gradients begins, in tokens */
} sequence;

typedef struct {
  int64_t heads, kv_heads, width; /* `width` per head */
  int kind;                       /* storage type of queries, keys, values, outputs and their gradients */
  float scale;
  int64_t window;               /* keys that a token sees, its own among them: no more than all of them */
  float cap;                    /* scores are cap * tanh(score / cap); 0: they are as they are */
  const float *cosines, *sines; /* [M, width], or null: queries and keys come rotated */
} shape;

HOT int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HOT int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
HOT int64_t padded_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

HOT void read_row(float *to, const void *from, int64_t at, int64_t width, int kind) {
  for (int64_t i = 0; i < width; i += WIDTH) store_f32(to + i, load_any(from, at + i, kind));
}

HOT void write_row(void *to, int64_t at, const float *from, int64_t width, int kind) {
  for (int64_t i = 0; i < width; i += WIDTH) store_any(to, at + i, load_f32(from + i), kind);
}

/* Both halves of a head turned by the token's angles; `sign` -1 turns back, which is also the gradient. */
HOT void rotate(float *row, const shape *s, int64_t token, float sign) {
  if (!s->cosines) return;
  const int64_t half = s->width / 2;
  const float *cosines = s->cosines + token * s->width, *sines = s->sines + token * s->width;
  for (int64_t i = 0; i < half; i++) {
    const float low = row[i], high = row[i + half];
    const float from_high = sign > 0 ? -sines[i] : sines[i + half];
    const float from_low = sign > 0 ? sines[i + half] : -sines[i];
    row[i] = low * cosines[i] + high * from_high;
    row[i + half] = high * cosines[i + half] + low * from_low;
  }
}

HOT int64_t token_of_key(const sequence *q, int64_t key) {
  return key < q->prompt_length ? q->prompt_start + key : q->start + key - q->prompt_length;
}

/* Keys or values of one head to rows [keys][width], to panels [keys / PANEL][width][PANEL], or both. */
static void lay_out(const sequence *q, const shape *s, const void *from, int64_t head, int turned, float *rows,
                    float *panels) {
  const int64_t keys = q->prompt_length + q->length, width = s->width;
  float group[WIDTH * WIDEST];
  for (int64_t first = 0; first < padded_to(keys, PANEL); first += WIDTH) {
    const int64_t real = smaller(WIDTH, keys - first);
    for (int64_t i = 0; i < WIDTH; i++) {
      float *row = group + i * width;
      if (i < real) {
        const int64_t token = token_of_key(q, first + i);
        read_row(row, from, (token * s->kv_heads + head) * width, width, s->kind);
        if (turned) rotate(row, s, token, 1);
      } else {
        memset(row, 0, width * sizeof(float));
      }
    }
    if (rows) memcpy(rows + first * width, group, WIDTH * width * sizeof(float));
    if (!panels) continue;
    float *panel = panels + first / PANEL * PANEL * width + first % PANEL;
    for (int64_t i = 0; i < width; i++) {
      vfloat column;
      for (int lane = 0; lane < WIDTH; lane++) column[lane] = group[lane * width + i];
      store_f32(panel + i * PANEL, column);
    }
  }
}

/* Row r of a unit is token r / shared of the sequence, under query head r % shared of the key-value head. */
HOT int64_t place(const sequence *q, const shape *s, int64_t kv_head, int64_t row) {
  const int64_t shared = s->heads / s->kv_heads;
  return (q->start + row / shared) * s->heads + kv_head * shared + row % shared;
}

HOT int64_t visible(const sequence *q, const shape *s, int64_t row) {
  return q->prompt_length + row / (s->heads / s->kv_heads) + 1;
}

/* Keys before the row's window. */
HOT int64_t passed(const sequence *q, const shape *s, int64_t row) { return larger(0, visible(q, s, row) - s->window); }

static void read_queries(float *to, const void *from, const sequence *q, const shape *s, int64_t kv_head, int64_t first,
                         int64_t rows) {
  for (int64_t r = 0; r < rows; r++) {
    const int64_t at = place(q, s, kv_head, first + r);
    float *row = to + r * s->width;
    read_row(row, from, at * s->width, s->width, s->kind);
    rotate(row, s, at / s->heads, 1);
    for (int64_t i = 0; i < s->width; i += WIDTH) store_f32(row + i, load_f32(row + i) * s->scale);
  }
}

HOT vfloat only_below(vfloat v, int64_t limit, float other) {
  vint lane;
  for (int i = 0; i < WIDTH; i++) lane[i] = i;
  const vint real = lane < (int32_t)smaller(limit, WIDTH);
  return (vfloat)(((vint)v & real) | ((vint)splat(other) & ~real));
}

/* Scores to exp(score - largest), zero before `start` and from `limit` to `width`; gives their sum and the largest. */
static float soften(float *scores, int64_t start, int64_t limit, int64_t width, float cap, float *top) {
  vfloat most = splat(-INFINITY), total = splat(0);
  if (cap)
    for (int64_t i = 0; i < width; i += WIDTH) store_f32(scores + i, cap * tanh_v(load_f32(scores + i) / cap));
  for (int64_t i = 0; i < start; i++) scores[i] = -INFINITY;
  for (int64_t i = 0; i < limit; i += WIDTH) most = max_v(most, only_below(load_f32(scores + i), limit - i, -INFINITY));
  *top = largest(most);
  for (int64_t i = 0; i < width; i += WIDTH) {
    const vfloat p = limit <= i ? splat(0) : only_below(exp_v(load_f32(scores + i) - *top), limit - i, 0);
    store_f32(scores + i, p);
    total += p;
  }
  return sum(total);
}

static void forward_unit(const sequence *q, const shape *s, int64_t kv_head, const void *query, const void *key,
                         const void *value, void *output, float *normalisers, float *scratch) {
  const int64_t width = s->width, padded = padded_to(q->prompt_length + q->length, PANEL);
  const int64_t total = q->length * (s->heads / s->kv_heads);
  float *keys = scratch, *values = keys + padded * width, *scores = values + padded * width;
  float *queries = scores + ROWS * padded, *mixed = queries + ROWS * width;
  lay_out(q, s, key, kv_head, 1, 0, keys);
  lay_out(q, s, value, kv_head, 0, values, 0);
  for (int64_t first = 0; first < total; first += ROWS) {
    const int64_t rows = smaller(ROWS, total - first);
    const int64_t seen = padded_to(visible(q, s, first + rows - 1), WIDTH);
    const int64_t low = passed(q, s, first) / PANEL * PANEL; /* no row of the tile sees the panels before it */
    read_queries(queries, query, q, s, kv_head, first, rows);
    for (int64_t at = low; at < seen; at += PANEL)
      multiply(rows, smaller(PANEL, seen - at), queries, width, 1, keys + at * width, PANEL, scores + at, padded, width,
               0);
    float sums[ROWS];
    for (int64_t r = 0; r < rows; r++) {
      float top;
      sums[r] = soften(scores + r * padded + low, passed(q, s, first + r) - low, visible(q, s, first + r) - low,
                       seen - low, s->cap, &top);
      normalisers[place(q, s, kv_head, first + r)] = top + logf(sums[r]);
    }
    for (int64_t at = low; at < seen; at += PANEL)
      multiply(rows, width, scores + at, padded, 1, values + at * width, width, mixed, width, smaller(PANEL, seen - at),
               at > low);
    for (int64_t r = 0; r < rows; r++) {
      float *row = mixed + r * width;
      for (int64_t i = 0; i < width; i += WIDTH) store_f32(row + i, load_f32(row + i) / sums[r]);
      write_row(output, place(q, s, kv_head, first + r) * width, row, width, s->kind);
    }
  }
}

/* Scores to probabilities P, and their gradients dP to those of the scores, P * (dP - <dP>). */
HOT void grad_scores(float *scores, float *grads, int64_t start, int64_t limit, int64_t columns, float normaliser,
                     float mean) {
  for (int64_t i = 0; i < start; i++) scores[i] = -INFINITY;
  for (int64_t i = 0; i < columns; i += WIDTH) {
    const vfloat p =
        limit <= i ? splat(0) : only_below(exp_v(load_f32(scores + i) - normaliser), limit - i, 0);
    store_f32(scores + i, p);
    store_f32(grads + i, p * (load_f32(grads + i) - mean));
  }
}

/* The same where scores are capped: t = tanh(score / cap), whose slope is 1 - t^2. */
static void grad_capped(float *scores, float *grads, int64_t start, int64_t limit, int64_t columns, float normaliser,
                        float mean, float cap) {
  float slopes[PANEL];
  for (int64_t i = 0; i < columns; i += WIDTH) {
    const vfloat t = tanh_v(load_f32(scores + i) / cap);
    store_f32(scores + i, cap * t);
    store_f32(slopes + i, 1.0f - t * t);
  }
  grad_scores(scores, grads, start, limit, columns, normaliser, mean);
  for (int64_t i = 0; i < columns; i += WIDTH) store_f32(grads + i, load_f32(grads + i) * load_f32(slopes + i));
}

typedef struct {
  const void *query, *key, *value, *output, *grad_output;
  const float *normalisers;
  void *grad_query, *grad_key, *grad_value;
  float *shares; /* [shares, kv_heads, 2, width]: gradients of rotated keys, of values */
} gradients;

static void backward_unit(const sequence *q, const shape *s, int64_t kv_head, const gradients *g, float *scratch) {
  const int64_t width = s->width, keys = q->prompt_length + q->length, padded = padded_to(keys, PANEL);
  const int64_t total = q->length * (s->heads / s->kv_heads), area = padded * width;
  float *key_panels = scratch, *value_panels = key_panels + area, *key_rows = value_panels + area;
  float *grad_keys = key_rows + area, *grad_values = grad_keys + area;
  float *queries = grad_values + area, *outside = queries + ROWS * width, *grad_queries = outside + ROWS * width;
  float *scores = grad_queries + ROWS * width, *grads = scores + ROWS * PANEL;
  lay_out(q, s, g->key, kv_head, 1, key_rows, key_panels);
  lay_out(q, s, g->value, kv_head, 0, 0, value_panels);
  memset(grad_keys, 0, 2 * area * sizeof(float));
  for (int64_t first = 0; first < total; first += ROWS) {
    const int64_t rows = smaller(ROWS, total - first);
    const int64_t seen = padded_to(visible(q, s, first + rows - 1), WIDTH);
    const int64_t low = passed(q, s, first) / PANEL * PANEL;
    float means[ROWS];
    read_queries(queries, g->query, q, s, kv_head, first, rows);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t at = place(q, s, kv_head, first + r) * width;
      vfloat products = splat(0);
      read_row(grad_queries, g->output, at, width, s->kind);
      read_row(outside + r * width, g->grad_output, at, width, s->kind);
      for (int64_t i = 0; i < width; i += WIDTH)
        products += load_f32(outside + r * width + i) * load_f32(grad_queries + i);
      means[r] = sum(products);
    }
    for (int64_t at = low; at < seen; at += PANEL) {
      const int64_t columns = smaller(PANEL, seen - at);
      multiply(rows, columns, queries, width, 1, key_panels + at * width, PANEL, scores, PANEL, width, 0);
      multiply(rows, columns, outside, width, 1, value_panels + at * width, PANEL, grads, PANEL, width, 0);
      for (int64_t r = 0; r < rows; r++) {
        float *of_scores = scores + r * PANEL, *of_grads = grads + r * PANEL;
        const float normaliser = g->normalisers[place(q, s, kv_head, first + r)];
        const int64_t start = smaller(columns, passed(q, s, first + r) - at), limit = visible(q, s, first + r) - at;
        if (s->cap)
          grad_capped(of_scores, of_grads, start, limit, columns, normaliser, means[r], s->cap);
        else
          grad_scores(of_scores, of_grads, start, limit, columns, normaliser, means[r]);
      }
      multiply(rows, width, grads, PANEL, 1, key_rows + at * width, width, grad_queries, width, columns, at > low);
      multiply(columns, width, scores, 1, PANEL, outside, width, grad_values + at * width, width, rows, 1);
      multiply(columns, width, grads, 1, PANEL, queries, width, grad_keys + at * width, width, rows, 1);
    }
    for (int64_t r = 0; r < rows; r++) {
      const int64_t at = place(q, s, kv_head, first + r);
      float *row = grad_queries + r * width;
      for (int64_t i = 0; i < width; i += WIDTH) store_f32(row + i, load_f32(row + i) * s->scale);
      rotate(row, s, at / s->heads, -1);
      write_row(g->grad_query, at * width, row, width, s->kind);
    }
  }
  const int64_t shared = q->prompt_length ? q->prompt_length : q->length; /* a prompt adds its completions' shares */
  for (int64_t i = 0; i < shared; i++) {
    float *share = g->shares + ((q->share + i) * s->kv_heads + kv_head) * 2 * width;
    memcpy(share, grad_keys + i * width, width * sizeof(float));
    memcpy(share + width, grad_values + i * width, width * sizeof(float));
  }
  for (int64_t i = shared; i < keys; i++) {
    const int64_t token = token_of_key(q, i), at = (token * s->kv_heads + kv_head) * width;
    rotate(grad_keys + i * width, s, token, -1);
    write_row(g->grad_key, at, grad_keys + i * width, width, s->kind);
    write_row(g->grad_value, at, grad_values + i * width, width, s->kind);
  }
}

/* The gradients of a prompt's keys and values: its own share and then its completions', in the order of the table. */
static void add_shares(const sequence *table, int64_t sequences, const sequence *prompt, const shape *s,
                       const gradients *g, int64_t kv_head) {
  const int64_t width = s->width;
  for (int64_t i = 0; i < prompt->length; i++) {
    float total[2 * WIDEST];
    memcpy(total, g->shares + ((prompt->share + i) * s->kv_heads + kv_head) * 2 * width, 2 * width * sizeof(float));
    for (const sequence *q = table; q < table + sequences; q++) {
      const int64_t seen = i - prompt->length + q->prompt_length; /* index of the token among those that q sees */
      if (q->prompt_start + q->prompt_length != prompt->start + prompt->length || seen < 0) continue;
      const float *share = g->shares + ((q->share + seen) * s->kv_heads + kv_head) * 2 * width;
      for (int64_t j = 0; j < 2 * width; j += WIDTH) store_f32(total + j, load_f32(total + j) + load_f32(share + j));
    }
    const int64_t token = prompt->start + i, at = (token * s->kv_heads + kv_head) * width;
    rotate(total, s, token, -1);
    write_row(g->grad_key, at, total, width, s->kind);
    write_row(g->grad_value, at, total + width, width, s->kind);
  }
}

/* Query and output [M, heads, width], key and value [M, kv_heads, width], normalisers [M, heads]: the logarithm of each
   query's sum of exponentials. `scratch` has `scratch_each` floats for each of `threads`. */
void packed_attention(const int64_t *table, int64_t sequences, int64_t heads, int64_t kv_heads, int64_t width,
                      int64_t kind, float scale, int64_t window, float cap, const float *cosines, const float *sines,
                      const void *query, const void *key, const void *value, void *output, float *normalisers, float *scratch,
                      int64_t scratch_each, int64_t threads) {
  const shape s = {heads, kv_heads, width, (int)kind, scale, window, cap, cosines, sines};
  const sequence *all = (const sequence *)table;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t unit = 0; unit < sequences * kv_heads; unit++)
    forward_unit(all + unit / kv_heads, &s, unit % kv_heads, query, key, value, output, normalisers,
                 scratch + omp_get_thread_num() * scratch_each);
}

/* Gradients by query, key and value, each written whole. `shares` has 2 * width floats for each key-value head and each
   token that a sequence has or sees of a prompt. */
void packed_attention_backward(const int64_t *table, int64_t sequences, int64_t heads, int64_t kv_heads, int64_t width,
                               int64_t kind, float scale, int64_t window, float cap, const float *cosines,
                               const float *sines, const void *query, const void *key, const void *value, const void *output, const void *grad_output,
                               const float *normalisers, void *grad_query, void *grad_key, void *grad_value,
                               float *shares, float *scratch, int64_t scratch_each, int64_t threads) {
  const shape s = {heads, kv_heads, width, (int)kind, scale, window, cap, cosines, sines};
  const gradients g = {query,      key,        value,    output,    grad_output,
                       normalisers, grad_query, grad_key, grad_value, shares};
  const sequence *all = (const sequence *)table;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < sequences * kv_heads; unit++)
      backward_unit(all + unit / kv_heads, &s, unit % kv_heads, &g, scratch + omp_get_thread_num() * scratch_each);
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < sequences * kv_heads; unit++)
      if (!all[unit / kv_heads].prompt_length)
        add_shares(all, sequences, all + unit / kv_heads, &s, &g, unit % kv_heads);
  }
}
