// The Q local steps of many clients whose network is a chain of dense layers, each client's weights, rows and
// activations in the cache from its first step to its last. Any widths, float or double, three losses.
//
// Layouts, all padded to whole vectors and aligned:
//   W  (out, in)    a layer's weights, rows padded
//   H  (in, rows)   a layer's input, feature by feature: vectors run over the client's rows
//   R  (rows, in)   the same, row by row: vectors run over features, for the weights' gradient
//   G  (out, rows)  the gradient at a layer's output

namespace {

enum Activation { none = 0, relu = 1, tanh_ = 2, sigmoid = 3 };

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
  int steps;
  T rate;
  const T *features;
  Target<T> target;
};

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
    const T *x = r < count ? s.features + s.target.samples[first + r] * (int64_t)D : nullptr;
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
    loss_gradient<T>(s.target, first, count, rows, T(1) / T(count), z);
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

// Clients bounds[g] .. bounds[g+1]-1 make group g, whose weighted sum goes to sums[g].
template <class T>
void groups(const Silo<T> &s, int count, const int64_t *bounds, const int64_t *firsts, const int64_t *counts, int uniform,
            int64_t weights, double *sums, int threads) {
  int64_t most = 1;
  for (int64_t k = 0; k < bounds[count]; k++) most = counts[k] > most ? counts[k] : most;
  in_groups(count, threads, [&] { return Desk<T>(s, padded<T>((int)most)); }, [&](Desk<T> &desk, int g) {
    for (int64_t k = bounds[g]; k < bounds[g + 1]; k++)
      client<T>(s, firsts[k], (int)counts[k], desk, uniform ? 1.0 : (double)counts[k], sums + g * weights);
  });
}

}  // namespace

#define TDCD_DENSE(NAME, T)                                                                                          \
  extern "C" void NAME(int layers, const int *dims, const int *activations, const T *const *W, const T *const *b,   \
                       int loss, double positive, int steps, double rate, const T *features, const int64_t *samples, \
                       const T *stale, const T *labels, const int64_t *classes, int count, const int64_t *bounds,    \
                       const int64_t *firsts, const int64_t *counts, int uniform, int64_t weights, double *sums,     \
                       int threads) {                                                                                \
    Silo<T> s{layers, dims, activations, W, b, steps, (T)rate, features,                                              \
              {loss, (T)positive, dims[layers], samples, stale, labels, classes}};                                  \
    groups<T>(s, count, bounds, firsts, counts, uniform, weights, sums, threads);                                    \
  }

TDCD_DENSE(tdcd_dense_float, float)
TDCD_DENSE(tdcd_dense_double, double)
