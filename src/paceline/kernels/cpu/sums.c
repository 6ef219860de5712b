/* Whole numbers times their places, added up modulo 2^64: what a fingerprint of memory is made of. */
#include <stdint.h>
#include <string.h>

#define BLOCK 65536 /* numbers that one thread takes at a time */

#define LANES 32    /* sums side by side: enough registers to wait for memory and not for additions */

/* In a lane of K rows, of which `late` has added up the sums after every row,

       sum over k of k * number_k = K * sum of all - late,    k from 0,

   so that a number costs two additions, and no product of 64 bits. */
#define WEIGHTED_SUM(kind)                                                                                             \
  static uint64_t weighted_sum_##kind(const kind *numbers, int32_t before, int32_t count) {                            \
    uint64_t sum[LANES] = {0}, late[LANES] = {0}, total = 0;                                                           \
    const int32_t rows = count / LANES;                                                                                \
    for (int32_t row = 0; row < rows; row++)                                                                           \
      for (int lane = 0; lane < LANES; lane++) {                                                                       \
        sum[lane] += (uint64_t)(int64_t)numbers[row * LANES + lane];                                                   \
        late[lane] += sum[lane];                                                                                       \
      }                                                                                                                \
    for (int lane = 0; lane < LANES; lane++)                                                                           \
      total += sum[lane] * (uint64_t)(before + lane + 1 + LANES * rows) - late[lane] * LANES;                          \
    for (int32_t i = rows * LANES; i < count; i++) total += (uint64_t)((int64_t)numbers[i] * (before + i + 1));        \
    return total;                                                                                                      \
  }

WEIGHTED_SUM(int32_t)
WEIGHTED_SUM(int16_t)

/* Numbers [count] of `bytes` each, 4 or 2, are added to sums of zero, one per `chunk` of them, a multiple of BLOCK, in
   which places count from 1. Where there is a `source` they are first copied from it, block by block, so that what is
   added up is what has been written, while it is in a core's own cache. */
void weighted_sums(void *numbers, const void *source, int64_t count, int64_t bytes, int64_t chunk, uint64_t *sums) {
#pragma omp parallel for if (count > BLOCK)
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    const int32_t size = (int32_t)(count - begin < BLOCK ? count - begin : BLOCK), before = (int32_t)(begin % chunk);
    char *block = (char *)numbers + begin * bytes;
    if (source) memcpy(block, (const char *)source + begin * bytes, (size_t)(size * bytes));
    const uint64_t part = bytes == 4 ? weighted_sum_int32_t((const int32_t *)block, before, size)
                                     : weighted_sum_int16_t((const int16_t *)block, before, size);
#pragma omp atomic
    sums[begin / chunk] += part;
  }
}
