/* Whole numbers times their places, added up modulo 2^64: what a fingerprint of memory is made of. */
#include <stdint.h>

#define BLOCK 65536 /* numbers that one thread takes at a time */

#define WEIGHTED_SUM(kind)                                                                                             \
  static uint64_t weighted_sum_##kind(const kind *numbers, int32_t before, int32_t count) {                            \
    uint64_t total = 0;                                                                                                \
    for (int32_t i = 0; i < count; i++)                                                                                \
      total += (uint64_t)((int64_t)numbers[i] * (before + i + 1));                                                     \
    return total;                                                                                                      \
  }

WEIGHTED_SUM(int32_t)
WEIGHTED_SUM(int16_t)

/* Numbers [count] of `bytes` each, 4 or 2, are added to sums of zero, one per `chunk` of them, a multiple of BLOCK, in
   which places count from 1. */
void weighted_sums(const void *numbers, int64_t count, int64_t bytes, int64_t chunk, uint64_t *sums) {
#pragma omp parallel for if (count > BLOCK)
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    const int32_t size = (int32_t)(count - begin < BLOCK ? count - begin : BLOCK), before = (int32_t)(begin % chunk);
    const uint64_t part = bytes == 4 ? weighted_sum_int32_t((const int32_t *)numbers + begin, before, size)
                                     : weighted_sum_int16_t((const int16_t *)numbers + begin, before, size);
#pragma omp atomic
    sums[begin / chunk] += part;
  }
}
