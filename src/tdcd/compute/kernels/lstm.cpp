// The Q local steps of many clients whose network is an LSTM and a linear layer on its last hidden state. Rows go
// through all time steps forward and back in blocks of one vector, so that a block's states stay in the cache.
//
// A block's layouts, for every time step t:
//   XH (t, D + H, rows)  the step's input and the hidden state before it: vectors run over rows
//   XR (t, rows, D + H)  the same, row by row, padded, for the weights' gradient
//   Z  (t, 4H, rows)     the gates i, f, g, o after their functions; going back, the gradient before them

namespace {

template <class T> struct Bits;
template <> struct Bits<float> {
  typedef int32_t type;
  static constexpr float magic = 12582912.f, most = 40.f;  // beyond, a gate is open or shut to the last bit
  static constexpr int shift = 23, bias = 127, degree = 7;
};
template <> struct Bits<double> {
  typedef int64_t type;
  static constexpr double magic = 6755399441055744.0, most = 300.0;
  static constexpr int shift = 52, bias = 1023, degree = 13;
};

// e^x by 2^n and a Taylor series on the rest, to the last bits of the type.
template <class T> inline typename Vec<T>::type exponential(typename Vec<T>::type x) {
  typedef typename Vec<T>::type V;
  typedef typename Bits<T>::type N;
  typedef N I __attribute__((vector_size(64), may_alias));
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

template <class T> inline typename Vec<T>::type hyperbolic(typename Vec<T>::type x) {
  auto one = all<T>(T(1));
  return all<T>(T(2)) / (one + exponential<T>(-x - x)) - one;
}

template <class T> struct Silo {
  int T_, D, H;
  const T *Wi, *Wh, *bi, *bh, *Wl, *bl;  // (4H, D), (4H, H), (4H), (4H), (E, H), (E)
  int steps;
  T rate;
  const T *features;  // (samples, T, D)
  Target<T> target;
};

// W[o][i] += sum over steps and rows of G[t][o][r] X[t][r][i], for O outputs and I vectors of inputs.
template <class T, int O, int I>
inline void gather(int steps, int outs, int wide, const T *G, const T *X, T *W) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  V sum[O][I];
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int i = 0; i < I; i++) sum[o][i] = *(V *)(W + (size_t)o * wide + i * L);
  for (int t = 0; t < steps; t++) {
    const T *g = G + (size_t)t * outs * L, *x = X + (size_t)t * L * wide;
    for (int r = 0; r < L; r++) {
      V v[I];
      TDCD_UNROLL for (int i = 0; i < I; i++) v[i] = *(const V *)(x + (size_t)r * wide + i * L);
      TDCD_UNROLL for (int o = 0; o < O; o++) {
        V a = all<T>(g[(size_t)o * L + r]);
        TDCD_UNROLL for (int i = 0; i < I; i++) sum[o][i] += a * v[i];
      }
    }
  }
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int i = 0; i < I; i++) *(V *)(W + (size_t)o * wide + i * L) = sum[o][i];
}

// Z[o][r] = start[o] + sum_k A(o,k) B[k][r] on one vector of rows, many outputs at a time.
template <class T>
inline void column(int outs, int depth, const T *A, int across, int along, const T *B, T *Z, const T *start) {
  constexpr int L = Vec<T>::width;
  int o = 0;
  for (; o + 16 <= outs; o += 16)
    tile<T, 16, 1>(depth, A + (size_t)o * across, across, along, B, L, Z + (size_t)o * L, L, start ? start + o : nullptr);
  for (; o + 4 <= outs; o += 4)
    tile<T, 4, 1>(depth, A + (size_t)o * across, across, along, B, L, Z + (size_t)o * L, L, start ? start + o : nullptr);
  for (; o < outs; o++)
    tile<T, 1, 1>(depth, A + (size_t)o * across, across, along, B, L, Z + (size_t)o * L, L, start ? start + o : nullptr);
}

template <class T> struct Desk {
  Buffer<T> W, dW, b, bi, bh, Wl, bl, dWl, dbl, XH, XR, Z, C, U, dh, dc, z;
  Desk(const Silo<T> &s, int blocks)
      : W((size_t)4 * s.H * wide(s)), dW((size_t)4 * s.H * wide(s)), b(4 * s.H), bi(4 * s.H), bh(4 * s.H),
        Wl((size_t)s.target.E * s.H), bl(s.target.E), dWl((size_t)s.target.E * s.H), dbl(s.target.E),
        XH((size_t)blocks * (s.T_ + 1) * (s.D + s.H) * L), XR((size_t)blocks * (s.T_ + 1) * L * wide(s)),
        Z((size_t)s.T_ * 4 * s.H * L), C((size_t)(s.T_ + 1) * s.H * L), U((size_t)s.T_ * s.H * L), dh((size_t)s.H * L),
        dc((size_t)s.H * L), z((size_t)s.target.E * L) {}
  static constexpr int L = Vec<T>::width;
  static int wide(const Silo<T> &s) { return padded<T>(s.D + s.H + 1); }  // the last is 1, for the bias
};

template <class T> void block(const Silo<T> &s, Desk<T> &d, int which, int64_t first, int count, T share) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  int H = s.H, D = s.D, F = D + H, wide = Desk<T>::wide(s), E = s.target.E;
  T *XH = d.XH.data + (size_t)which * (s.T_ + 1) * F * L, *XR = d.XR.data + (size_t)which * (s.T_ + 1) * L * wide;
  V one = all<T>(T(1));
  for (int t = 0; t < s.T_; t++) {
    T *z = d.Z.data + (size_t)t * 4 * H * L;
    column<T>(4 * H, F, d.W.data, wide, 1, XH + (size_t)t * F * L, z, d.b.data);
    V *i = (V *)z, *f = i + H, *g = f + H, *o = g + H;
    V *before = (V *)(d.C.data + (size_t)t * H * L), *after = before + H, *u = (V *)(d.U.data + (size_t)t * H * L);
    V *hidden = (V *)(XH + ((size_t)(t + 1) * F + D) * L);
    for (int k = 0; k < H; k++) {
      V twice = g[k] + g[k];
      logistics<T>(i[k], f[k]);
      logistics<T>(o[k], twice);
      g[k] = twice + twice - one;
      after[k] = f[k] * before[k] + i[k] * g[k];
      u[k] = hyperbolic<T>(after[k]);
      hidden[k] = o[k] * u[k];
    }
    const T *from = (const T *)hidden;
    T *to = XR + (size_t)(t + 1) * L * wide + D;
    for (int r = 0; r < L; r++)
      for (int k = 0; k < H; k++) to[(size_t)r * wide + k] = from[(size_t)k * L + r];
  }
  const T *last = XH + ((size_t)s.T_ * F + D) * L;
  column<T>(E, H, d.Wl.data, H, 1, last, d.z.data, d.bl.data);
  loss_gradient<T>(s.target, first, count, L, share, d.z.data);
  column<T>(H, E, d.Wl.data, 1, H, d.z.data, d.dh.data, nullptr);
  for (int e = 0; e < E; e++)
    for (int r = 0; r < count; r++) {
      T g = d.z.data[(size_t)e * L + r];
      d.dbl.data[e] += g;
      for (int k = 0; k < H; k++) d.dWl.data[(size_t)e * H + k] += g * last[(size_t)k * L + r];
    }
  std::memset(d.dc.data, 0, (size_t)H * L * sizeof(T));
  V *dh = (V *)d.dh.data, *dc = (V *)d.dc.data;
  for (int t = s.T_ - 1; t >= 0; t--) {
    T *z = d.Z.data + (size_t)t * 4 * H * L;
    V *i = (V *)z, *f = i + H, *g = f + H, *o = g + H;
    V *before = (V *)(d.C.data + (size_t)t * H * L), *u = (V *)(d.U.data + (size_t)t * H * L);
    for (int k = 0; k < H; k++) {
      V I = i[k], Fg = f[k], Gg = g[k], O = o[k];
      V c = dc[k] + dh[k] * O * (one - u[k] * u[k]);
      o[k] = dh[k] * u[k] * O * (one - O);
      i[k] = c * Gg * I * (one - I);
      f[k] = c * before[k] * Fg * (one - Fg);
      g[k] = c * I * (one - Gg * Gg);
      dc[k] = c * Fg;
    }
    if (t) column<T>(H, 4 * H, d.W.data + D, 1, wide, z, d.dh.data, nullptr);
  }
  for (int o = 0; o < 4 * H; o += 4) {
    const T *g = d.Z.data + (size_t)o * L;
    T *w = d.dW.data + (size_t)o * wide;
    int i = 0;
    for (; i + 3 * L <= wide; i += 3 * L) gather<T, 4, 3>(s.T_, 4 * H, wide, g, XR + i, w + i);
    for (; i + 2 * L <= wide; i += 2 * L) gather<T, 4, 2>(s.T_, 4 * H, wide, g, XR + i, w + i);
    for (; i < wide; i += L) gather<T, 4, 1>(s.T_, 4 * H, wide, g, XR + i, w + i);
  }
}

template <class T> void client(const Silo<T> &s, int64_t first, int count, Desk<T> &d, double weight, double *sums) {
  constexpr int L = Vec<T>::width;
  int H = s.H, D = s.D, F = D + H, wide = Desk<T>::wide(s), E = s.target.E, blocks = (count + L - 1) / L, G = 4 * H;
  for (int o = 0; o < G; o++) {
    std::memcpy(d.W.data + (size_t)o * wide, s.Wi + (size_t)o * D, D * sizeof(T));
    std::memcpy(d.W.data + (size_t)o * wide + D, s.Wh + (size_t)o * H, H * sizeof(T));
  }
  std::memcpy(d.bi.data, s.bi, G * sizeof(T));
  std::memcpy(d.bh.data, s.bh, G * sizeof(T));
  std::memcpy(d.Wl.data, s.Wl, (size_t)E * H * sizeof(T));
  std::memcpy(d.bl.data, s.bl, E * sizeof(T));
  for (int q = 0; q < blocks; q++)
    for (int t = 0; t < s.T_; t++)
      for (int r = 0; r < L; r++) {
        int64_t row = (int64_t)q * L + r;
        const T *x = row < count ? s.features + (s.target.samples[first + row] * s.T_ + t) * D : nullptr;
        T *xr = d.XR.data + (((size_t)q * (s.T_ + 1) + t) * L + r) * wide;
        T *xh = d.XH.data + ((size_t)q * (s.T_ + 1) + t) * F * L + r;
        for (int i = 0; i < D; i++) xh[(size_t)i * L] = xr[i] = x ? x[i] : T(0);
        xr[F] = T(1);
      }
  for (int step = 0; step < s.steps; step++) {
    std::memset(d.dW.data, 0, (size_t)G * wide * sizeof(T));
    std::memset(d.dWl.data, 0, (size_t)E * H * sizeof(T));
    std::memset(d.dbl.data, 0, E * sizeof(T));
    for (int o = 0; o < G; o++) d.b.data[o] = d.bi.data[o] + d.bh.data[o];
    for (int q = 0; q < blocks; q++) {
      int in_block = count - q * L < L ? count - q * L : L;
      block<T>(s, d, q, first + (int64_t)q * L, in_block, T(1) / T(count));
    }
    for (size_t i = 0; i < (size_t)G * wide; i++) d.W.data[i] -= s.rate * d.dW.data[i];
    for (int o = 0; o < G; o++) {
      T bias = s.rate * d.dW.data[(size_t)o * wide + F];  // two biases, one gradient
      d.bi.data[o] -= bias;
      d.bh.data[o] -= bias;
    }
    for (int i = 0; i < E * H; i++) d.Wl.data[i] -= s.rate * d.dWl.data[i];
    for (int e = 0; e < E; e++) d.bl.data[e] -= s.rate * d.dbl.data[e];
  }
  for (int o = 0; o < G; o++)
    for (int i = 0; i < D; i++) *sums++ += weight * (double)d.W.data[(size_t)o * wide + i];
  for (int o = 0; o < G; o++)
    for (int i = 0; i < H; i++) *sums++ += weight * (double)d.W.data[(size_t)o * wide + D + i];
  for (int o = 0; o < G; o++) *sums++ += weight * (double)d.bi.data[o];
  for (int o = 0; o < G; o++) *sums++ += weight * (double)d.bh.data[o];
  for (int i = 0; i < E * H; i++) *sums++ += weight * (double)d.Wl.data[i];
  for (int e = 0; e < E; e++) *sums++ += weight * (double)d.bl.data[e];
}

}  // namespace

#define TDCD_LSTM(NAME, T)                                                                                            \
  extern "C" void NAME(int steps_, int D, int H, int E, const T *const *weights, int loss, double positive, int steps, \
                       double rate, const T *features, const int64_t *samples, const T *stale, const T *labels,        \
                       const int64_t *classes, int count, const int64_t *bounds, const int64_t *firsts,                \
                       const int64_t *counts, int uniform, int64_t size, double *sums, int threads) {                  \
    Silo<T> s{steps_, D, H, weights[0], weights[1], weights[2], weights[3], weights[4], weights[5], steps, (T)rate,    \
              features, {loss, (T)positive, E, samples, stale, labels, classes}};                                     \
    int64_t most = 1;                                                                                                 \
    for (int64_t k = 0; k < bounds[count]; k++) most = counts[k] > most ? counts[k] : most;                            \
    int blocks = (int)((most + Vec<T>::width - 1) / Vec<T>::width);                                                   \
    in_groups(count, threads, [&] { return Desk<T>(s, blocks); }, [&](Desk<T> &desk, int g) {                          \
      for (int64_t k = bounds[g]; k < bounds[g + 1]; k++)                                                             \
        client<T>(s, firsts[k], (int)counts[k], desk, uniform ? 1.0 : (double)counts[k], sums + g * size);            \
    });                                                                                                               \
  }

TDCD_LSTM(tdcd_lstm_float, float)
TDCD_LSTM(tdcd_lstm_double, double)
