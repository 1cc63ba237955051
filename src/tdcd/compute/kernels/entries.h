// What Python calls: descend and embed, in float and double.

#define TDCD_ENTRIES(T)                                                                                               \
  extern "C" void tdcd_descend_##T(const int *numbers, const T *const *weights, const T *features,                     \
                                   const int64_t *samples, int64_t count, int E, int loss, double positive,            \
                                   const T *stale, const T *labels, const int64_t *classes, const T *share, int steps, \
                                   double rate, int64_t clients, const int64_t *firsts, const int64_t *counts,         \
                                   int uniform, int groups, int64_t size, double *sums, int threads) {                 \
    Rows<T> rows{features, samples, E, loss, (T)positive, stale, labels, classes, share};                              \
    Clients dealt{clients, count, firsts, counts, uniform};                                                            \
    descend<T, Net>(network<T>(numbers, weights), rows, steps, (T)rate, dealt, groups, size, sums, threads);           \
  }                                                                                                                    \
  extern "C" void tdcd_embed_##T(const int *numbers, const T *const *weights, const T *features,                       \
                                 const int64_t *samples, int64_t count, int E, T *out, int threads) {                  \
    embed<T, Net>(network<T>(numbers, weights), features, samples, count, E, out, threads);                            \
  }

TDCD_ENTRIES(float)
TDCD_ENTRIES(double)
