// The Q local steps of many clients whose network is a chain of dense layers, each client's weights, rows and
// activations in the cache from its first step to its last. Any widths, float or double, three losses.
//
// Layouts, all padded to whole vectors and aligned:
//   W  (out, in)    a layer's weights, rows padded
//   H  (in, rows)   a layer's input, feature by feature: vectors run over the client's rows
//   R  (rows, in)   the same, row by row: vectors run over features, for the weights' gradient
//   G  (out, rows)  the gradient at a layer's output

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define TDCD_UNROLL _Pragma("GCC unroll 8")

namespace {

template <class T> struct Vec {
  typedef T type __attribute__((vector_size(64), may_alias));
  static constexpr int width = 64 / sizeof(T);
};

template <class T> inline typename Vec<T>::type all(T value) {
  typedef typename Vec<T>::type V;
  return value - V{};  // a broadcast: x - 0 is x, also for -0
}

template <class T> int padded(int count) { return (count + Vec<T>::width - 1) / Vec<T>::width * Vec<T>::width; }

template <class T> struct Buffer {
  T *data = nullptr;
  explicit Buffer(size_t count) {
    size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data = static_cast<T *>(std::aligned_alloc(64, bytes ? bytes : 64));
    std::memset(data, 0, bytes);
  }
  Buffer(Buffer &&other) noexcept : data(other.data) { other.data = nullptr; }
  Buffer(const Buffer &) = delete;
  ~Buffer() { std::free(data); }
};

// Z[o][r] = start[o] + sum_k A(o,k) B[k][r] for O outputs and R vectors of rows; A(o,k) lies at A[o*across + k*along].
template <class T, int O, int R>
inline void tile(int depth, const T *A, int across, int along, const T *B, int ldb, T *Z, int ldz, const T *start) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  V sum[O][R];
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int r = 0; r < R; r++) sum[o][r] = all<T>(start ? start[o] : T(0));
  for (int k = 0; k < depth; k++) {
    V b[R];
    TDCD_UNROLL for (int r = 0; r < R; r++) b[r] = *(const V *)(B + (size_t)k * ldb + r * L);
    TDCD_UNROLL for (int o = 0; o < O; o++) {
      V a = all<T>(A[(size_t)o * across + (size_t)k * along]);
      TDCD_UNROLL for (int r = 0; r < R; r++) sum[o][r] += a * b[r];
    }
  }
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int r = 0; r < R; r++) *(V *)(Z + (size_t)o * ldz + r * L) = sum[o][r];
}

template <class T, int R>
void rows_of(int outs, int depth, const T *A, int across, int along, const T *B, int ldb, T *Z, int ldz, const T *start) {
  int o = 0;
  for (; o + 6 <= outs; o += 6)
    tile<T, 6, R>(depth, A + (size_t)o * across, across, along, B, ldb, Z + (size_t)o * ldz, ldz, start ? start + o : nullptr);
  for (; o + 2 <= outs; o += 2)
    tile<T, 2, R>(depth, A + (size_t)o * across, across, along, B, ldb, Z + (size_t)o * ldz, ldz, start ? start + o : nullptr);
  for (; o < outs; o++)
    tile<T, 1, R>(depth, A + (size_t)o * across, across, along, B, ldb, Z + (size_t)o * ldz, ldz, start ? start + o : nullptr);
}

template <class T>
void product(int outs, int depth, int rows, const T *A, int across, int along, const T *B, T *Z, const T *start) {
  constexpr int L = Vec<T>::width;
  int r = 0;
  for (; r + 3 * L <= rows; r += 3 * L) rows_of<T, 3>(outs, depth, A, across, along, B + r, rows, Z + r, rows, start);
  if (rows - r == 2 * L) rows_of<T, 2>(outs, depth, A, across, along, B + r, rows, Z + r, rows, start);
  if (rows - r == L) rows_of<T, 1>(outs, depth, A, across, along, B + r, rows, Z + r, rows, start);
}

// W[o][i] -= rate * sum_r G[o][r] X[r][i] for O outputs and I vectors of inputs.
template <class T, int O, int I>
inline void update(int count, const T *G, int ldg, const T *X, int ldx, T *W, int ldw, T rate) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  V sum[O][I];
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int i = 0; i < I; i++) sum[o][i] = all<T>(T(0));
  for (int r = 0; r < count; r++) {
    V x[I];
    TDCD_UNROLL for (int i = 0; i < I; i++) x[i] = *(const V *)(X + (size_t)r * ldx + i * L);
    TDCD_UNROLL for (int o = 0; o < O; o++) {
      V g = all<T>(G[(size_t)o * ldg + r]);
      TDCD_UNROLL for (int i = 0; i < I; i++) sum[o][i] += g * x[i];
    }
  }
  V step = all<T>(rate);
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int i = 0; i < I; i++) {
      V *w = (V *)(W + (size_t)o * ldw + i * L);
      *w -= step * sum[o][i];
    }
}

template <class T, int I>
void update_inputs(int outs, int count, const T *G, int ldg, const T *X, int ldx, T *W, int ldw, T rate) {
  int o = 0;
  for (; o + 4 <= outs; o += 4) update<T, 4, I>(count, G + (size_t)o * ldg, ldg, X, ldx, W + (size_t)o * ldw, ldw, rate);
  for (; o < outs; o++) update<T, 1, I>(count, G + (size_t)o * ldg, ldg, X, ldx, W + (size_t)o * ldw, ldw, rate);
}

template <class T>
void descend_weights(int outs, int ins, int count, const T *G, int ldg, const T *X, T *W, T rate) {
  constexpr int L = Vec<T>::width;
  int i = 0;
  for (; i + 4 * L <= ins; i += 4 * L) update_inputs<T, 4>(outs, count, G, ldg, X + i, ins, W + i, ins, rate);
  for (; i + 2 * L <= ins; i += 2 * L) update_inputs<T, 2>(outs, count, G, ldg, X + i, ins, W + i, ins, rate);
  for (; i < ins; i += L) update_inputs<T, 1>(outs, count, G, ldg, X + i, ins, W + i, ins, rate);
}

enum Activation { none = 0, relu = 1, tanh_ = 2, sigmoid = 3 };
enum Loss { cross_entropy = 0, binary = 1, squared = 2 };

template <class T> void activate(int kind, size_t count, T *h) {
  if (kind == relu)
    for (size_t i = 0; i < count; i++) h[i] = h[i] > 0 ? h[i] : T(0);
  else if (kind == tanh_)
    for (size_t i = 0; i < count; i++) h[i] = std::tanh(h[i]);
  else if (kind == sigmoid)
    for (size_t i = 0; i < count; i++) h[i] = T(1) / (T(1) + std::exp(-h[i]));
}

template <class T> void through(int kind, size_t count, T *g, const T *h) {
  if (kind == relu)
    for (size_t i = 0; i < count; i++) g[i] = h[i] > 0 ? g[i] : T(0);
  else if (kind == tanh_)
    for (size_t i = 0; i < count; i++) g[i] *= T(1) - h[i] * h[i];
  else if (kind == sigmoid)
    for (size_t i = 0; i < count; i++) g[i] *= h[i] * (T(1) - h[i]);
}

template <class T> void transpose(int ins, int count, const T *H, int ldh, T *R, int ldr) {
  constexpr int block = 16;  // a block's lines stay in the nearest cache
  for (int first = 0; first < ins; first += block) {
    int last = first + block < ins ? first + block : ins;
    for (int r = 0; r < count; r++)
      for (int i = first; i < last; i++) R[(size_t)r * ldr + i] = H[(size_t)i * ldh + r];
  }
}

// What all clients of a silo have in common.
template <class T> struct Silo {
  int layers;
  const int *dims;         // layers + 1 widths
  const int *activations;  // after each layer
  const T *const *W;
  const T *const *b;  // a null pointer for a layer without bias
  int loss;
  T positive;
  int steps;
  T rate;
  const T *features;
  const int64_t *samples;  // of every row, in shard order
  const T *stale;          // (rows, E), in shard order
  const T *labels;         // binary: (samples); squared: (samples, E)
  const int64_t *classes;  // cross-entropy: (samples)
};

// Turn the embedding Z (E, rows) into the gradient of the client's mean loss there; padding gets zero.
template <class T> void loss_gradient(const Silo<T> &s, int64_t first, int count, int rows, T *Z) {
  int E = s.dims[s.layers];
  T share = T(1) / T(count);
  std::vector<T> z(E);
  for (int r = 0; r < rows; r++) {
    if (r >= count) {
      for (int e = 0; e < E; e++) Z[(size_t)e * rows + r] = 0;
      continue;
    }
    int64_t sample = s.samples[first + r];
    for (int e = 0; e < E; e++) z[e] = Z[(size_t)e * rows + r] + s.stale[(first + r) * E + e];
    if (s.loss == cross_entropy) {
      T most = z[0], total = 0;
      for (int e = 1; e < E; e++) most = z[e] > most ? z[e] : most;
      for (int e = 0; e < E; e++) total += z[e] = std::exp(z[e] - most);
      for (int e = 0; e < E; e++) z[e] = z[e] / total - (e == s.classes[sample] ? T(1) : T(0));
    } else if (s.loss == binary) {
      T y = s.labels[sample];
      z[0] = (T(1) / (T(1) + std::exp(-z[0])) - y) * (T(1) + (s.positive - T(1)) * y);
    } else {
      for (int e = 0; e < E; e++) z[e] = (z[e] - s.labels[sample * E + e]) * (T(2) / T(E));
    }
    for (int e = 0; e < E; e++) Z[(size_t)e * rows + r] = z[e] * share;
  }
}

// One thread's memory for a client of at most so many rows.
template <class T> struct Desk {
  std::vector<Buffer<T>> W, b, H, R;
  Buffer<T> one, two;
  Desk(const Silo<T> &s, int rows) : one(widest(s) * rows), two(widest(s) * rows) {
    for (int l = 0; l < s.layers; l++) {
      W.emplace_back((size_t)s.dims[l + 1] * padded<T>(s.dims[l]));
      b.emplace_back(s.dims[l + 1]);
      H.emplace_back((size_t)s.dims[l] * rows);
      R.emplace_back((size_t)rows * padded<T>(s.dims[l]));
    }
  }
  static size_t widest(const Silo<T> &s) {
    int most = 1;
    for (int l = 1; l <= s.layers; l++) most = s.dims[l] > most ? s.dims[l] : most;
    return most;
  }
};

template <class T> void client(const Silo<T> &s, int64_t first, int count, Desk<T> &desk, double weight, double *sums) {
  int rows = padded<T>(count), D = s.dims[0], last = s.layers - 1;
  for (int l = 0; l < s.layers; l++) {
    int in = s.dims[l], out = s.dims[l + 1], wide = padded<T>(in);
    for (int o = 0; o < out; o++) std::memcpy(desk.W[l].data + (size_t)o * wide, s.W[l] + (size_t)o * in, in * sizeof(T));
    if (s.b[l]) std::memcpy(desk.b[l].data, s.b[l], out * sizeof(T));
  }
  int wide = padded<T>(D);
  for (int r = 0; r < rows; r++) {
    const T *x = r < count ? s.features + s.samples[first + r] * (int64_t)D : nullptr;
    if (x) std::memcpy(desk.R[0].data + (size_t)r * wide, x, D * sizeof(T));
    for (int i = 0; i < D; i++) desk.H[0].data[(size_t)i * rows + r] = x ? x[i] : T(0);
  }
  for (int step = 0; step < s.steps; step++) {
    T *z = desk.one.data, *other = desk.two.data;
    for (int l = 0; l < s.layers; l++) {
      int in = s.dims[l], out = s.dims[l + 1];
      T *to = l == last ? z : desk.H[l + 1].data;
      product<T>(out, in, rows, desk.W[l].data, padded<T>(in), 1, desk.H[l].data, to, s.b[l] ? desk.b[l].data : nullptr);
      activate<T>(s.activations[l], (size_t)out * rows, to);
      if (l != last) transpose<T>(out, count, to, rows, desk.R[l + 1].data, padded<T>(out));
    }
    loss_gradient<T>(s, first, count, rows, z);
    for (int l = last; l >= 0; l--) {
      int in = s.dims[l], out = s.dims[l + 1];
      if (l) {
        product<T>(in, out, rows, desk.W[l].data, 1, padded<T>(in), z, other, nullptr);
        through<T>(s.activations[l - 1], (size_t)in * rows, other, desk.H[l].data);
      }
      descend_weights<T>(out, padded<T>(in), count, z, rows, desk.R[l].data, desk.W[l].data, s.rate);
      if (s.b[l])
        for (int o = 0; o < out; o++) {
          T total = 0;
          for (int r = 0; r < count; r++) total += z[(size_t)o * rows + r];
          desk.b[l].data[o] -= s.rate * total;
        }
      std::swap(z, other);
    }
  }
  for (int l = 0; l < s.layers; l++) {
    int in = s.dims[l], out = s.dims[l + 1], wide = padded<T>(in);
    for (int o = 0; o < out; o++)
      for (int i = 0; i < in; i++) *sums++ += weight * (double)desk.W[l].data[(size_t)o * wide + i];
    if (s.b[l])
      for (int o = 0; o < out; o++) *sums++ += weight * (double)desk.b[l].data[o];
  }
}

// Clients start[g] .. start[g+1]-1 make group g, whose weighted sum goes to sums[g]: fixed, whatever the threads.
template <class T>
void groups(const Silo<T> &s, int count, const int64_t *bounds, const int64_t *firsts, const int64_t *counts, int uniform,
            int64_t weights, double *sums, int threads) {
  std::atomic<int> next(0);
  int64_t most = 1;
  for (int64_t k = 0; k < bounds[count]; k++) most = counts[k] > most ? counts[k] : most;
  auto work = [&]() {
    Desk<T> desk(s, padded<T>((int)most));
    for (int g; (g = next++) < count;) {
      for (int64_t k = bounds[g]; k < bounds[g + 1]; k++)
        client<T>(s, firsts[k], (int)counts[k], desk, uniform ? 1.0 : (double)counts[k], sums + g * weights);
    }
  };
  std::vector<std::thread> pool;
  for (int t = 1; t < threads && t < count; t++) pool.emplace_back(work);
  work();
  for (auto &thread : pool) thread.join();
}

}  // namespace

#define TDCD_DENSE(NAME, T)                                                                                          \
  extern "C" void NAME(int layers, const int *dims, const int *activations, const T *const *W, const T *const *b,   \
                       int loss, double positive, int steps, double rate, const T *features, const int64_t *samples, \
                       const T *stale, const T *labels, const int64_t *classes, int count, const int64_t *bounds,    \
                       const int64_t *firsts, const int64_t *counts, int uniform, int64_t weights, double *sums,     \
                       int threads) {                                                                                \
    Silo<T> s{layers, dims, activations, W, b, loss, (T)positive, steps, (T)rate, features, samples, stale, labels, classes}; \
    groups<T>(s, count, bounds, firsts, counts, uniform, weights, sums, threads);                                    \
  }

TDCD_DENSE(tdcd_dense_float, float)
TDCD_DENSE(tdcd_dense_double, double)
