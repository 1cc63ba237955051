// What the kernels have in common: small matrix products in registers, the losses, and the walk over a silo's clients.
//
// A client's rows are cut into blocks that stay in the cache. Inside a block every number of a row has a line of its
// own, and vectors run over the rows: a matrix is (numbers, rows). Lines are padded to whole vectors.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#define TDCD_UNROLL _Pragma("GCC unroll 16")

namespace {

#ifdef __AVX512F__
constexpr int vector_bytes = 64, tall = 8, broad = 3;  // a tile of 8 x 3 vectors fits 32 registers
#else
constexpr int vector_bytes = 32, tall = 4, broad = 2;
#endif

template <class T> struct Vec {
  typedef T type __attribute__((vector_size(vector_bytes), may_alias));
  static constexpr int width = vector_bytes / sizeof(T);
};

template <class T> inline typename Vec<T>::type all(T value) {
  typedef typename Vec<T>::type V;
  return value - V{};  // a broadcast: x - 0 is x, also for -0
}

template <class T> inline T sum_of(typename Vec<T>::type v) {
  T part[Vec<T>::width];
  std::memcpy(part, &v, sizeof v);
  TDCD_UNROLL for (int half = Vec<T>::width / 2; half; half /= 2)
    TDCD_UNROLL for (int i = 0; i < half; i++) part[i] += part[i + half];
  return part[0];
}

template <class T> struct Bits;
template <> struct Bits<float> {
  typedef int32_t type;
  static constexpr float magic = 12582912.f, most = 40.f;  // beyond, a gate is open or shut to the last bit
  static constexpr int shift = 23, bias = 127, degree = 6;
};
template <> struct Bits<double> {
  typedef int64_t type;
  static constexpr double magic = 6755399441055744.0, most = 300.0;
  static constexpr int shift = 52, bias = 1023, degree = 13;
};

// Transpose a square of as many vectors as a vector is wide, by swapping ever smaller blocks off its diagonal.
template <class T> inline void transpose(typename Vec<T>::type *v) {
  constexpr int L = Vec<T>::width;
  typedef typename Vec<T>::type V;
#ifdef __clang__
  V old[L];
  std::memcpy(old, v, sizeof old);
  for (int i = 0; i < L; i++)
    for (int j = 0; j < L; j++) v[i][j] = old[j][i];
#else
  typedef typename Bits<T>::type I __attribute__((vector_size(vector_bytes)));
  TDCD_UNROLL for (int s = L / 2; s; s /= 2) {
    I upper, lower;
    TDCD_UNROLL for (int i = 0; i < L; i++) {
      upper[i] = i & s ? L + i - s : i;
      lower[i] = i & s ? L + i : i + s;
    }
    TDCD_UNROLL for (int i = 0; i < L; i++) {
      if (i & s) continue;
      V a = v[i], b = v[i + s];
      v[i] = __builtin_shuffle(a, b, upper);
      v[i + s] = __builtin_shuffle(a, b, lower);
    }
  }
#endif
}

// An array and its length, as Python passes it.
template <class V> struct Span {
  V *at;
  int64_t size;
};

constexpr int largest = 1 << 24;  // of any of a network's numbers

inline int divided(int count, int by) { return (count + by - 1) / by; }
template <class T> int padded(int count) { return divided(count, Vec<T>::width) * Vec<T>::width; }

// Memory for a while. What is given back is kept for the next call: fresh pages cost more than a small network's round.
struct Store {
  std::mutex lock;
  std::multimap<size_t, void *> kept;
  size_t held = 0;
  static constexpr size_t most = 64 << 20;
  void *get(size_t bytes) {
    {
      std::lock_guard<std::mutex> guard(lock);
      auto found = kept.find(bytes);
      if (found != kept.end()) {
        void *data = found->second;
        kept.erase(found);
        held -= bytes;
        return data;
      }
    }
    void *data = std::aligned_alloc(64, bytes);
    if (!data) throw std::bad_alloc();
    return data;
  }
  void put(void *data, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (held + bytes > most) return std::free(data);
    kept.emplace(bytes, data);
    held += bytes;
  }
};
Store store;

template <class T> struct Buffer {
  T *data = nullptr;
  size_t bytes = 0;
  explicit Buffer(size_t count, bool clean = true) : bytes((count * sizeof(T) + 63) / 64 * 64) {
    if (!bytes) return;
    data = static_cast<T *>(store.get(bytes));
    if (clean) clear();
  }
  Buffer(Buffer &&other) noexcept : data(other.data), bytes(other.bytes) { other.data = nullptr; }
  Buffer(const Buffer &) = delete;
  ~Buffer() {
    if (data) store.put(data, bytes);
  }
  void clear() {
    if (bytes) std::memset(data, 0, bytes);
  }
};

constexpr bool unset = false;

// Where line k of a product's second factor begins.
struct Evenly {
  size_t apart;
  size_t operator()(int k) const { return k * apart; }
};
struct Listed {
  const size_t *at;
  size_t operator()(int k) const { return at[k]; }
};

// Z[o][r] = start[o] + sum_k A(o,k) B[k][r] for O outputs and R vectors of rows; A(o,k) lies at A[o*across + k*along].
template <class T, int O, int R, class Where>
inline void tile(int depth, const T *A, size_t across, size_t along, const T *B, Where where, T *Z, size_t ldz, const T *start) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  V sum[O][R];
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int r = 0; r < R; r++) sum[o][r] = all<T>(start ? start[o] : T(0));
  for (int k = 0; k < depth; k++) {
    const T *line = B + where(k);
    V b[R];
    TDCD_UNROLL for (int r = 0; r < R; r++) b[r] = *(const V *)(line + r * L);
    TDCD_UNROLL for (int o = 0; o < O; o++) {
      V a = all<T>(A[o * across + k * along]);
      TDCD_UNROLL for (int r = 0; r < R; r++) sum[o][r] += a * b[r];
    }
  }
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int r = 0; r < R; r++) *(V *)(Z + o * ldz + r * L) = sum[o][r];
}

template <class T, int R, class Where>
void stripe(int outs, int depth, const T *A, size_t across, size_t along, const T *B, Where where, T *Z, size_t ldz,
            const T *start) {
  int o = 0;
  for (; o + tall <= outs; o += tall)
    tile<T, tall, R>(depth, A + o * across, across, along, B, where, Z + o * ldz, ldz, start ? start + o : nullptr);
  for (; o + 2 <= outs; o += 2)
    tile<T, 2, R>(depth, A + o * across, across, along, B, where, Z + o * ldz, ldz, start ? start + o : nullptr);
  for (; o < outs; o++)
    tile<T, 1, R>(depth, A + o * across, across, along, B, where, Z + o * ldz, ldz, start ? start + o : nullptr);
}

// Z (outs, rows) = start + A (outs, depth) B (depth, rows).
template <class T, class Where>
void product(int outs, int depth, int rows, const T *A, size_t across, size_t along, const T *B, Where where, T *Z,
             size_t ldz, const T *start) {
  constexpr int L = Vec<T>::width;
  int r = 0;
  for (; r + broad * L <= rows; r += broad * L)
    stripe<T, broad>(outs, depth, A, across, along, B + r, where, Z + r, ldz, start);
  for (; r + 2 * L <= rows; r += 2 * L) stripe<T, 2>(outs, depth, A, across, along, B + r, where, Z + r, ldz, start);
  for (; r < rows; r += L) stripe<T, 1>(outs, depth, A, across, along, B + r, where, Z + r, ldz, start);
}

// e^x by 2^n and a Taylor series on the rest, to the last bits of the type.
template <class T> inline typename Vec<T>::type exponential(typename Vec<T>::type x) {
  typedef typename Vec<T>::type V;
  typedef typename Bits<T>::type N;
  typedef N I __attribute__((vector_size(vector_bytes), may_alias));
  const V most = all<T>(Bits<T>::most), least = all<T>(-Bits<T>::most);
  x = x > most ? most : x;
  x = x < least ? least : x;
  V shifted = x * all<T>(T(1.44269504088896340736)) + all<T>(Bits<T>::magic);
  V n = shifted - all<T>(Bits<T>::magic);
  V r = x - n * all<T>(T(0.693145751953125)) - n * all<T>(T(1.42860682030941723212e-6));
  static constexpr T inverse[14] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
                                    1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
                                    1.0 / 6227020800.0};  // 1 / k!
  V p = all<T>(inverse[Bits<T>::degree]);
  TDCD_UNROLL for (int k = Bits<T>::degree - 1; k >= 0; k--) p = p * r + all<T>(inverse[k]);
  V start = all<T>(Bits<T>::magic);
  I power = ((I)shifted - (I)start + Bits<T>::bias) << Bits<T>::shift;
  return p * (V)power;
}

// a <- 1 / (1 + e^-a) and the same for b, by one division.
template <class T> inline void logistics(typename Vec<T>::type &a, typename Vec<T>::type &b) {
  auto one = all<T>(T(1));
  auto p = one + exponential<T>(-a), q = one + exponential<T>(-b);
  auto inverse = one / (p * q);
  a = inverse * q;
  b = inverse * p;
}

template <class T> inline typename Vec<T>::type logistic(typename Vec<T>::type x) {
  auto one = all<T>(T(1));
  return one / (one + exponential<T>(-x));
}

template <class T> inline typename Vec<T>::type hyperbolic(typename Vec<T>::type x) {
  auto one = all<T>(T(1));
  return all<T>(T(2)) / (one + exponential<T>(-x - x)) - one;
}

enum Loss { cross_entropy = 0, binary = 1, squared = 2, given = 3 };

// The rows of a batch, grouped by client.
template <class T> struct Rows {
  const T *features;       // of every sample
  const int64_t *samples;  // of every row
  int E, loss;
  T positive;
  const T *stale;          // (rows, E); given: the gradient itself
  const T *labels;         // binary: (samples); squared: (samples, E)
  const int64_t *classes;  // cross-entropy: (samples)
  const T *share;          // the weight of every row's loss; nothing: all rows of a client alike
};

struct Block {
  int first, count, rows;  // its rows, and to how many they are padded
};

// Lay `size` numbers of each of a block's rows, from `skip` on in the row, out as lines (size, rows).
template <class T>
void lay_lines(const Block &block, const T *features, const int64_t *samples, int64_t row, int64_t skip, int size, T *to) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  for (int first = 0; first < block.rows; first += L) {
    const T *x[L];
    for (int r = 0; r < L; r++)
      x[r] = first + r < block.count ? features + samples[block.first + first + r] * row + skip : nullptr;
    int i = 0;
    for (; i + L <= size; i += L) {
      V v[L];
      for (int r = 0; r < L; r++) {
        v[r] = V{};
        if (x[r]) std::memcpy(&v[r], x[r] + i, sizeof(V));
      }
      transpose<T>(v);
      for (int r = 0; r < L; r++) *(V *)(to + (size_t)(i + r) * block.rows + first) = v[r];
    }
    for (int r = 0; r < L; r++)
      for (int j = i; j < size; j++) to[(size_t)j * block.rows + first + r] = x[r] ? x[r][j] : T(0);
  }
}

// Cut a client's rows into blocks of at most so many vectors, as even as can be.
template <class T> void cut(int count, int vectors, std::vector<Block> &blocks) {
  constexpr int L = Vec<T>::width;
  int whole = divided(count, L), pieces = divided(whole, vectors), first = 0;
  blocks.clear();
  for (int b = 0; b < pieces; b++) {
    int rows = (whole / pieces + (b < whole % pieces)) * L;
    blocks.push_back({first, count - first < rows ? count - first : rows, rows});
    first += rows;
  }
}

// What the loss needs of a client's rows, block by block: stale embeddings and labels as (E, rows), and weights.
template <class T> struct Answers {
  Buffer<T> stale, labels, share;
  Answers(int E, int most)
      : stale((size_t)E * padded<T>(most), unset), labels((size_t)E * padded<T>(most), unset), share(padded<T>(most), unset) {}

  void take(const Rows<T> &rows, int64_t first, int count, const std::vector<Block> &blocks) {
    int E = rows.E;
    T even = T(1) / T(count);
    for (const Block &block : blocks)
      for (int r = 0; r < block.rows; r++) {
        T *s = stale.data + (size_t)block.first * E + r, *y = labels.data + (size_t)block.first * E + r;
        int64_t row = first + block.first + r, sample = r < block.count ? rows.samples[row] : 0;
        for (int e = 0; e < E; e++) {
          s[(size_t)e * block.rows] = r < block.count ? rows.stale[row * E + e] : T(0);
          T label = rows.loss == given ? T(0)
                    : rows.loss == cross_entropy ? T(rows.classes[sample] == e) : rows.labels[sample * E + e];
          y[(size_t)e * block.rows] = label;
        }
        share.data[block.first + r] = r >= block.count ? T(0) : rows.share ? rows.share[row] : even;
      }
  }

  // Turn a block's embeddings Z (E, rows) into the gradient of the losses; padding gets zero.
  void gradient(const Rows<T> &rows, const Block &block, T *Z) const {
    typedef typename Vec<T>::type V;
    int E = rows.E;
    size_t ld = block.rows;
    V one = all<T>(T(1));
    for (int r = 0; r < block.rows; r += Vec<T>::width) {
      const T *s = stale.data + (size_t)block.first * E + r, *y = labels.data + (size_t)block.first * E + r;
      V weight = *(const V *)(share.data + block.first + r), total{}, most{};
      if (rows.loss == given) {
        for (int e = 0; e < E; e++) *(V *)(Z + e * ld + r) = *(const V *)(s + e * ld) * weight;
        continue;
      }
      for (int e = 0; e < E; e++) {
        V *z = (V *)(Z + e * ld + r);
        *z += *(const V *)(s + e * ld);
        most = e && !rows.loss ? (*z > most ? *z : most) : *z;
      }
      if (rows.loss == cross_entropy) {
        for (int e = 0; e < E; e++) {
          V *z = (V *)(Z + e * ld + r);
          total += *z = exponential<T>(*z - most);
        }
        weight /= total;
      }
      for (int e = 0; e < E; e++) {
        V *z = (V *)(Z + e * ld + r), label = *(const V *)(y + e * ld);
        if (rows.loss == cross_entropy)
          *z = (*z - label * total) * weight;
        else if (rows.loss == binary)
          *z = (logistic<T>(*z) - label) * (one + (all<T>(rows.positive) - one) * label) * weight;
        else
          *z = (*z - label) * (all<T>(T(2) / T(E)) * weight);
      }
    }
  }
};

// A thread is worth starting for so many multiplications.
constexpr double worth = 2e6;

inline int worth_threads(int threads, double work) {
  double most = 1 + work / worth;
  return most < threads ? (int)most : threads;
}

// Do pieces of the work at a desk of one's own, until none are left. A function of its own: beside a handler of
// exceptions, as in share_out, the compiler would inline less of it, and make it a tenth slower.
template <class Make, class Work>
__attribute__((noinline, flatten)) void do_pieces(std::atomic<int> &next, int count, Make &make, Work &work) {
  auto desk = make();
  for (int piece; (piece = next++) < count;) work(desk, piece);
}

// Do pieces 0 .. count-1 of the work, each by one of the threads, each thread at a desk of its own. What a piece gives
// depends on the piece alone, whatever the threads. The first exception of any thread is thrown here, when all have ended.
template <class Make, class Work> void share_out(int count, int threads, Make make, Work work) {
  std::atomic<int> next(0);
  std::mutex lock;
  std::exception_ptr failure;
  auto run = [&]() noexcept {
    try {
      do_pieces(next, count, make, work);
    } catch (...) {
      std::lock_guard<std::mutex> guard(lock);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int t = 1; t < threads && t < count; t++) pool.emplace_back(run);
  } catch (...) {
    // No more threads are to be had: those that run do all of the work.
  }
  run();
  for (auto &thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// How a batch falls to clients: client k has rows firsts[k] .. firsts[k]+counts[k]-1. Without firsts all have as many.
struct Clients {
  int64_t count, rows;
  const int64_t *firsts, *counts;
  int uniform;  // all weigh 1; otherwise by their rows
  int64_t first(int64_t k) const { return firsts ? firsts[k] : k * rows / count; }
  int size(int64_t k) const { return (int)(firsts ? counts[k] : first(k + 1) - first(k)); }
};

inline bool within(Span<const int64_t> numbers, int64_t count) {
  for (int64_t i = 0; i < numbers.size; i++)
    if (numbers.at[i] < 0 || numbers.at[i] >= count) return false;
  return true;
}

inline bool valid(const Clients &clients, Span<const int64_t> firsts, Span<const int64_t> counts) {
  if (clients.count < 1 || clients.rows < 1) return false;
  if (!firsts.at) return !counts.at && clients.count <= clients.rows;
  if (firsts.size != clients.count || counts.size != clients.count) return false;
  for (int64_t k = 0; k < clients.count; k++) {
    int64_t first = firsts.at[k], count = counts.at[k];
    if (first < 0 || count < 1 || count > clients.rows || first > clients.rows - count) return false;
  }
  return true;
}

// What a client returns: its weights, or what it changed of them, as it is or rounded to a type of two bytes.
enum Returns { weights_themselves = 0, changes = 1, float16s = 2, bfloat16s = 3 };

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float number_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The nearest number of half precision, of two that are as near the even one. Without branches: loops become vectors.
inline float to_float16(float x) {
  uint32_t bits = bits_of(x), sign = bits & 0x80000000u, size = bits ^ sign;
  // below 2^-14 numbers are 2^-24 apart, as those of a float between 1/2 and 1 are
  uint32_t tiny = bits_of((number_of(size) + 0.5f) - 0.5f);
  uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u)) & ~0x1fffu;
  uint32_t rounded = size < 0x38800000u ? tiny : normal;
  rounded = size >= 0x477ff000u ? 0x7f800000u : rounded;  // 65,520 and beyond
  rounded = size > 0x7f800000u ? size : rounded;          // not a number
  return number_of(sign | rounded);
}

inline float to_bfloat16(float x) {
  uint32_t bits = bits_of(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return number_of((bits & 0x7fffffffu) > 0x7f800000u ? bits : rounded);
}

template <class T> struct Returned {
  Returns what;
  int64_t size;
  std::vector<T> start;
  Returned(Returns what, Span<const Span<const T>> weights, int64_t size) : what(what), size(size) {
    if (what != weights_themselves)
      for (int64_t i = 0; i < weights.size; i++)
        start.insert(start.end(), weights.at[i].at, weights.at[i].at + weights.at[i].size);
  }
  size_t room() const { return what == weights_themselves ? 0 : (size_t)size; }
  void add(const double *own, double weight, double *sum) const {
    if (what == float16s)
      add_each(own, weight, sum, [](T change) { return (T)to_float16((float)change); });
    else if (what == bfloat16s)
      add_each(own, weight, sum, [](T change) { return (T)to_bfloat16((float)change); });
    else
      add_each(own, weight, sum, [](T change) { return change; });
  }
  template <class Round>
  void add_each(const double *__restrict own, double weight, double *__restrict sum, Round round) const {
    const T *__restrict from = start.data();
    for (int64_t i = 0; i < size; i++) sum[i] += weight * (double)round((T)own[i] - from[i]);
  }
};

// Take the local steps of every client and add up the clients' new weights. Sums are kept for groups of clients and then
// added in order.
template <class T, template <class> class Net>
void descend(const Net<T> &net, const Rows<T> &rows, int steps, T rate, const Clients &clients, int groups,
             const Returned<T> &returned, double *sums, int threads) {
  struct Place {
    typename Net<T>::Desk desk;
    Answers<T> answers;
    std::vector<Block> blocks;
    Buffer<double> own;
  };
  int64_t size = returned.size;
  int most = 1;
  for (int64_t k = 0; k < clients.count; k++) most = clients.size(k) > most ? clients.size(k) : most;
  Buffer<double> parts((size_t)groups * size, unset);
  auto make = [&] { return Place{typename Net<T>::Desk(net, most), Answers<T>(rows.E, most), {}, Buffer<double>(returned.room())}; };
  threads = worth_threads(threads, 3.0 * net.work() * clients.rows * steps);
  share_out(groups, threads, make, [&](Place &at, int g) {
    double *sum = parts.data + g * size;
    std::memset(sum, 0, size * sizeof(double));
    for (int64_t k = g * clients.count / groups; k < (g + 1) * clients.count / groups; k++) {
      int64_t first = clients.first(k);
      int count = clients.size(k);
      cut<T>(count, net.vectors, at.blocks);
      net.start(at.desk);
      net.take(at.desk, rows.features, rows.samples + first, at.blocks);
      at.answers.take(rows, first, count, at.blocks);
      for (int step = 0; step < steps; step++) {
        for (const Block &block : at.blocks) {
          T *Z = net.forward(at.desk, block, true);
          at.answers.gradient(rows, block, Z);
          net.backward(at.desk, block, at.blocks.size() == 1, rate);
        }
        net.step(at.desk, at.blocks.size() == 1, rate);
      }
      double weight = clients.uniform ? 1.0 : (double)count;
      if (returned.what == weights_themselves) {
        net.add(at.desk, weight, sum);
      } else {
        at.own.clear();
        net.add(at.desk, 1.0, at.own.data);
        returned.add(at.own.data, weight, sum);
      }
    }
  });
  for (int g = 0; g < groups; g++)
    for (int64_t i = 0; i < size; i++) sums[i] += parts.data[g * size + i];
}

// Embed rows with the hub's weights: out (rows, E).
template <class T, template <class> class Net>
void embed(const Net<T> &net, const T *features, const int64_t *samples, int64_t count, int E, T *out, int threads) {
  int most = 4 * net.vectors * Vec<T>::width;
  struct Place {
    typename Net<T>::Desk desk;
    std::vector<Block> blocks;
  };
  auto make = [&] {
    Place at{typename Net<T>::Desk(net, most < count ? most : (int)count), {}};
    net.start(at.desk);
    return at;
  };
  threads = worth_threads(threads, net.work() * count);
  share_out((int)((count + most - 1) / most), threads, make, [&](Place &at, int piece) {
    int64_t first = (int64_t)piece * most;
    cut<T>((int)(count - first < most ? count - first : most), net.vectors, at.blocks);
    net.take(at.desk, features, samples + first, at.blocks);
    for (const Block &block : at.blocks) {
      const T *Z = net.forward(at.desk, block, false);
      for (int r = 0; r < block.count; r++)
        for (int e = 0; e < E; e++) out[(first + block.first + r) * E + e] = Z[(size_t)e * block.rows + r];
    }
  });
}

}  // namespace
