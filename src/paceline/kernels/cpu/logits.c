/* One pass over the logits of a token for its statistics, one for their gradients. Rows are independent. */
#include <math.h>

#include "vectors.h"

#define BLOCK 4096 /* elements added up in float32; the sums of the blocks are added up in double */
#define ABSENT -1e30f /* stands for elements beyond the last: finite, and its exponential is 0 */

HOT vfloat some_of(const void *row, int64_t at, int64_t count, int kind) {
  return count >= WIDTH ? load_any(row, at, kind) : load_rest(row, at, count, ABSENT, kind);
}

HOT void row_statistics(const void *row, int64_t target, int64_t count, int kind, float inverse, float *logprob,
                        float *entropy, float *normaliser) {
  vfloat most = splat(ABSENT);
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vfloat x = some_of(row, i, count - i, kind);
    const vint less = most >= x; /* so that not-a-number stays */
    most = (vfloat)(((vint)most & less) | ((vint)x & ~less));
  }
  const float top = largest(most);
  double total = 0, mean = 0;
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    vfloat part = splat(0), weighted = splat(0);
    for (int64_t i = begin; i < begin + BLOCK && i < count; i += WIDTH) {
      const vfloat shifted = (some_of(row, i, count - i, kind) - top) * inverse, e = exp_v(shifted);
      part += e;
      weighted += (vfloat)((vint)(e * shifted) & ~(vint)(e == 0.0f)); /* 0 * -infinity is 0 here */
    }
    total += sum(part);
    mean += sum(weighted);
  }
  const double log_total = log(total);
  *logprob = (load_one(row, target, kind) - top) * inverse - log_total;
  *entropy = log_total - mean / total;
  *normaliser = top * inverse + log_total;
}

/* Logits [rows, count] of one storage type; targets [rows]; `inverse` is 1 / temperature; the others are [rows]:
   log-probability of the target, entropy, log of the sum of exponentials, all of the scaled logits. */
void logit_statistics(const void *logits, const int64_t *targets, int64_t rows, int64_t count, int64_t kind,
                      float inverse, float *logprobs, float *entropies, float *normalisers) {
  const int64_t bytes = count * (kind == FLOAT32 ? 4 : 2);
#pragma omp parallel for if (rows * count > 1 << 14)
  for (int64_t r = 0; r < rows; r++) {
    const char *row = (const char *)logits + r * bytes;
    if (kind == FLOAT32)
      row_statistics(row, targets[r], count, FLOAT32, inverse, logprobs + r, entropies + r, normalisers + r);
    else
      row_statistics(row, targets[r], count, BFLOAT16, inverse, logprobs + r, entropies + r, normalisers + r);
  }
}

HOT void row_gradients(void *row, int64_t target, int64_t count, int kind, float inverse, float normaliser,
                       float entropy, float by_logprob, float by_entropy) {
  const float sure = load_one(row, target, kind) * inverse - normaliser;
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vfloat log_p = some_of(row, i, count - i, kind) * inverse - normaliser, p = exp_v(log_p);
    vfloat grad = -p * (by_logprob + by_entropy * (log_p + entropy));
    grad = (vfloat)((vint)grad & ~(vint)(p == 0.0f)); /* 0 * -infinity is 0 here */
    if (count - i >= WIDTH)
      store_any(row, i, grad, kind);
    else
      store_rest(row, i, count - i, grad, kind);
  }
  /* apart from the others: 1 - p of a sure token would drown in the rounding of p */
  const float p_target = exp_v(splat(sure))[0];
  const float pulled = p_target == 0 ? 0 : p_target * (by_logprob + by_entropy * (sure + entropy));
  const float at_target = by_logprob - pulled;
  store_one(row, target, at_target, kind);
}

/* Logits overwritten by the gradient by the scaled logits; `by_logprobs` and `by_entropies` may be null. */
void logit_gradients(void *logits, const int64_t *targets, int64_t rows, int64_t count, int64_t kind, float inverse,
                     const float *normalisers, const float *entropies, const float *by_logprobs,
                     const float *by_entropies) {
  const int64_t bytes = count * (kind == FLOAT32 ? 4 : 2);
#pragma omp parallel for if (rows * count > 1 << 14)
  for (int64_t r = 0; r < rows; r++) {
    const float first = by_logprobs ? by_logprobs[r] : 0, second = by_entropies ? by_entropies[r] : 0;
    char *row = (char *)logits + r * bytes;
    if (kind == FLOAT32)
      row_gradients(row, targets[r], count, FLOAT32, inverse, normalisers[r], entropies[r], first, second);
    else
      row_gradients(row, targets[r], count, BFLOAT16, inverse, normalisers[r], entropies[r], first, second);
  }
}
