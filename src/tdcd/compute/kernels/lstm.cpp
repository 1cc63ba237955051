// An LSTM and a linear layer on its last hidden state. A block goes through all time steps forward and back, so that its
// states stay in the cache.
//
// A block's lines, for every time step t:
//   X (t, D + H + 1, rows)  the step's input, the hidden state before it, and 1 for the bias
//   Z (t, 4H, rows)         the gates i, f, g, o after their functions; going back, the gradient before them
//   C (t, H, rows)          the cell before the step;  U (t, H, rows)  the tanh of the cell after it

namespace {

template <class T> struct Net {
  static constexpr int L = Vec<T>::width;
  int times, D, H, E;
  const T *Wi, *Wh, *bi, *bh, *Wl, *bl;  // (4H, D), (4H, H), (4H), (4H), (E, H), (E)
  static constexpr int vectors = broad;  // in a block

  int inputs() const { return D + H + 1; }
  int64_t row() const { return (int64_t)times * D; }  // numbers of a sample
  int outputs() const { return E; }
  double work() const { return 4.0 * H * inputs() * times; }  // multiplications of a row's way forward

  struct Desk {
    Buffer<T> W, b, bi, bh, Wl, bl, dW, dWl, dbl, X, Z, C, U, dh, dc, z;
    Desk(const Net &n, int most)
        : W((size_t)4 * n.H * n.inputs()), b(4 * n.H), bi(4 * n.H), bh(4 * n.H), Wl((size_t)n.E * n.H), bl(n.E),
          dW((size_t)4 * n.H * n.inputs() * L), dWl((size_t)n.E * n.H), dbl(n.E),
          X((size_t)(n.times + 1) * n.inputs() * padded<T>(most), unset), Z((size_t)n.times * 4 * n.H * n.vectors * L, unset),
          C((size_t)(n.times + 1) * n.H * n.vectors * L, unset), U((size_t)n.times * n.H * n.vectors * L, unset),
          dh((size_t)n.H * n.vectors * L, unset), dc((size_t)n.H * n.vectors * L, unset),
          z((size_t)n.E * n.vectors * L, unset) {}
  };

  void start(Desk &d) const {
    int F = inputs();
    for (int o = 0; o < 4 * H; o++) {
      std::memcpy(d.W.data + (size_t)o * F, Wi + (size_t)o * D, D * sizeof(T));
      std::memcpy(d.W.data + (size_t)o * F + D, Wh + (size_t)o * H, H * sizeof(T));
      d.b.data[o] = bi[o] + bh[o];
    }
    std::memcpy(d.bi.data, bi, 4 * H * sizeof(T));
    std::memcpy(d.bh.data, bh, 4 * H * sizeof(T));
    std::memcpy(d.Wl.data, Wl, (size_t)E * H * sizeof(T));
    std::memcpy(d.bl.data, bl, E * sizeof(T));
  }

  T *lines(Desk &d, const Block &block) const { return d.X.data + (size_t)block.first * (times + 1) * inputs(); }

  void take(Desk &d, const T *features, const int64_t *samples, const std::vector<Block> &blocks) const {
    int F = inputs();
    for (const Block &block : blocks) {
      T *X = lines(d, block);
      size_t ld = block.rows;
      std::memset(X + D * ld, 0, H * ld * sizeof(T));  // the first hidden state
      for (int t = 0; t < times; t++) {
        T *to = X + (size_t)t * F * ld;
        lay_lines<T>(block, features, samples, (int64_t)times * D, (int64_t)t * D, D, to);
        for (int r = 0; r < block.rows; r++) to[(F - 1) * ld + r] = T(1);
      }
    }
  }

  T *forward(Desk &d, const Block &block, bool) const {
    typedef typename Vec<T>::type V;
    int F = inputs();
    size_t ld = block.rows;
    T *X = lines(d, block);
    V one = all<T>(T(1));
    std::memset(d.C.data, 0, H * ld * sizeof(T));
    for (int t = 0; t < times; t++) {
      T *z = d.Z.data + (size_t)t * 4 * H * ld;
      product<T>(4 * H, F - 1, block.rows, d.W.data, F, 1, X + (size_t)t * F * ld, Evenly{ld}, z, ld, d.b.data);
      T *before = d.C.data + (size_t)t * H * ld, *u = d.U.data + (size_t)t * H * ld;
      T *hidden = X + ((size_t)(t + 1) * F + D) * ld;
      size_t gate = H * ld;
      for (size_t k = 0; k < gate; k += L) {
        V i = *(V *)(z + k), f = *(V *)(z + gate + k), g = *(V *)(z + 2 * gate + k), o = *(V *)(z + 3 * gate + k);
        g += g;
        logistics<T>(i, f);
        logistics<T>(o, g);
        g = g + g - one;
        V cell = f * *(V *)(before + k) + i * g, tanh = hyperbolic<T>(cell);
        *(V *)(z + k) = i, *(V *)(z + gate + k) = f, *(V *)(z + 2 * gate + k) = g, *(V *)(z + 3 * gate + k) = o;
        *(V *)(before + gate + k) = cell;
        *(V *)(u + k) = tanh;
        *(V *)(hidden + k) = o * tanh;
      }
    }
    const T *last = X + ((size_t)times * F + D) * ld;
    product<T>(E, H, block.rows, d.Wl.data, H, 1, last, Evenly{ld}, d.z.data, ld, d.bl.data);
    return d.z.data;
  }

  void backward(Desk &d, const Block &block, bool, T) const {
    typedef typename Vec<T>::type V;
    int F = inputs();
    size_t ld = block.rows, gate = H * ld;
    const T *X = lines(d, block), *last = X + ((size_t)times * F + D) * ld;
    V one = all<T>(T(1));
    product<T>(H, E, block.rows, d.Wl.data, 1, H, d.z.data, Evenly{ld}, d.dh.data, ld, nullptr);
    for (int e = 0; e < E; e++) {
      const T *g = d.z.data + e * ld;
      for (int r = 0; r < block.count; r++) d.dbl.data[e] += g[r];
      for (int k = 0; k < H; k++) {
        V sum{};
        for (size_t r = 0; r < ld; r += L) sum += *(const V *)(g + r) * *(const V *)(last + k * ld + r);
        d.dWl.data[(size_t)e * H + k] += sum_of<T>(sum);
      }
    }
    std::memset(d.dc.data, 0, gate * sizeof(T));
    for (int t = times - 1; t >= 0; t--) {
      T *z = d.Z.data + (size_t)t * 4 * H * ld;
      const T *before = d.C.data + (size_t)t * H * ld, *u = d.U.data + (size_t)t * H * ld;
      for (size_t k = 0; k < gate; k += L) {
        V i = *(V *)(z + k), f = *(V *)(z + gate + k), g = *(V *)(z + 2 * gate + k), o = *(V *)(z + 3 * gate + k);
        V tanh = *(const V *)(u + k), dh = *(V *)(d.dh.data + k);
        V c = *(V *)(d.dc.data + k) + dh * o * (one - tanh * tanh);
        *(V *)(z + k) = c * g * i * (one - i);
        *(V *)(z + gate + k) = c * *(const V *)(before + k) * f * (one - f);
        *(V *)(z + 2 * gate + k) = c * i * (one - g * g);
        *(V *)(z + 3 * gate + k) = dh * tanh * o * (one - o);
        *(V *)(d.dc.data + k) = c * f;
      }
      if (t) product<T>(H, 4 * H, block.rows, d.W.data + D, 1, F, z, Evenly{ld}, d.dh.data, ld, nullptr);
    }
    int i = 0;
    for (; i + 6 <= F; i += 6) gather<6>(d, i, ld, X);
    for (; i < F; i++) gather<1>(d, i, ld, X);
  }

  // dW[o][i] += sum over times and rows of Z[t][o][r] X[t][i][r] for I inputs, as vectors over rows.
  template <int I> void gather(Desk &d, int i, size_t ld, const T *X) const {
    constexpr int O = tall / 2;
    int o = 0;
    for (; o + O <= 4 * H; o += O) gather_tile<O, I>(d, o, i, ld, X);
    for (; o < 4 * H; o++) gather_tile<1, I>(d, o, i, ld, X);
  }

  template <int O, int I> void gather_tile(Desk &d, int o, int i, size_t ld, const T *X) const {
    typedef typename Vec<T>::type V;
    int F = inputs();
    V *to = (V *)d.dW.data + (size_t)o * F + i, sum[O][I];
    TDCD_UNROLL for (int p = 0; p < O; p++)
      TDCD_UNROLL for (int q = 0; q < I; q++) sum[p][q] = to[(size_t)p * F + q];
    for (int t = 0; t < times; t++) {
      const T *g = d.Z.data + ((size_t)t * 4 * H + o) * ld, *x = X + ((size_t)t * F + i) * ld;
      for (size_t r = 0; r < ld; r += L) {
        V v[O];
        TDCD_UNROLL for (int p = 0; p < O; p++) v[p] = *(const V *)(g + p * ld + r);
        TDCD_UNROLL for (int q = 0; q < I; q++) {
          V w = *(const V *)(x + q * ld + r);
          TDCD_UNROLL for (int p = 0; p < O; p++) sum[p][q] += v[p] * w;
        }
      }
    }
    TDCD_UNROLL for (int p = 0; p < O; p++)
      TDCD_UNROLL for (int q = 0; q < I; q++) to[(size_t)p * F + q] = sum[p][q];
  }

  void step(Desk &d, bool, T rate) const {
    typedef typename Vec<T>::type V;
    int F = inputs();
    const V *dW = (const V *)d.dW.data;
    for (int o = 0; o < 4 * H; o++, dW += F) {
      for (int i = 0; i < F - 1; i++) d.W.data[(size_t)o * F + i] -= rate * sum_of<T>(dW[i]);
      T bias = rate * sum_of<T>(dW[F - 1]);  // two biases, one gradient
      d.bi.data[o] -= bias;
      d.bh.data[o] -= bias;
      d.b.data[o] = d.bi.data[o] + d.bh.data[o];
    }
    for (int i = 0; i < E * H; i++) d.Wl.data[i] -= rate * d.dWl.data[i];
    for (int e = 0; e < E; e++) d.bl.data[e] -= rate * d.dbl.data[e];
    d.dW.clear(), d.dWl.clear(), d.dbl.clear();
  }

  void add(const Desk &d, double weight, double *sums) const {
    int F = inputs();
    for (int o = 0; o < 4 * H; o++)
      for (int i = 0; i < D; i++) *sums++ += weight * (double)d.W.data[(size_t)o * F + i];
    for (int o = 0; o < 4 * H; o++)
      for (int i = 0; i < H; i++) *sums++ += weight * (double)d.W.data[(size_t)o * F + D + i];
    for (int o = 0; o < 4 * H; o++) *sums++ += weight * (double)d.bi.data[o];
    for (int o = 0; o < 4 * H; o++) *sums++ += weight * (double)d.bh.data[o];
    for (int i = 0; i < E * H; i++) *sums++ += weight * (double)d.Wl.data[i];
    for (int e = 0; e < E; e++) *sums++ += weight * (double)d.bl.data[e];
  }
};

template <class T> bool network(Span<const int> numbers, Span<const Span<const T>> weights, Net<T> &net) {
  if (numbers.size != 4 || weights.size != 6) return false;
  const int *n = numbers.at;
  for (int i = 0; i < 4; i++)
    if (n[i] < 1 || n[i] > largest) return false;
  const Span<const T> *w = weights.at;
  net = {n[0], n[1], n[2], n[3], w[0].at, w[1].at, w[2].at, w[3].at, w[4].at, w[5].at};
  int64_t gates = 4 * (int64_t)net.H, E = net.E;
  int64_t sizes[] = {gates * net.D, gates * net.H, gates, gates, E * net.H, E};
  for (int i = 0; i < 6; i++)
    if (!w[i].at || w[i].size != sizes[i]) return false;
  return true;
}

}  // namespace
