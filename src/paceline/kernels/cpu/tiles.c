/* x @ weight.T + bias in bfloat16 with sums in float32, by the processor's tiles (AMX), for few rows.

   Few rows make a product as fast as its weight comes from memory. A tile is loaded from the weight as it lies, 16
   outputs x 32 inputs, so nothing need be laid out beforehand; while 32 outputs are multiplied, the next 32, which
   follow them in memory, are on their way into the cache. */
#include <stdint.h>

#if defined(__linux__) && defined(__AMX_BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vectors.h"

#define SIDE 16           /* rows of a tile, and float32 values in one of its rows */
#define DEPTH 32          /* bfloat16 values in a row of a tile: inputs multiplied at once */
#define GROUP (2 * SIDE)  /* outputs, and rows of x, multiplied at once */
#define TILE (SIDE * DEPTH)
#define ROW_BYTES 64      /* of a tile, and of a line of the cache */
#define ROWS_AT_ONCE 128  /* of x: what is packed of them stays in a core's own cache */
#define REQUEST 0x1023    /* ARCH_REQ_XCOMP_PERM: what a process must ask of Linux before its first tile */
#define TILE_DATA 18

/* The 64 bytes that configure the tiles. */
typedef struct {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} configuration;

void tiles_ready(int64_t *ready) { *ready = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0; }

/* Rows of 16 values of 4 bytes become columns: blocks of half the size change places, four times. */
HOT void transpose(__m512i *rows) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
  for (int apart = SIDE / 2; apart; apart /= 2) {
    const __m512i distance = _mm512_set1_epi32(apart), of_second = _mm512_set1_epi32(SIDE);
    const __mmask16 upper = _mm512_test_epi32_mask(lanes, distance);
    const __m512i low = _mm512_mask_add_epi32(lanes, upper, _mm512_sub_epi32(lanes, distance), of_second);
    const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(lanes, distance), upper, lanes, of_second);
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++)
      if (!(i & apart)) {
        const __m512i first = rows[i], second = rows[i + apart];
        rows[i] = _mm512_permutex2var_epi32(first, low, second);
        rows[i + apart] = _mm512_permutex2var_epi32(first, high, second);
      }
  }
}

/* Rows [rows, inputs] of x as right operands: for each SIDE of them [inputs / 2, SIDE, 2], zeros where there is none. */
static void pack(const uint16_t *x, int64_t rows, int64_t inputs, uint16_t *packed) {
  const int64_t blocks = (rows + SIDE - 1) / SIDE, steps = inputs / DEPTH;
#pragma omp for
  for (int64_t part = 0; part < blocks * steps; part++) {
    const int64_t row = part / steps * SIDE;
    const uint16_t *from = x + row * inputs + part % steps * DEPTH;
    __m512i square[SIDE];
    for (int i = 0; i < SIDE; i++)
      square[i] = row + i < rows ? _mm512_loadu_si512(from + i * inputs) : _mm512_setzero_si512();
    transpose(square);
    for (int i = 0; i < SIDE; i++) _mm512_storeu_si512(packed + part * TILE + i * DEPTH, square[i]);
  }
}

/* GROUP outputs times one or two blocks of rows: sums [2, blocks, SIDE outputs, SIDE rows]. While they are multiplied,
   as many bytes from `ahead` on come into the cache, where it is given. */
HOT void multiply(const uint16_t *weight, int64_t inputs, const uint16_t *x, const int blocks, const char *ahead,
                  float *sums) {
  const uint16_t *second = x + SIDE * inputs; /* of the two blocks */
  _tile_zero(0);
  _tile_zero(2);
  if (blocks == 2) {
    _tile_zero(1);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < inputs; i += DEPTH) {
    _tile_loadd(4, weight + i, 2 * inputs);
    _tile_loadd(6, x + i * SIDE, ROW_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weight + i + SIDE * inputs, 2 * inputs);
    _tile_dpbf16ps(2, 5, 6);
    if (blocks == 2) {
      _tile_loadd(7, second + i * SIDE, ROW_BYTES);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (ahead)
      for (int64_t line = 0; line < GROUP; line++)
        _mm_prefetch(ahead + (i / DEPTH * GROUP + line) * ROW_BYTES, _MM_HINT_T1);
  }
  _tile_stored(0, sums, ROW_BYTES);
  _tile_stored(2, sums + blocks * SIDE * SIDE, ROW_BYTES);
  if (blocks == 2) {
    _tile_stored(1, sums + SIDE * SIDE, ROW_BYTES);
    _tile_stored(3, sums + 3 * SIDE * SIDE, ROW_BYTES);
  }
}

/* Sums [SIDE outputs, SIDE rows] to the first `rows` rows of SIDE outputs, which lie `apart` from each other. */
HOT void finish(const float *sums, const uint16_t *bias, int64_t rows, uint16_t *out, int64_t apart) {
  const vfloat offset = bias ? load_bf16(bias) : splat(0);
  __m512i square[SIDE];
  for (int i = 0; i < SIDE; i++) square[i] = _mm512_load_si512(sums + i * SIDE);
  transpose(square);
  for (int64_t row = 0; row < rows; row++) store_bf16(out + row * apart, (vfloat)square[row] + offset);
}

/* A linear layer. */
typedef struct {
  const uint16_t *weight, *bias;
  int64_t inputs, outputs;
} layer;

/* All rows through the GROUP outputs from `first` on. The weight comes from memory for the first of them, and with it,
   in the order of memory, what follows it. */
HOT void group_of_outputs(const layer *l, int64_t first, const uint16_t *packed, int64_t rows, uint16_t *out) {
  const uint16_t *weight = l->weight + first * l->inputs;
  float sums[4 * SIDE * SIDE] __attribute__((aligned(64)));
  for (int64_t row = 0; row < rows; row += GROUP) {
    const char *ahead = row == 0 ? (const char *)(weight + GROUP * l->inputs) : 0;
    const int blocks = rows - row > SIDE ? 2 : 1;
    if (blocks == 1)
      multiply(weight, l->inputs, packed + row * l->inputs, 1, ahead, sums);
    else
      multiply(weight, l->inputs, packed + row * l->inputs, 2, ahead, sums);
    for (int part = 0; part < 2 * blocks; part++) {
      const int64_t output = first + part / blocks * SIDE, from = row + part % blocks * SIDE, left = rows - from;
      finish(sums + part * SIDE * SIDE, l->bias ? l->bias + output : 0, left < SIDE ? left : SIDE,
             out + from * l->outputs + output, l->outputs);
    }
  }
}

/* x [rows, inputs], weight [outputs, inputs], bias [outputs] or null, out [rows, outputs]; inputs in whole DEPTHs, at
   least GROUP outputs. `packed` has room for ROWS_AT_ONCE rows of x, or for fewer in whole SIDEs. */
void tile_product(const uint16_t *x, const uint16_t *weight, const uint16_t *bias, uint16_t *out, uint16_t *packed,
                  int64_t rows, int64_t inputs, int64_t outputs) {
  const layer l = {weight, bias, inputs, outputs};
#pragma omp parallel
  {
    configuration before, ours = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
      ours.row_bytes[tile] = ROW_BYTES;
      ours.rows[tile] = SIDE;
    }
    _tile_storeconfig(&before); /* torch goes by what it has loaded last */
    _tile_loadconfig(&ours);
    for (int64_t begin = 0; begin < rows; begin += ROWS_AT_ONCE) {
      const int64_t count = rows - begin < ROWS_AT_ONCE ? rows - begin : ROWS_AT_ONCE;
      pack(x + begin * inputs, count, inputs, packed);
#pragma omp for schedule(static)
      for (int64_t output = 0; output < outputs; output += GROUP) {
        /* where outputs do not come out even, the last group reaches back, and computes the same numbers again */
        const int64_t first = output + GROUP > outputs ? outputs - GROUP : output;
        group_of_outputs(&l, first, packed, count, out + begin * outputs);
      }
    }
    if (before.palette)
      _tile_loadconfig(&before);
    else
      _tile_release();
  }
}
#else /* a processor without tiles */
void tiles_ready(int64_t *ready) { *ready = 0; }
void tile_product(const uint16_t *x, const uint16_t *weight, const uint16_t *bias, uint16_t *out, uint16_t *packed,
                  int64_t rows, int64_t inputs, int64_t outputs) {
  (void)x, (void)weight, (void)bias, (void)out, (void)packed, (void)rows, (void)inputs, (void)outputs;
}
#endif
