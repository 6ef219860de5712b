/* Vectors of float32 values, bfloat16 in memory, exp. GCC and Clang lower them to whatever the processor has. */
#ifndef PACELINE_VECTORS_H
#define PACELINE_VECTORS_H

#include <stdint.h>
#include <string.h>

/* Values in a vector: one register, as wider vectors than that are kept in memory. */
#ifdef __AVX512F__
#define WIDTH 16
#else
#define WIDTH 8
#endif
#define HOT static inline __attribute__((always_inline))

typedef float vfloat __attribute__((vector_size(4 * WIDTH)));
typedef int32_t vint __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t vuint __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t vhalf __attribute__((vector_size(2 * WIDTH)));

/* Storage types of tensors: the same numbers as in native/tensors.py. */
enum { FLOAT32 = 0, BFLOAT16 = 1 };

HOT vfloat splat(float x) {
#if WIDTH == 16
  return (vfloat){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
  return (vfloat){x, x, x, x, x, x, x, x};
#endif
}

HOT vfloat load_f32(const float *p) {
  vfloat v;
  memcpy(&v, p, sizeof v);
  return v;
}

HOT void store_f32(float *p, vfloat v) { memcpy(p, &v, sizeof v); }

/* bfloat16 is the upper half of float32. */
HOT vfloat load_bf16(const uint16_t *p) {
  vhalf h;
  memcpy(&h, p, sizeof h);
  vuint wide = __builtin_convertvector(h, vuint) << 16;
  return (vfloat)wide;
}

/* Rounded to nearest, ties to even, as torch rounds; not-a-number stays one. */
HOT void store_bf16(uint16_t *p, vfloat v) {
  vuint bits = (vuint)v;
  vuint rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  vint is_nan = v != v;
  rounded = (rounded & ~(vuint)is_nan) | ((vuint)is_nan & 0x7fc0);
  vhalf h = __builtin_convertvector(rounded, vhalf);
  memcpy(p, &h, sizeof h);
}

/* One value of a tensor of either storage type, as float32. */
HOT float load_one(const void *p, int64_t i, int type) {
  if (type == FLOAT32) return ((const float *)p)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

HOT void store_one(void *p, int64_t i, float x, int type) {
  if (type == FLOAT32) {
    ((float *)p)[i] = x;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  ((uint16_t *)p)[i] = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* WIDTH values from the i-th on. */
HOT vfloat load_any(const void *p, int64_t i, int type) {
  return type == FLOAT32 ? load_f32((const float *)p + i) : load_bf16((const uint16_t *)p + i);
}

HOT void store_any(void *p, int64_t i, vfloat v, int type) {
  if (type == FLOAT32)
    store_f32((float *)p + i, v);
  else
    store_bf16((uint16_t *)p + i, v);
}

/* The first `count` < WIDTH values from the i-th on, `filler` behind them: what a row leaves after whole vectors. */
HOT vfloat load_rest(const void *p, int64_t i, int64_t count, float filler, int type) {
  vfloat v = splat(filler);
  for (int64_t j = 0; j < count; j++) v[j] = load_one(p, i + j, type);
  return v;
}

HOT void store_rest(void *p, int64_t i, int64_t count, vfloat v, int type) {
  for (int64_t j = 0; j < count; j++) store_one(p, i + j, v[j], type);
}

/* The vector with lane i at i ^ distance. */
HOT vfloat swapped(vfloat v, const int distance) {
  vint from;
  for (int i = 0; i < WIDTH; i++) from[i] = i ^ distance;
#ifdef __clang__
  vfloat moved;
  for (int i = 0; i < WIDTH; i++) moved[i] = v[from[i]];
  return moved;
#else
  return __builtin_shuffle(v, from);
#endif
}

HOT vfloat max_v(vfloat a, vfloat b) {
  vint greater = a > b;
  return (vfloat)(((vint)a & greater) | ((vint)b & ~greater));
}

/* In a tree: half as many lanes at each of a few steps. */
HOT float sum(vfloat v) {
  if (WIDTH == 16) v += swapped(v, 8);
  v += swapped(v, 4);
  v += swapped(v, 2);
  v += swapped(v, 1);
  return v[0];
}

HOT float largest(vfloat v) {
  if (WIDTH == 16) v = max_v(v, swapped(v, 8));
  v = max_v(v, swapped(v, 4));
  v = max_v(v, swapped(v, 2));
  v = max_v(v, swapped(v, 1));
  return v[0];
}

/* e^x to about 2 units in the last place of float32; below -87 it gives 0, above 88 it stays at e^88.

   2^n * 2^f with n the nearest integer to x / ln 2 and a polynomial of degree 6 for e^(f ln 2), |f| <= 1/2: the
   coefficients are Taylor's, whose error at 0.35 is below float32's rounding. */
HOT vfloat exp_v(vfloat x) {
  vint tiny = x < splat(-87.0f);
  vint huge = x > splat(88.0f);
  x = (vfloat)(((vint)x & ~huge) | (huge & (vint)splat(88.0f)));
  x = (vfloat)((vint)x & ~tiny);
  const vfloat magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  vfloat n = (x * 1.44269504f + magic) - magic;
  vfloat r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f; /* ln 2 in two parts: the first has few digits, so that n times it is exact */
  vfloat p = splat(1.0f / 720);
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  vint exponent = (__builtin_convertvector(n, vint) + 127) << 23;
  vfloat result = p * (vfloat)exponent;
  return (vfloat)((vint)result & ~tiny);
}

/* tanh x: Taylor's polynomial below 1/4, where its error is below float32's rounding, and where 1 - 2 / (e^2x + 1), the
   way beyond, would lose digits. */
HOT vfloat tanh_v(vfloat x) {
  const vfloat square = x * x;
  vfloat p = splat(62.0f / 2835);
  p = p * square - 17.0f / 315;
  p = p * square + 2.0f / 15;
  p = p * square - 1.0f / 3;
  const vfloat near = x + x * square * p, far = 1.0f - 2.0f / (exp_v(2.0f * x) + 1.0f);
  const vint small = square < splat(0.0625f);
  return (vfloat)(((vint)near & small) | ((vint)far & ~small));
}

#endif
