// What Python calls: descend and embed, in float and double.
//
// Every array comes with its length. Whatever does not fit is refused by a code, before anything is read or written; no
// exception leaves a call.

namespace {

enum Code { done = 0, bad_network = 1, bad_samples = 2, bad_loss = 3, bad_clients = 4, bad_room = 5, no_memory = 6, failed = 7 };

template <class T> bool fits_loss(const Rows<T> &rows, int64_t count, int64_t population, Span<const T> stale,
                                  Span<const T> labels, Span<const int64_t> classes, Span<const T> share) {
  if (rows.loss < cross_entropy || rows.loss > given || !stale.at || stale.size != count * rows.E) return false;
  if (rows.share && share.size != count) return false;
  if (rows.loss == given) return true;
  if (rows.loss == cross_entropy) return classes.at && classes.size == population;
  return labels.at && labels.size == population * rows.E && (rows.loss != binary || rows.E == 1);
}

template <class Function> int guarded(Function function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc &) {
    return no_memory;
  } catch (...) {
    return failed;
  }
}

}  // namespace

#define TDCD_ENTRIES(T)                                                                                                \
  extern "C" int tdcd_descend_##T(Span<const int> numbers, Span<const Span<const T>> weights, Span<const T> features,  \
                                  Span<const int64_t> samples, int E, int loss, double positive, Span<const T> stale,  \
                                  Span<const T> labels, Span<const int64_t> classes, Span<const T> share, int steps,   \
                                  double rate, int64_t clients, Span<const int64_t> firsts,                            \
                                  Span<const int64_t> counts, int uniform, int groups, Span<double> sums, int returns, \
                                  int threads) {                                                                       \
    return guarded([&]() -> int {                                                                                      \
      Net<T> net;                                                                                                      \
      if (!network<T>(numbers, weights, net) || net.outputs() != E) return bad_network;                                \
      int64_t population = features.size / net.row(), size = 0;                                                        \
      if ((!features.at && features.size) || features.size % net.row() || !within(samples, population)) return bad_samples;\
      Rows<T> rows{features.at, samples.at, E, loss, (T)positive, stale.at, labels.at, classes.at, share.at};          \
      if (!fits_loss<T>(rows, samples.size, population, stale, labels, classes, share)) return bad_loss;               \
      Clients dealt{clients, samples.size, firsts.at, counts.at, uniform};                                             \
      if (!valid(dealt, firsts, counts) || groups < 1 || groups > clients) return bad_clients;                         \
      for (int64_t i = 0; i < weights.size; i++) size += weights.at[i].size;                                           \
      if (!sums.at || sums.size != size || steps < 0 || returns < weights_themselves || returns > bfloat16s) return bad_room;\
      Returned<T> returned((Returns)returns, weights, size);                                                           \
      descend<T, Net>(net, rows, steps, (T)rate, dealt, groups, returned, sums.at, threads);                           \
      return done;                                                                                                     \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" int tdcd_embed_##T(Span<const int> numbers, Span<const Span<const T>> weights, Span<const T> features,    \
                                Span<const int64_t> samples, int E, Span<T> out, int threads) {                        \
    return guarded([&]() -> int {                                                                                      \
      Net<T> net;                                                                                                      \
      if (!network<T>(numbers, weights, net) || net.outputs() != E) return bad_network;                                \
      int64_t population = features.size / net.row();                                                                  \
      if ((!features.at && features.size) || features.size % net.row() || !within(samples, population)) return bad_samples;\
      if (out.size != samples.size * E) return bad_room;                                                               \
      if (samples.size) embed<T, Net>(net, features.at, samples.at, samples.size, E, out.at, threads);                 \
      return done;                                                                                                     \
    });                                                                                                                \
  }

TDCD_ENTRIES(float)
TDCD_ENTRIES(double)
