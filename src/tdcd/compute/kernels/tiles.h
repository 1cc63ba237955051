// Small matrix products in registers, and the losses: what the kernels have in common. Vectors are 64 bytes; buffers are
// padded to whole vectors and aligned.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define TDCD_UNROLL _Pragma("GCC unroll 16")

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

enum Loss { cross_entropy = 0, binary = 1, squared = 2 };

// The labels and stale embeddings of a silo's rows, in shard order, and how they are judged.
template <class T> struct Target {
  int loss;
  T positive;
  int E;
  const int64_t *samples;  // of every row
  const T *stale;          // (rows, E)
  const T *labels;         // binary: (samples); squared: (samples, E)
  const int64_t *classes;  // cross-entropy: (samples)
};

// Turn embeddings Z (E, rows) of the rows from `first` on into the gradient of their losses, each weighing `share`;
// padding after `count` rows gets zero.
template <class T> void loss_gradient(const Target<T> &s, int64_t first, int count, int rows, T share, T *Z) {
  int E = s.E;
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

// Do groups 0 .. count-1, each by one of the threads, each thread at a desk of its own. What a group gives depends on
// the group alone, whatever the threads.
template <class Make, class Work> void in_groups(int count, int threads, Make make, Work work) {
  std::atomic<int> next(0);
  auto run = [&]() {
    auto desk = make();
    for (int g; (g = next++) < count;) work(desk, g);
  };
  std::vector<std::thread> pool;
  for (int t = 1; t < threads && t < count; t++) pool.emplace_back(run);
  run();
  for (auto &thread : pool) thread.join();
}

}  // namespace
