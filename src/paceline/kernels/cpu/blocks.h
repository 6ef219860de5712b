/* Small float32 matrix products out of the nearest caches: as many accumulators as the registers hold. */
#ifndef PACELINE_BLOCKS_H
#define PACELINE_BLOCKS_H

#include "vectors.h"

/* c[R][16 V] += or = a[R][inner] * b[inner][16 V]; rows of a lie `a_row` apart, its columns `a_column`.

   R and V are constants where this is inlined, so that the accumulators stay in registers. */
HOT void block(const int R, const int V, const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row,
               float *c, int64_t c_row, int64_t inner, int add) {
  vfloat total[12][4]; /* not [R][V]: an array of variable length is never kept in registers */
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) total[r][v] = add ? load_f32(c + r * c_row + v * WIDTH) : splat(0);
  for (int64_t k = 0; k < inner; k++) {
    vfloat right[4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) right[v] = load_f32(b + k * b_row + v * WIDTH);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const vfloat left = splat(a[r * a_row + k * a_column]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) total[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store_f32(c + r * c_row + v * WIDTH, total[r][v]);
}

/* Any number of rows of a block V vectors wide: LARGE rows at a time, then SMALL, then one. */
#define ROWS_OF(V, LARGE, SMALL)                                                                                     \
  static __attribute__((noinline)) void rows_of_##V(int64_t rows, const float *a, int64_t a_row, int64_t a_column,   \
                                                    const float *b, int64_t b_row, float *c, int64_t c_row,          \
                                                    int64_t inner, int add) {                                        \
    int64_t r = 0;                                                                                                   \
    for (; r + LARGE <= rows; r += LARGE)                                                                            \
      block(LARGE, V, a + r * a_row, a_row, a_column, b, b_row, c + r * c_row, c_row, inner, add);                   \
    for (; r + SMALL <= rows; r += SMALL)                                                                            \
      block(SMALL, V, a + r * a_row, a_row, a_column, b, b_row, c + r * c_row, c_row, inner, add);                   \
    for (; r < rows; r++) block(1, V, a + r * a_row, a_row, a_column, b, b_row, c + r * c_row, c_row, inner, add);   \
  }

#if WIDTH == 16 /* 32 registers */
#define MOST 4
ROWS_OF(1, 12, 4)
ROWS_OF(2, 12, 4)
ROWS_OF(3, 8, 3)
ROWS_OF(4, 6, 3)
#else /* 16 */
#define MOST 2
ROWS_OF(1, 12, 4)
ROWS_OF(2, 6, 3)
#endif

/* c[rows][columns] += or = a * b, with `columns` a multiple of WIDTH. */
static inline void multiply(int64_t rows, int64_t columns, const float *a, int64_t a_row, int64_t a_column,
                            const float *b, int64_t b_row, float *c, int64_t c_row, int64_t inner, int add) {
  for (int64_t at = 0; at < columns; at += MOST * WIDTH) {
    const int64_t vectors = (columns - at) / WIDTH;
#if WIDTH == 16
    if (vectors >= 4) rows_of_4(rows, a, a_row, a_column, b + at, b_row, c + at, c_row, inner, add);
    if (vectors == 3) rows_of_3(rows, a, a_row, a_column, b + at, b_row, c + at, c_row, inner, add);
    if (vectors == 2) rows_of_2(rows, a, a_row, a_column, b + at, b_row, c + at, c_row, inner, add);
#else
    if (vectors >= 2) rows_of_2(rows, a, a_row, a_column, b + at, b_row, c + at, c_row, inner, add);
#endif
    if (vectors == 1) rows_of_1(rows, a, a_row, a_column, b + at, b_row, c + at, c_row, inner, add);
  }
}

#endif
