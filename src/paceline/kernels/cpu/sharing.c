/* Attention of one new token per row over the row's prompt, which a group shares, and over its own tokens.

   Keys lie in blocks of WIDTH columns, [columns / WIDTH, D, WIDTH], so that a product with a query fills a vector with
   the scores of a block and nothing is summed across lanes. Values lie [columns, value_width], D rounded up to whole
   vectors. All query heads of a key/value head, of several rows where they share the prompt, take each key and value
   at once, so that it is loaded and widened to float32 for all of them. */
#include <math.h>
#include <stdlib.h>

#include "vectors.h"

/* Vectors that accumulate; about as many registers hold operands. */
#define SUMS WIDTH
/* Queries computed at once, at most: the largest case of `AT_ONCE`. */
#define QUERIES 8

/* The same fields as `Shape` in decoding.py. */
typedef struct {
  int64_t type, heads, kv_heads, width, value_width, prompt_columns, num_blocks;
  const int64_t *rows;           /* rows with a living completion, those that share a prompt are neighbours */
  const int64_t *starts;         /* [num_blocks + 1]: where in `rows` each block of rows with one prompt begins */
  const int64_t *slots;          /* [rows] which prompt */
  const int64_t *prompt_lengths; /* [slots] */
  const int64_t *own_lengths;    /* [rows] tokens before this one since the prompt */
  const int64_t *shifts;         /* [slots] what is added to the numbers of tokens behind the prompt to rotate them */
  double eps;
} shape;

/* Storage of one layer: keys and values of completions [rows, K, ...] and of prompts [slots, K, ...]; and what the
   layer computes. A row's token n lies in column n modulo `own_columns`: where there is a window, no more are kept. */
typedef struct {
  void *own_keys, *own_values, *prompt_keys, *prompt_values;
  int64_t own_columns, window; /* a token sees `window` tokens, itself included */
  const float *cosine, *sine;  /* [positions, turned]; the sign of the rotated half sits in the sine */
  int64_t turned;              /* how many of a head's first numbers are rotated */
  const float *query_scales;   /* [positions] factors of queries, or 0 */
  int64_t joint_norms;         /* the norm is over all query heads together, and over all key heads */
  double scale, cap;           /* cap of the scores, or 0 */
} store;

static int64_t whole_blocks(int64_t columns) { return (columns + WIDTH - 1) / WIDTH; }

/* 1 / the root mean square of `width` values. */
HOT float inverse_rms(const void *x, int64_t from, int64_t width, double eps, int type) {
  vfloat squares = splat(0);
  int64_t i = 0;
  for (; i + WIDTH <= width; i += WIDTH) squares += load_any(x, from + i, type) * load_any(x, from + i, type);
  vfloat v = load_rest(x, from + i, width - i, 0, type);
  return 1.0f / sqrtf(sum(squares + v * v) / (float)width + (float)eps);
}

/* A head's values as float32, normed where `norm` is given, rotated to their position, times `factor`. `inverse` is
   that of the root mean square of all heads, or 0 for that of this one. */
HOT void rotated(const void *x, int64_t from, const shape *s, const store *kept, const float *norm, float inverse,
                 int64_t position, float factor, float *out, int type) {
  const int64_t width = s->width, turned = kept->turned, half = turned / 2;
  const float *cosine = kept->cosine + position * turned, *sine = kept->sine + position * turned;
  float plain[width];
  for (int64_t i = 0; i < width; i++) plain[i] = load_one(x, from + i, type);
  if (norm) {
    if (inverse == 0) inverse = inverse_rms(plain, 0, width, s->eps, FLOAT32);
    for (int64_t i = 0; i < width; i++) plain[i] = plain[i] * inverse * norm[i];
  }
  for (int64_t i = 0; i < half; i++) out[i] = (plain[i] * cosine[i] + plain[i + half] * sine[i]) * factor;
  for (int64_t i = half; i < turned; i++) out[i] = (plain[i] * cosine[i] + plain[i - half] * sine[i]) * factor;
  for (int64_t i = turned; i < width; i++) out[i] = plain[i] * factor;
}

/* Key and value of one token, to their column of one head's storage. */
HOT void keep(const float *key, const void *value, int64_t from, const shape *s, void *keys, int64_t keys_from,
              void *values, int64_t values_from, int64_t column, int type) {
  int64_t block = keys_from + column / WIDTH * WIDTH * s->width + column % WIDTH;
  int64_t line = values_from + column * s->value_width;
  for (int64_t i = 0; i < s->width; i++) store_one(keys, block + i * WIDTH, key[i], type);
  for (int64_t i = 0; i < s->width; i++) store_one(values, line + i, load_one(value, from + i, type), type);
  for (int64_t i = s->width; i < s->value_width; i++) store_one(values, line + i, 0, type);
}

/* Numbers of queries that code is compiled for, so that each query's sums are registers; the rest is cut into these. */
#define AT_ONCE(count) ((count) >= 7 ? ((count) == 7 ? 7 : QUERIES) : (count) >= 4 ? 4 : (count) >= 2 ? 2 : 1)
#define FOR_QUERIES(count, step) \
  switch (count) {               \
    case 1: step(1); break;      \
    case 2: step(2); break;      \
    case 4: step(4); break;      \
    case 7: step(7); break;      \
    default: step(QUERIES);      \
  }
/* Adjacent vectors for each of several queries. */
#define BESIDE(queries) ((queries) <= SUMS / 4 ? 4 : (queries) <= SUMS / 2 ? 2 : 1)

HOT void score_some(const float *q, int64_t width, const void *keys, int64_t from, float *out, int64_t stride,
                    const int queries, const int blocks, int type) {
  vfloat scores[QUERIES][4];
#pragma GCC unroll 8
  for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
    for (int b = 0; b < blocks; b++) scores[i][b] = splat(0);
  for (int64_t d = 0; d < width; d++) {
    vfloat key[4];
#pragma GCC unroll 4
    for (int b = 0; b < blocks; b++) key[b] = load_any(keys, from + (b * width + d) * WIDTH, type);
#pragma GCC unroll 8
    for (int i = 0; i < queries; i++) {
      vfloat query = splat(q[i * width + d]);
#pragma GCC unroll 4
      for (int b = 0; b < blocks; b++) scores[i][b] += query * key[b];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
    for (int b = 0; b < blocks; b++) store_f32(out + i * stride + b * WIDTH, scores[i][b]);
}

HOT void score_blocks(const float *q, int64_t width, const void *keys, int64_t from, int64_t blocks, float *out,
                      int64_t stride, const int queries, int type) {
  int64_t b = 0;
  for (; b + BESIDE(queries) <= blocks; b += BESIDE(queries))
    score_some(q, width, keys, from + b * width * WIDTH, out + b * WIDTH, stride, queries, BESIDE(queries), type);
  for (; b < blocks; b++)
    score_some(q, width, keys, from + b * width * WIDTH, out + b * WIDTH, stride, queries, 1, type);
}

/* out[i, c] = q[i] . key[c] for whole blocks of columns; rows of `out` lie `stride` apart. */
static void score(const float *q, int64_t count, int64_t width, const void *keys, int64_t from, int64_t blocks,
                  float *out, int64_t stride, int64_t type) {
  while (count > 0) {
    int64_t now = AT_ONCE(count);
#define SCORE_F32(n) score_blocks(q, width, keys, from, blocks, out, stride, n, FLOAT32)
#define SCORE_BF16(n) score_blocks(q, width, keys, from, blocks, out, stride, n, BFLOAT16)
    if (type == FLOAT32) {
      FOR_QUERIES(now, SCORE_F32)
    } else {
      FOR_QUERIES(now, SCORE_BF16)
    }
    q += now * width, out += now * stride, count -= now;
  }
}

HOT void mix_some(const float *shares, int64_t stride, int64_t columns, const void *values, int64_t from,
                  int64_t value_width, float *out, const int queries, const int vectors, int type) {
  vfloat mixed[QUERIES][4];
#pragma GCC unroll 8
  for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) mixed[i][v] = load_f32(out + i * value_width + v * WIDTH);
  for (int64_t c = 0; c < columns; c++) {
    vfloat value[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) value[v] = load_any(values, from + c * value_width + v * WIDTH, type);
#pragma GCC unroll 8
    for (int i = 0; i < queries; i++) {
      vfloat share = splat(shares[i * stride + c]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) mixed[i][v] += share * value[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) store_f32(out + i * value_width + v * WIDTH, mixed[i][v]);
}

HOT void mix_width(const float *shares, int64_t stride, int64_t columns, const void *values, int64_t from,
                   int64_t value_width, float *out, const int queries, int type) {
  int64_t d = 0;
  for (; d + BESIDE(queries) * WIDTH <= value_width; d += BESIDE(queries) * WIDTH)
    mix_some(shares, stride, columns, values, from + d, value_width, out + d, queries, BESIDE(queries), type);
  for (; d < value_width; d += WIDTH)
    mix_some(shares, stride, columns, values, from + d, value_width, out + d, queries, 1, type);
}

/* out[i] += sum over columns of shares[i, c] * value[c]; rows of `shares` lie `stride` apart. */
static void mix(const float *shares, int64_t stride, int64_t count, int64_t columns, const void *values, int64_t from,
                int64_t value_width, float *out, int64_t type) {
  while (count > 0) {
    int64_t now = AT_ONCE(count);
#define MIX_F32(n) mix_width(shares, stride, columns, values, from, value_width, out, n, FLOAT32)
#define MIX_BF16(n) mix_width(shares, stride, columns, values, from, value_width, out, n, BFLOAT16)
    if (type == FLOAT32) {
      FOR_QUERIES(now, MIX_F32)
    } else {
      FOR_QUERIES(now, MIX_BF16)
    }
    shares += now * stride, out += now * value_width, count -= now;
  }
}

/* exp(scores - their maximum) in place over `length` (whole vectors); gives their sum. Hidden ones are -inf. `sink` is
   the score of one more key, whose value is 0, or -inf. */
HOT float exponentials(float *scores, int64_t length, float sink) {
  vfloat top = splat(sink), total = splat(0);
  for (int64_t i = 0; i < length; i += WIDTH) top = max_v(load_f32(scores + i), top);
  top = splat(largest(top));
  for (int64_t i = 0; i < length; i += WIDTH) {
    vfloat share = exp_v(load_f32(scores + i) - top);
    store_f32(scores + i, share);
    total += share;
  }
  return sink == -INFINITY ? sum(total) : sum(total) + expf(sink - top[0]);
}

/* cap * tanh(scores / cap) in place over `length` (whole vectors). */
HOT void capped(float *scores, int64_t length, float cap) {
  for (int64_t i = 0; i < length; i += WIDTH) store_f32(scores + i, cap * tanh_v(load_f32(scores + i) / cap));
}

HOT void hide(float *scores, int64_t from, int64_t to) {
  for (int64_t c = from; c < to; c++) scores[c] = -INFINITY;
}

/* Rotated queries of a row's heads behind each other; its key and value are kept. */
HOT void read_row(const shape *s, const store *kept, const void *qkv, const float *norm, int64_t row, int64_t kv,
                  float *q, int type) {
  const int64_t repeats = s->heads / s->kv_heads, width = s->width;
  const int64_t from = row * (s->heads + 2 * s->kv_heads) * width, own = row * s->kv_heads + kv;
  const int64_t slot = s->slots[row], position = s->prompt_lengths[slot] + s->own_lengths[row] + s->shifts[slot];
  float factor = (float)kept->scale, all_queries = 0, all_keys = 0;
  if (kept->query_scales) factor *= kept->query_scales[position];
  if (kept->joint_norms) {
    all_queries = inverse_rms(qkv, from, s->heads * width, s->eps, type);
    all_keys = inverse_rms(qkv, from + s->heads * width, s->kv_heads * width, s->eps, type);
  }
  for (int64_t r = 0; r < repeats; r++) {
    int64_t head = kv * repeats + r;
    rotated(qkv, from + head * width, s, kept, norm ? norm + head * width : 0, all_queries, position, factor,
            q + r * width, type);
  }
  float key[width];
  int64_t head = s->heads + kv;
  rotated(qkv, from + head * width, s, kept, norm ? norm + head * width : 0, all_keys, position, 1, key, type);
  keep(key, qkv, from + (head + s->kv_heads) * width, s, kept->own_keys, own * kept->own_columns * width,
       kept->own_values, own * kept->own_columns * s->value_width, s->own_lengths[row] % kept->own_columns, type);
}

/* The first token of a row's prompt that its new token sees. */
HOT int64_t first_seen(const shape *s, const store *kept, int64_t row) {
  const int64_t length = s->prompt_lengths[s->slots[row]], first = length + s->own_lengths[row] + 1 - kept->window;
  return first < 0 ? 0 : first < length ? first : length;
}

/* The rows of one block with one key/value head. `scratch` holds queries, scores and sums of all of them. */
HOT void attend_block(const shape *s, const store *kept, const void *qkv, const float *norm, const float *sinks,
                      int64_t block, int64_t kv, float *scratch, void *out, int type) {
  const int64_t repeats = s->heads / s->kv_heads, width = s->width, value_width = s->value_width;
  const int64_t *rows = s->rows + s->starts[block];
  const int64_t num_rows = s->starts[block + 1] - s->starts[block], count = num_rows * repeats;
  const int64_t slot = s->slots[rows[0]], length = s->prompt_lengths[slot], prompt = slot * s->kv_heads + kv;
  int64_t first = length;
  for (int64_t i = 0; i < num_rows; i++)
    if (first_seen(s, kept, rows[i]) < first) first = first_seen(s, kept, rows[i]);
  /* whole blocks of keys are skipped, and columns count from there */
  const int64_t skipped = first / WIDTH, blocks = whole_blocks(length) - skipped, start = skipped * WIDTH;
  const int64_t before = blocks * WIDTH, stride = s->prompt_columns + kept->own_columns;
  float *q = scratch, *scores = q + count * width, *mixed = scores + count * stride;
  float *totals = mixed + count * value_width;
  for (int64_t i = 0; i < num_rows; i++) read_row(s, kept, qkv, norm, rows[i], kv, q + i * repeats * width, type);
  score(q, count, width, kept->prompt_keys, (prompt * s->prompt_columns + start) * width, blocks, scores, stride, type);
  for (int64_t i = 0; i < num_rows; i++) {
    const int64_t own = rows[i] * s->kv_heads + kv, newest = s->own_lengths[rows[i]];
    const int64_t columns = newest + 1 < kept->own_columns ? newest + 1 : kept->own_columns;
    const int64_t after = before + whole_blocks(columns) * WIDTH;
    float *mine = scores + i * repeats * stride;
    score(q + i * repeats * width, repeats, width, kept->own_keys, own * kept->own_columns * width,
          whole_blocks(columns), mine + before, stride, type);
    for (int64_t r = 0; r < repeats; r++) {
      float *line = mine + r * stride;
      if (kept->cap > 0) capped(line, after, (float)kept->cap);
      hide(line, 0, first_seen(s, kept, rows[i]) - start);
      hide(line, length - start, before);
      hide(line, before + columns, after);
      if (newest >= kept->window)
        for (int64_t c = 0; c < columns; c++)
          if ((newest - c) % kept->own_columns >= kept->window) line[before + c] = -INFINITY;
      totals[i * repeats + r] = exponentials(line, after, sinks ? sinks[kv * repeats + r] : -INFINITY);
    }
  }
  memset(mixed, 0, sizeof(float) * (size_t)(count * value_width));
  mix(scores + first - start, stride, count, length - first, kept->prompt_values,
      (prompt * s->prompt_columns + first) * value_width, value_width, mixed, type);
  for (int64_t i = 0; i < num_rows; i++) {
    const int64_t own = rows[i] * s->kv_heads + kv, tokens = s->own_lengths[rows[i]] + 1;
    mix(scores + i * repeats * stride + before, stride, repeats, tokens < kept->own_columns ? tokens : kept->own_columns,
        kept->own_values, own * kept->own_columns * value_width, value_width, mixed + i * repeats * value_width, type);
    for (int64_t at = i * repeats; at < (i + 1) * repeats; at++) {
      int64_t to = (rows[i] * s->heads + kv * repeats + at - i * repeats) * width;
      for (int64_t d = 0; d < width; d++) store_one(out, to + d, mixed[at * value_width + d] / totals[at], type);
    }
  }
}

/* One layer of one step: rows' queries, keys and values [rows, heads + 2 kv_heads, width] are normed and rotated, keys
   and values stored behind the rows' own, and out [rows, heads, width] is what each query attends to. Rows without a
   living completion are left as they are. */
void attend_shared(const shape *s, const store *kept, const void *qkv, const float *norm, const float *sinks,
                   void *out) {
  int64_t most = 1, work = s->num_blocks * s->kv_heads;
  for (int64_t block = 0; block < s->num_blocks; block++)
    if (s->starts[block + 1] - s->starts[block] > most) most = s->starts[block + 1] - s->starts[block];
  int64_t columns = s->prompt_columns + kept->own_columns;
  int64_t room = most * (s->heads / s->kv_heads) * (s->width + columns + s->value_width + 1);
#pragma omp parallel if (work > 1 && s->heads * s->width * s->starts[s->num_blocks] > 1 << 12)
  {
    float *scratch = malloc(sizeof(float) * (size_t)room);
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < work; item++) {
      int64_t block = item / s->kv_heads, kv = item % s->kv_heads;
      if (s->type == FLOAT32)
        attend_block(s, kept, qkv, norm, sinks, block, kv, scratch, out, FLOAT32);
      else
        attend_block(s, kept, qkv, norm, sinks, block, kv, scratch, out, BFLOAT16);
    }
    free(scratch);
  }
}

/* Queries and keys of whole prompts [prompts, length, heads + 2 kv_heads, width] are normed and rotated in place; keys
   and values are stored in each prompt's slot, from column 0 on. */
void store_prompts(const shape *s, const store *kept, void *qkv, const float *norm, const int64_t *slots,
                   int64_t prompts, int64_t length) {
  const int64_t width = s->width, turned = s->heads + s->kv_heads, all = turned + s->kv_heads;
  const int type = (int)s->type;
#pragma omp parallel for
  for (int64_t token = 0; token < prompts * length; token++) {
    const int64_t slot = slots[token / length], column = token % length;
    float values[width], all_queries = 0, all_keys = 0;
    if (kept->joint_norms) {
      all_queries = inverse_rms(qkv, token * all * width, s->heads * width, s->eps, type);
      all_keys = inverse_rms(qkv, (token * all + s->heads) * width, s->kv_heads * width, s->eps, type);
    }
    for (int64_t head = 0; head < turned; head++) {
      int64_t from = (token * all + head) * width;
      const float factor = kept->query_scales && head < s->heads ? kept->query_scales[column] : 1;
      rotated(qkv, from, s, kept, norm ? norm + head * width : 0, head < s->heads ? all_queries : all_keys, column,
              factor, values, type);
      for (int64_t d = 0; d < width; d++) store_one(qkv, from + d, values[d], type);
      if (head < s->heads) continue;
      int64_t place = (slot * s->kv_heads + head - s->heads) * s->prompt_columns;
      keep(values, qkv, from + s->kv_heads * width, s, kept->prompt_keys, place * width, kept->prompt_values,
           place * s->value_width, column, type);
    }
  }
}
