/* Experts of a mixture, forward and backward: two products with a gate between them, and each token's weighted sum.

   Each of `tokens` has `choices` numbers of experts. The rows, one for each choice, are sorted by expert, and come in
   tasks of one expert and at most CHUNK rows: one product of each matrix reads it once for all rows of a task. Weights,
   states and outputs are of one storage type in the forward pass, float32 in the backward pass; sums are float32. No
   sum depends on the number of threads, and none of the forward pass on the other rows. `width` of the model and
   `inner` width of an expert are multiples of 16. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "blocks.h"

#define CHUNK 128 /* rows of a task */
#define DEPTH 256 /* numbers that a packed panel is deep, a multiple of all vectors' widths */
#define FEW 12    /* rows below which packing a matrix costs more than it saves */
#define BLOCK 48  /* rows of a weight's gradient that a task makes */
#define PANEL (MOST * WIDTH)
#define WORTH_THREADS (1 << 12) /* numbers of rows below which a second thread costs more than it does */

enum { SILU = 0, CLAMPED = 1 };

typedef struct {
  int64_t tokens, choices, experts, width, inner;
  int transposed;      /* matrices lie by input; else by output */
  int gate;            /* SILU: silu(gate) * up, in halves. CLAMPED: interleaved, both clamped, as in gpt-oss */
  float alpha, limit;  /* of CLAMPED */
  const int64_t *order, *places, *borders; /* a row's choice, a choice's row (-1: none), experts' first rows */
} mixture;

typedef struct {
  int64_t expert, first, rows;
} task;

HOT int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Swap bit `distance` of rows' and lanes' numbers; after all bits the matrix is turned around. */
HOT void turn_bit(vfloat *v, const int distance) {
  vint low;
  for (int i = 0; i < WIDTH; i++) low[i] = i & distance ? 0 : -1;
#pragma GCC unroll 16
  for (int i = 0; i < WIDTH; i++) {
    if (i & distance) continue;
    const vint a = (vint)v[i], b = (vint)v[i + distance];
    v[i] = (vfloat)((a & low) | ((vint)swapped((vfloat)b, distance) & ~low));
    v[i + distance] = (vfloat)(((vint)swapped((vfloat)a, distance) & low) | (b & ~low));
  }
}

/* panel[depth][columns] = b[columns][depth], whose rows lie `b_row` apart. */
HOT void pack_across(const void *b, int64_t at, int64_t b_row, int64_t depth, int64_t columns, float *panel, int type) {
  for (int64_t j = 0; j < columns; j += WIDTH)
    for (int64_t k = 0; k < depth; k += WIDTH) {
      vfloat v[WIDTH];
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; i++) v[i] = load_any(b, at + (j + i) * b_row + k, type);
      turn_bit(v, 1);
      turn_bit(v, 2);
      turn_bit(v, 4);
      if (WIDTH == 16) turn_bit(v, 8 % WIDTH);
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; i++) store_f32(panel + (k + i) * columns + j, v[i]);
    }
}

/* panel[depth][columns] = b[depth][columns]. */
HOT void pack_along(const void *b, int64_t at, int64_t b_row, int64_t depth, int64_t columns, float *panel, int type) {
  for (int64_t k = 0; k < depth; k++)
    for (int64_t j = 0; j < columns; j += WIDTH)
      store_f32(panel + k * columns + j, load_any(b, at + k * b_row + j, type));
}

/* c[rows][columns] = a[rows][inner] * b[inner][columns] for a few rows: wide blocks, as short ones wait for sums. */
static __attribute__((noinline)) void few_rows(int64_t rows, int64_t columns, int64_t inner, const float *a,
                                               const float *b, float *c) {
  int64_t j = 0;
  for (; j + 4 * WIDTH <= columns; j += 4 * WIDTH) {
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2)
      block(2, 4, a + r * inner, inner, 1, b + j, columns, c + r * columns + j, columns, inner, 0);
    if (r < rows) block(1, 4, a + r * inner, inner, 1, b + j, columns, c + r * columns + j, columns, inner, 0);
  }
  multiply(rows, columns - j, a, inner, 1, b + j, columns, c + j, columns, inner, 0);
}

/* c[rows][columns] = a[rows][inner] * b, which lies from `at` on: [inner][columns], or `across`: [columns][inner]. */
HOT void product_of(int64_t rows, int64_t columns, int64_t inner, const float *a, const void *b, int64_t at, int across,
                    float *c, float *panel, int type) {
  if (!across && rows < FEW && type == FLOAT32) {
    few_rows(rows, columns, inner, a, (const float *)b + at, c);
    return;
  }
  for (int64_t k = 0; k < inner; k += DEPTH) {
    const int64_t depth = smaller(DEPTH, inner - k);
    for (int64_t j = 0; j < columns; j += PANEL) {
      const int64_t breadth = smaller(PANEL, columns - j);
      if (across)
        pack_across(b, at + j * inner + k, inner, depth, breadth, panel, type);
      else
        pack_along(b, at + k * columns + j, columns, depth, breadth, panel, type);
      multiply(rows, breadth, a + k, inner, 1, panel, breadth, c + j, columns, depth, k > 0);
    }
  }
}

static __attribute__((noinline)) void product(int64_t rows, int64_t columns, int64_t inner, const float *a,
                                              const void *b, int64_t at, int across, float *c, float *panel, int type) {
  if (type == FLOAT32)
    product_of(rows, columns, inner, a, b, at, across, c, panel, FLOAT32);
  else
    product_of(rows, columns, inner, a, b, at, across, c, panel, BFLOAT16);
}

HOT void add_bias(float *c, int64_t rows, int64_t columns, const void *bias, int64_t at, int type) {
  if (!bias) return;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < columns; j += WIDTH)
      store_f32(c + r * columns + j, load_f32(c + r * columns + j) + load_any(bias, at + j, type));
}

HOT vfloat chosen(vint mask, vfloat a, vfloat b) { return (vfloat)(((vint)a & mask) | ((vint)b & ~mask)); }

/* The gate and the other factor of WIDTH inner numbers from the i-th on. */
HOT void read_gate(const mixture *m, const float *row, int64_t i, vfloat *gate, vfloat *up) {
  if (m->gate == SILU) {
    *gate = load_f32(row + i);
    *up = load_f32(row + m->inner + i);
    return;
  }
  for (int lane = 0; lane < WIDTH; lane++) {
    (*gate)[lane] = row[2 * (i + lane)];
    (*up)[lane] = row[2 * (i + lane) + 1];
  }
}

/* out[inner] = the gated product of a row [2 inner]. */
HOT void gated_row(const mixture *m, const float *row, float *out) {
  for (int64_t i = 0; i < m->inner; i += WIDTH) {
    vfloat gate, up;
    read_gate(m, row, i, &gate, &up);
    if (m->gate == SILU) {
      store_f32(out + i, gate / (1.0f + exp_v(-gate)) * up);
    } else {
      gate = chosen(gate > m->limit, splat(m->limit), gate);
      up = chosen(up > m->limit, splat(m->limit), chosen(up < -m->limit, splat(-m->limit), up));
      store_f32(out + i, gate / (1.0f + exp_v(-m->alpha * gate)) * (up + 1.0f));
    }
  }
}

/* grad_row[2 inner] by the gradient of the gated product [inner]. */
HOT void gated_row_backward(const mixture *m, const float *row, const float *grad, float *grad_row) {
  for (int64_t i = 0; i < m->inner; i += WIDTH) {
    vfloat gate, up;
    read_gate(m, row, i, &gate, &up);
    const vfloat by_product = load_f32(grad + i);
    if (m->gate == SILU) {
      const vfloat share = 1.0f / (1.0f + exp_v(-gate));
      store_f32(grad_row + i, by_product * up * share * (1.0f + gate * (1.0f - share)));
      store_f32(grad_row + m->inner + i, by_product * gate * share);
      continue;
    }
    const vint gate_moves = gate <= m->limit, up_moves = (up <= m->limit) & (up >= -m->limit);
    gate = chosen(gate_moves, gate, splat(m->limit));
    up = chosen(up > m->limit, splat(m->limit), chosen(up < -m->limit, splat(-m->limit), up));
    const vfloat share = 1.0f / (1.0f + exp_v(-m->alpha * gate));
    const vfloat by_gate = by_product * (up + 1.0f) * share * (1.0f + m->alpha * gate * (1.0f - share));
    const vfloat by_up = by_product * gate * share;
    for (int lane = 0; lane < WIDTH; lane++) {
      grad_row[2 * (i + lane)] = gate_moves[lane] ? by_gate[lane] : 0;
      grad_row[2 * (i + lane) + 1] = up_moves[lane] ? by_up[lane] : 0;
    }
  }
}

/* Rows sorted by expert; a choice of none of the experts has no row. Rows of one expert keep their order. */
static void sort_rows(const int64_t *chosen_experts, const mixture *m, int64_t *order, int64_t *places,
                      int64_t *borders) {
  const int64_t all = m->tokens * m->choices;
  memset(borders, 0, (size_t)(m->experts + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < all; i++) {
    const int64_t expert = chosen_experts[i];
    if (expert >= 0 && expert < m->experts) borders[expert + 1]++;
  }
  for (int64_t e = 0; e < m->experts; e++) borders[e + 1] += borders[e];
  for (int64_t i = 0; i < all; i++) { /* borders[e] moves to the end of expert e, which is where e + 1 begins */
    const int64_t expert = chosen_experts[i];
    places[i] = -1;
    if (expert < 0 || expert >= m->experts) continue;
    places[i] = borders[expert]++;
    order[places[i]] = i;
  }
  for (int64_t e = m->experts; e > 0; e--) borders[e] = borders[e - 1];
  borders[0] = 0;
}

/* Even tasks of at most CHUNK rows; the caller frees them. */
static task *tasks_of(const mixture *m, int64_t *count) {
  task *tasks = malloc(sizeof(task) * (size_t)(m->experts + m->borders[m->experts] / CHUNK + 1));
  *count = 0;
  for (int64_t e = 0; e < m->experts; e++) {
    const int64_t rows = m->borders[e + 1] - m->borders[e], parts = (rows + CHUNK - 1) / CHUNK;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t first = rows * part / parts, end = rows * (part + 1) / parts;
      tasks[(*count)++] = (task){e, m->borders[e] + first, end - first};
    }
  }
  return tasks;
}

HOT void read_rows(const mixture *m, const void *from, const task *t, float *to, int type) {
  for (int64_t r = 0; r < t->rows; r++) {
    const int64_t at = m->order[t->first + r] / m->choices * m->width;
    for (int64_t i = 0; i < m->width; i += WIDTH) store_f32(to + r * m->width + i, load_any(from, at + i, type));
  }
}

/* x and out [tokens, width], chosen experts and weights [tokens, choices]; order and places [tokens * choices] and
   borders [experts + 1] are written for the backward pass, as are both factors before the gate, `kept` [rows, 2 inner]
   (null: there is none). `made` [rows, width] is working memory, as is `scratch`, `each` floats for each thread. */
void experts_forward(const void *x, const int64_t *chosen_experts, const float *weights, int64_t tokens,
                     int64_t choices, int64_t experts, int64_t width, int64_t inner, const void *gate_up,
                     const void *gate_up_bias, const void *down, const void *down_bias, int64_t transposed,
                     int64_t type, int64_t gate, float alpha, float limit, int64_t *order, int64_t *places,
                     int64_t *borders, float *kept, float *made, void *out, float *scratch, int64_t each, int64_t threads) {
  const mixture m = {tokens, choices, experts, width, inner, (int)transposed, (int)gate, alpha, limit,
                     order,  places,  borders};
  const int64_t most = smaller(CHUNK, tokens * choices);
  int64_t count;
  sort_rows(chosen_experts, &m, order, places, borders);
  task *tasks = tasks_of(&m, &count);
#pragma omp parallel num_threads(threads) if (threads > 1 && tokens * choices * width > WORTH_THREADS)
  {
    float *rows = scratch + omp_get_thread_num() * each, *products = rows + most * width;
    float *both = products + most * inner, *panel = both + most * 2 * inner;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
      const task *t = tasks + i;
      float *factors = kept ? kept + t->first * 2 * inner : both;
      read_rows(&m, x, t, rows, (int)type);
      product(t->rows, 2 * inner, width, rows, gate_up, t->expert * 2 * inner * width, !transposed, factors, panel,
              (int)type);
      add_bias(factors, t->rows, 2 * inner, gate_up_bias, t->expert * 2 * inner, (int)type);
      for (int64_t r = 0; r < t->rows; r++) gated_row(&m, factors + r * 2 * inner, products + r * inner);
      product(t->rows, width, inner, products, down, t->expert * inner * width, !transposed, made + t->first * width,
              panel, (int)type);
      add_bias(made + t->first * width, t->rows, width, down_bias, t->expert * width, (int)type);
    }
#pragma omp for
    for (int64_t n = 0; n < tokens; n++)
      for (int64_t i = 0; i < width; i += WIDTH) {
        vfloat total = splat(0);
        for (int64_t c = n * choices; c < (n + 1) * choices; c++)
          if (places[c] >= 0) total += weights[c] * load_f32(made + places[c] * width + i);
        store_any(out, n * width + i, total, (int)type);
      }
  }
  free(tasks);
}

/* `block` rows from the first-th on of the gradient of one expert's matrix, whose sides are `a` and `b`: the sum over
   its rows of a[row] * b[row]. Rows of a side are those of tokens if it is `of_tokens`. */
HOT void weight_block(const mixture *m, int64_t expert, int64_t first, int64_t block, const float *a, int64_t a_side,
                      int a_of_tokens, const float *b, int64_t b_side, int b_of_tokens, float *out, float *scratch) {
  float *left = scratch, *panel = left + DEPTH * BLOCK;
  const int64_t begin = m->borders[expert], end = m->borders[expert + 1];
  if (begin == end) memset(out + first * b_side, 0, (size_t)(block * b_side) * sizeof(float));
  for (int64_t row = begin; row < end; row += DEPTH) {
    const int64_t depth = smaller(DEPTH, end - row);
    for (int64_t r = 0; r < depth; r++) {
      const int64_t at = a_of_tokens ? m->order[row + r] / m->choices : row + r;
      memcpy(left + r * block, a + at * a_side + first, (size_t)block * sizeof(float));
    }
    for (int64_t j = 0; j < b_side; j += PANEL) {
      const int64_t breadth = smaller(PANEL, b_side - j);
      for (int64_t r = 0; r < depth; r++) {
        const int64_t at = b_of_tokens ? m->order[row + r] / m->choices : row + r;
        for (int64_t i = 0; i < breadth; i += WIDTH)
          store_f32(panel + r * breadth + i, load_f32(b + at * b_side + j + i));
      }
      multiply(block, breadth, left, 1, block, panel, breadth, out + first * b_side + j, b_side, depth, row > begin);
    }
  }
}

/* One task of a matrix's gradient. `outputs` rows [.., out_side] and `inputs` rows [.., in_side] of its product. */
static void weight_gradient(const mixture *m, int64_t number, const float *outputs, int64_t out_side, int out_of_tokens,
                            const float *inputs, int64_t in_side, int in_of_tokens, float *grads, float *scratch) {
  const int64_t side = m->transposed ? in_side : out_side, blocks = (side + BLOCK - 1) / BLOCK;
  const int64_t expert = number / blocks, first = number % blocks * BLOCK, block = smaller(BLOCK, side - first);
  float *out = grads + expert * out_side * in_side;
  if (m->transposed)
    weight_block(m, expert, first, block, inputs, in_side, in_of_tokens, outputs, out_side, out_of_tokens, out,
                 scratch);
  else
    weight_block(m, expert, first, block, outputs, out_side, out_of_tokens, inputs, in_side, in_of_tokens, out,
                 scratch);
}

/* Sums of an expert's rows [.., side], each times its weight if there are any. */
static void bias_gradient(const mixture *m, int64_t expert, const float *rows, int64_t side, const float *weights,
                          float *grads) {
  for (int64_t i = 0; i < side; i += WIDTH) {
    vfloat total = splat(0);
    for (int64_t row = m->borders[expert]; row < m->borders[expert + 1]; row++) {
      const int64_t choice = m->order[row], at = weights ? choice / m->choices : row;
      total += (weights ? weights[choice] : 1.0f) * load_f32(rows + at * side + i);
    }
    store_f32(grads + expert * side + i, total);
  }
}

/* Gradients by the weights of choices, x, matrices and biases; of the last five a null is not asked for. What the
   forward pass has kept comes in again. by_factors [rows, 2 inner], weighted [rows, inner] and by_rows [rows, width]
   are working memory, as is `scratch`. */
void experts_backward(const float *x, const float *weights, int64_t tokens, int64_t choices, int64_t experts,
                      int64_t width, int64_t inner, const float *gate_up, const float *down, const float *down_bias,
                      int64_t transposed, int64_t gate, float alpha, float limit, const int64_t *order,
                      const int64_t *places, const int64_t *borders, const float *kept, const float *grad_out,
                      float *grad_weights, float *grad_x, float *grad_gate_up, float *grad_gate_up_bias,
                      float *grad_down, float *grad_down_bias, float *by_factors, float *weighted, float *by_rows,
                      float *scratch, int64_t each, int64_t threads) {
  const mixture m = {tokens, choices, experts, width, inner, (int)transposed, (int)gate, alpha, limit,
                     order,  places,  borders};
  const int64_t most = smaller(CHUNK, tokens * choices);
  int64_t count;
  task *tasks = tasks_of(&m, &count);
  const int64_t up_blocks = ((transposed ? width : 2 * inner) + BLOCK - 1) / BLOCK;
  const int64_t down_blocks = ((transposed ? inner : width) + BLOCK - 1) / BLOCK;
  for (int64_t c = 0; c < tokens * choices; c++)
    if (places[c] < 0) grad_weights[c] = 0;
#pragma omp parallel num_threads(threads) if (threads > 1 && tokens * choices * width > WORTH_THREADS)
  {
    float *own = scratch + omp_get_thread_num() * each;
    float *outside = own, *by_product = outside + most * width, *panel = by_product + most * inner;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
      const task *t = tasks + i;
      read_rows(&m, grad_out, t, outside, FLOAT32);
      product(t->rows, inner, width, outside, down, t->expert * inner * width, (int)transposed, by_product, panel,
              FLOAT32);
      for (int64_t r = 0; r < t->rows; r++) {
        const int64_t row = t->first + r;
        const float weight = weights[order[row]];
        float *by = by_product + r * inner, *act = weighted + row * inner;
        vfloat along = splat(0);
        gated_row(&m, kept + row * 2 * inner, act);
        for (int64_t j = 0; j < inner; j += WIDTH) {
          along += load_f32(by + j) * load_f32(act + j);
          store_f32(act + j, weight * load_f32(act + j));
          store_f32(by + j, weight * load_f32(by + j));
        }
        if (down_bias)
          for (int64_t j = 0; j < width; j += WIDTH)
            along += load_f32(outside + r * width + j) * load_f32(down_bias + t->expert * width + j);
        grad_weights[order[row]] = sum(along);
        gated_row_backward(&m, kept + row * 2 * inner, by, by_factors + row * 2 * inner);
      }
      if (grad_x)
        product(t->rows, width, 2 * inner, by_factors + t->first * 2 * inner, gate_up, t->expert * 2 * inner * width,
                (int)transposed, by_rows + t->first * width, panel, FLOAT32);
    }
    if (grad_gate_up)
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < experts * up_blocks; i++)
        weight_gradient(&m, i, by_factors, 2 * inner, 0, x, width, 1, grad_gate_up, own);
    if (grad_down)
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < experts * down_blocks; i++)
        weight_gradient(&m, i, grad_out, width, 1, weighted, inner, 0, grad_down, own);
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t e = 0; e < experts; e++) {
      if (grad_gate_up_bias) bias_gradient(&m, e, by_factors, 2 * inner, 0, grad_gate_up_bias);
      if (grad_down_bias) bias_gradient(&m, e, grad_out, width, weights, grad_down_bias);
    }
    if (grad_x)
#pragma omp for
      for (int64_t n = 0; n < tokens; n++)
        for (int64_t i = 0; i < width; i += WIDTH) {
          vfloat total = splat(0);
          for (int64_t c = n * choices; c < (n + 1) * choices; c++)
            if (places[c] >= 0) total += load_f32(by_rows + places[c] * width + i);
          store_f32(grad_x + n * width + i, total);
        }
  }
  free(tasks);
}
