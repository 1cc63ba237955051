// A chain of layers: dense, convolutions of stride 1 and max-pools, any widths, an activation after dense layers and
// convolutions. Images are (channels, height, width, rows): a line of pixels is a run of vectors, and a convolution is a
// matrix product whose second factor has its lines at the taps.

namespace {

enum Kind { dense = 0, convolution = 1, pool = 2 };
enum Activation { none = 0, relu = 1, tanh_ = 2, sigmoid = 3 };

template <class T> void activate(int kind, size_t count, T *h) {
  typedef typename Vec<T>::type V;
  if (kind == none) return;
  for (size_t i = 0; i < count; i += Vec<T>::width) {
    V &v = *(V *)(h + i);
    v = kind == relu ? (v < V{} ? V{} : v) : kind == tanh_ ? hyperbolic<T>(v) : logistic<T>(v);
  }
}

// Turn the gradient after an activation into the one before it, given the activation's output.
template <class T> void through(int kind, size_t count, T *g, const T *h) {
  typedef typename Vec<T>::type V;
  V one = all<T>(T(1));
  if (kind == none) return;
  for (size_t i = 0; i < count; i += Vec<T>::width) {
    V &v = *(V *)(g + i);
    const V &out = *(const V *)(h + i);
    v = kind == relu ? (out <= V{} ? V{} : v) : v * (kind == tanh_ ? one - out * out : out * (one - out));
  }
}

// W[o][i] += factor * sum_r G[o][r] X[r][i] for O outputs and I vectors of inputs.
template <class T, int O, int I>
inline void update(int count, const T *G, size_t ldg, const T *X, size_t ldx, T *W, size_t ldw, T factor) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::width;
  V sum[O][I];
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int i = 0; i < I; i++) sum[o][i] = V{};
  for (int r = 0; r < count; r++) {
    V x[I];
    TDCD_UNROLL for (int i = 0; i < I; i++) x[i] = *(const V *)(X + r * ldx + i * L);
    TDCD_UNROLL for (int o = 0; o < O; o++) {
      V g = all<T>(G[o * ldg + r]);
      TDCD_UNROLL for (int i = 0; i < I; i++) sum[o][i] += g * x[i];
    }
  }
  TDCD_UNROLL for (int o = 0; o < O; o++)
    TDCD_UNROLL for (int i = 0; i < I; i++) {
      V *w = (V *)(W + o * ldw + i * L);
      *w += all<T>(factor) * sum[o][i];
    }
}

template <class T, int I>
void update_inputs(int outs, int count, const T *G, size_t ldg, const T *X, size_t ldx, T *W, size_t ldw, T factor) {
  constexpr int O = tall / 2;
  int o = 0;
  for (; o + O <= outs; o += O) update<T, O, I>(count, G + o * ldg, ldg, X, ldx, W + o * ldw, ldw, factor);
  for (; o < outs; o++) update<T, 1, I>(count, G + o * ldg, ldg, X, ldx, W + o * ldw, ldw, factor);
}

template <class T> struct Layer {
  int kind, activation;
  int C, H, W, O, OH, OW;  // the image that goes in, and the one that comes out; a dense layer's are 1 x 1
  int kh, kw, ph, pw;      // a convolution's kernel and padding, a pool's window
  const T *weight, *bias;

  int depth() const { return kind == convolution ? C * kh * kw : C; }
  int line() const { return kind == dense ? padded<T>(C) : depth(); }  // between two outputs' weights
  int across() const { return W + 2 * pw; }                            // pixels of a line that goes in, with its border
  size_t in() const { return (size_t)C * (H + 2 * ph) * across(); }
  size_t out() const { return (size_t)O * OH * OW; }
  size_t weights() const { return weight ? (size_t)O * line() : 0; }
  size_t bordered() const { return (size_t)O * (H + kh - 1) * (W + kw - 1); }  // the gradient with a border, going back
};

template <class T> struct Net {
  static constexpr int L = Vec<T>::width;
  std::vector<Layer<T>> layers;
  int vectors;  // in a block

  struct Memory {
    Buffer<T> W, b, dW, db, A, R, turned;
    std::vector<size_t> taps, back;
    Memory(const Layer<T> &l, size_t rows, bool first)
        : W(l.weights()), b(l.O), dW(l.weights()), db(l.O), A(l.in() * rows, unset),
          R(l.kind == dense ? (size_t)padded<T>(l.C) * rows : 0),
          turned(l.kind == convolution && !first ? l.weights() : 0, unset), taps(l.depth()), back((size_t)l.O * l.kh * l.kw) {}
  };

  struct Desk {
    std::vector<Memory> at;
    Buffer<T> one, two, edged;
    int rows = 0;
    Desk(const Net &n, int most)
        : one(n.most_out() * n.vectors * L, unset), two(n.most_out() * n.vectors * L, unset),
          edged(n.most_edged() * n.vectors * L, unset) {
      for (size_t l = 0; l < n.layers.size(); l++)
        at.emplace_back(n.layers[l], l ? n.vectors * L : padded<T>(most), l == 0);
    }
  };

  int64_t row() const { return (int64_t)layers[0].C * layers[0].H * layers[0].W; }  // numbers of a sample
  int outputs() const { return layers.back().O; }
  double work() const {  // multiplications of a row's way forward
    double sum = 0;
    for (auto &l : layers) sum += l.weight ? (double)l.out() * l.depth() : 0.0;
    return sum;
  }
  size_t most_out() const {
    size_t most = 1;
    for (auto &l : layers) most = l.out() > most ? l.out() : most;
    return most;
  }
  size_t most_edged() const {
    size_t most = 0;
    for (size_t l = 1; l < layers.size(); l++)
      if (layers[l].kind == convolution && layers[l].bordered() > most) most = layers[l].bordered();
    return most;
  }

  void start(Desk &d) const {
    for (size_t l = 0; l < layers.size(); l++) {
      const Layer<T> &y = layers[l];
      if (!y.weight) continue;
      for (int o = 0; o < y.O; o++)
        std::memcpy(d.at[l].W.data + (size_t)o * y.line(), y.weight + (size_t)o * y.depth(), y.depth() * sizeof(T));
      if (y.bias) std::memcpy(d.at[l].b.data, y.bias, y.O * sizeof(T));
    }
  }

  void take(Desk &d, const T *features, const int64_t *samples, const std::vector<Block> &blocks) const {
    const Layer<T> &y = layers[0];
    Memory &m = d.at[0];
    size_t size = (size_t)y.C * y.H * y.W;
    if (y.kind == convolution) m.A.clear();  // the border
    for (const Block &block : blocks) {
      T *A = m.A.data + y.in() * block.first;
      if (y.kind != convolution)
        lay_lines<T>(block, features, samples, size, 0, (int)size, A);
      else
        for (int p = 0; p < y.C * y.H; p++) {
          size_t line = (size_t)(p / y.H * (y.H + 2 * y.ph) + p % y.H + y.ph) * y.across() + y.pw;
          lay_lines<T>(block, features, samples, size, (int64_t)p * y.W, y.W, A + line * block.rows);
        }
      for (int r = 0; r < block.count && y.kind == dense; r++)
        std::memcpy(m.R.data + (size_t)(block.first + r) * padded<T>(y.C), features + samples[block.first + r] * (int64_t)size,
                    size * sizeof(T));
    }
  }

  // Lay out a block's lines; the borders of images are zero from here on.
  void lay_out(Desk &d, int rows) const {
    if (d.rows == rows) return;
    d.rows = rows;
    for (size_t l = 0; l < layers.size(); l++) {
      const Layer<T> &y = layers[l];
      if (y.kind != convolution) continue;
      if (l) d.at[l].A.clear();
      int k = 0;
      for (int c = 0; c < y.C; c++)
        for (int i = 0; i < y.kh; i++)
          for (int j = 0; j < y.kw; j++) d.at[l].taps[k++] = ((size_t)(c * (y.H + 2 * y.ph) + i) * y.across() + j) * rows;
      k = 0;
      for (int o = 0; o < y.O; o++)
        for (int i = 0; i < y.kh; i++)
          for (int j = 0; j < y.kw; j++) d.at[l].back[k++] = ((size_t)(o * (y.H + y.kh - 1) + i) * (y.W + y.kw - 1) + j) * rows;
    }
  }

  // Where pixel (0, 0) of a layer's output goes, and how far apart its lines and channels are.
  struct Target {
    T *at;
    size_t line, plane;
  };
  Target target(Desk &d, size_t l, int rows) const {
    const Layer<T> &y = layers[l];
    if (l + 1 == layers.size()) return {d.one.data, (size_t)y.OW * rows, (size_t)y.OH * y.OW * rows};
    const Layer<T> &next = layers[l + 1];
    if (next.kind == dense) return {d.at[l + 1].A.data, (size_t)y.OW * rows, (size_t)y.OH * y.OW * rows};
    size_t line = (size_t)next.across() * rows;
    return {d.at[l + 1].A.data + next.ph * line + (size_t)next.pw * rows, line, (next.H + 2 * next.ph) * line};
  }

  T *forward(Desk &d, const Block &block, bool learning) const {
    typedef typename Vec<T>::type V;
    int rows = block.rows;
    lay_out(d, rows);
    for (size_t l = 0; l < layers.size(); l++) {
      const Layer<T> &y = layers[l];
      Memory &m = d.at[l];
      const T *A = m.A.data + (l ? 0 : y.in() * block.first), *start = y.bias ? m.b.data : nullptr;
      Target to = target(d, l, rows);
      if (y.kind == dense) {
        if (l && learning) turn_rows(m, y.C, block);
        product<T>(y.O, y.C, rows, m.W.data, y.line(), 1, A, Evenly{(size_t)rows}, to.at, rows, start);
        activate<T>(y.activation, (size_t)y.O * rows, to.at);
      } else if (y.kind == convolution) {
        for (int i = 0; i < y.OH; i++) {
          T *Z = to.at + i * to.line;
          product<T>(y.O, y.depth(), y.OW * rows, m.W.data, y.line(), 1, A + (size_t)i * y.across() * rows,
                     Listed{m.taps.data()}, Z, to.plane, start);
          for (int o = 0; o < y.O && y.activation; o++) activate<T>(y.activation, (size_t)y.OW * rows, Z + o * to.plane);
        }
      } else {
        for (int p = 0; p < y.O * y.OH; p++)
          for (int j = 0; j < y.OW; j++) {
            const T *x = A + ((size_t)(p / y.OH * y.H + p % y.OH * y.kh) * y.W + j * y.kw) * rows;
            T *z = to.at + p / y.OH * to.plane + p % y.OH * to.line + (size_t)j * rows;
            for (int r = 0; r < rows; r += L) {
              V most = *(const V *)(x + r);
              for (int w = 1; w < y.kh * y.kw; w++) {
                V v = *(const V *)(x + (size_t)(w / y.kw * y.W + w % y.kw) * rows + r);
                most = (v > most) | (v != v) ? v : most;  // NaN stays
              }
              *(V *)(z + r) = most;
            }
          }
      }
    }
    return d.one.data;
  }

  // The inputs of a dense layer row by row, for its weights' gradient.
  static void turn_rows(Memory &m, int ins, const Block &block) {
    typedef typename Vec<T>::type V;
    size_t wide = padded<T>(ins);
    for (int i = 0; i < ins; i += L)
      for (int r = 0; r < block.rows; r += L) {
        V v[L];
        for (int k = 0; k < L; k++) v[k] = i + k < ins ? *(const V *)(m.A.data + (size_t)(i + k) * block.rows + r) : V{};
        transpose<T>(v);
        for (int k = 0; k < L; k++) *(V *)(m.R.data + (size_t)(r + k) * wide + i) = v[k];
      }
  }

  // A client of one block needs no sum: the gradient of its dense weights goes straight into them.
  void backward(Desk &d, const Block &block, bool alone, T rate) const {
    int rows = block.rows;
    T *g = d.one.data, *below = d.two.data;  // gradients at a layer's output and at its input, without borders
    for (size_t l = layers.size(); l-- > 0; std::swap(g, below)) {
      const Layer<T> &y = layers[l];
      Memory &m = d.at[l];
      if (y.kind == dense) {
        if (l) product<T>(y.C, y.O, rows, m.W.data, 1, y.line(), g, Evenly{(size_t)rows}, below, rows, nullptr);
        dense_weights(y, m, block, l == 0, g, alone ? m.W.data : m.dW.data, alone ? -rate : T(1));
      } else if (y.kind == convolution) {
        if (l) convolution_inputs(d, y, m, rows, g, below);
        convolution_weights(y, m, rows, m.A.data + (l ? 0 : y.in() * block.first), g);
      } else if (l) {
        pool_inputs(y, rows, m.A.data, target(d, l, rows), g, below);
      }
      if (y.bias) add_bias(y, m, rows, g);
      if (l) through_lines(layers[l - 1].activation, y, m, rows, below);
    }
  }

  static void through_lines(int activation, const Layer<T> &y, Memory &m, int rows, T *g) {
    if (activation == none) return;
    size_t run = (size_t)y.W * rows;
    for (int p = 0; p < y.C * y.H; p++) {
      size_t line = (size_t)(p / y.H * (y.H + 2 * y.ph) + p % y.H + y.ph) * y.across() + y.pw;
      through<T>(activation, run, g + p * run, m.A.data + line * rows);
    }
  }

  static void add_bias(const Layer<T> &y, Memory &m, int rows, const T *g) {
    typedef typename Vec<T>::type V;
    size_t run = (size_t)y.OH * y.OW * rows;
    for (int o = 0; o < y.O; o++) {
      V sum{};
      for (size_t i = 0; i < run; i += L) sum += *(const V *)(g + o * run + i);
      m.db.data[o] += sum_of<T>(sum);
    }
  }

  static void dense_weights(const Layer<T> &y, const Memory &m, const Block &block, bool first, const T *g, T *to, T factor) {
    int ins = y.line(), i = 0;
    const T *X = m.R.data + (first ? (size_t)block.first * ins : 0);
    for (; i + 4 * L <= ins; i += 4 * L) update_inputs<T, 4>(y.O, block.count, g, block.rows, X + i, ins, to + i, ins, factor);
    for (; i + 2 * L <= ins; i += 2 * L) update_inputs<T, 2>(y.O, block.count, g, block.rows, X + i, ins, to + i, ins, factor);
    for (; i < ins; i += L) update_inputs<T, 1>(y.O, block.count, g, block.rows, X + i, ins, to + i, ins, factor);
  }

  // The gradient at a convolution's input is a convolution of the one at its output, with its kernels turned round.
  static void convolution_inputs(Desk &d, const Layer<T> &y, Memory &m, int rows, const T *g, T *below) {
    int taps = y.kh * y.kw;
    for (int c = 0; c < y.C; c++)
      for (int o = 0; o < y.O; o++)
        for (int k = 0; k < taps; k++)
          m.turned.data[((size_t)c * y.O + o) * taps + k] = m.W.data[((size_t)o * y.C + c) * taps + taps - 1 - k];
    size_t across = (size_t)(y.W + y.kw - 1) * rows, run = (size_t)y.OW * rows;
    int above = y.kh - 1 - y.ph, left = y.kw - 1 - y.pw, high = y.H + y.kh - 1;
    for (int o = 0; o < y.O; o++)
      for (int i = 0; i < high; i++) {
        T *to = d.edged.data + ((size_t)o * high + i) * across;
        int from = i - above;
        if (from < 0 || from >= y.OH) {
          std::memset(to, 0, across * sizeof(T));
          continue;
        }
        std::memset(to, 0, (size_t)left * rows * sizeof(T));
        std::memcpy(to + (size_t)left * rows, g + ((size_t)o * y.OH + from) * run, run * sizeof(T));
        std::memset(to + (size_t)left * rows + run, 0, (across - run - (size_t)left * rows) * sizeof(T));
      }
    for (int i = 0; i < y.H; i++)
      product<T>(y.C, y.O * taps, y.W * rows, m.turned.data, (size_t)y.O * taps, 1, d.edged.data + i * across,
                 Listed{m.back.data()}, below + (size_t)i * y.W * rows, (size_t)y.H * y.W * rows, nullptr);
  }

  static void convolution_weights(const Layer<T> &y, Memory &m, int rows, const T *A, const T *g) {
    constexpr int O = tall / 2;
    int o = 0;
    for (; o + O <= y.O; o += O) convolution_outputs<O>(y, m, rows, A, g, o);
    for (; o < y.O; o++) convolution_outputs<1>(y, m, rows, A, g, o);
  }

  template <int O> static void convolution_outputs(const Layer<T> &y, Memory &m, int rows, const T *A, const T *g, int o) {
    int k = 0, depth = y.depth();
    for (; k + 6 <= depth; k += 6) gather<O, 6>(y, m, rows, A, g, o, k);
    for (; k + 3 <= depth; k += 3) gather<O, 3>(y, m, rows, A, g, o, k);
    for (; k < depth; k++) gather<O, 1>(y, m, rows, A, g, o, k);
  }

  // dW[o][k] += sum over pixels and rows of g[o] A[tap k], for O outputs and K taps.
  template <int O, int K> static void gather(const Layer<T> &y, Memory &m, int rows, const T *A, const T *g, int o, int k) {
    typedef typename Vec<T>::type V;
    size_t run = (size_t)y.OW * rows, plane = y.OH * run;
    V sum[O][K];
    TDCD_UNROLL for (int p = 0; p < O; p++)
      TDCD_UNROLL for (int q = 0; q < K; q++) sum[p][q] = V{};
    for (int i = 0; i < y.OH; i++) {
      const T *from = g + o * plane + i * run, *line = A + (size_t)i * y.across() * rows, *tap[K];
      TDCD_UNROLL for (int q = 0; q < K; q++) tap[q] = line + m.taps[k + q];
      for (size_t r = 0; r < run; r += L) {
        V v[O];
        TDCD_UNROLL for (int p = 0; p < O; p++) v[p] = *(const V *)(from + p * plane + r);
        TDCD_UNROLL for (int q = 0; q < K; q++) {
          V w = *(const V *)(tap[q] + r);
          TDCD_UNROLL for (int p = 0; p < O; p++) sum[p][q] += v[p] * w;
        }
      }
    }
    TDCD_UNROLL for (int p = 0; p < O; p++)
      TDCD_UNROLL for (int q = 0; q < K; q++) m.dW.data[(size_t)(o + p) * y.depth() + k + q] += sum_of<T>(sum[p][q]);
  }

  // The first of a window's largest pixels gets the gradient, as in torch.
  static void pool_inputs(const Layer<T> &y, int rows, const T *A, const Target &out, const T *g, T *below) {
    typedef typename Vec<T>::type V;
    if (y.OH * y.kh != y.H || y.OW * y.kw != y.W) std::memset(below, 0, (size_t)y.C * y.H * y.W * rows * sizeof(T));
    for (int p = 0; p < y.O * y.OH; p++)
      for (int j = 0; j < y.OW; j++) {
        size_t window = ((size_t)(p / y.OH * y.H + p % y.OH * y.kh) * y.W + j * y.kw) * rows;
        const T *z = out.at + p / y.OH * out.plane + p % y.OH * out.line + (size_t)j * rows;
        for (int r = 0; r < rows; r += L) {
          V most = *(const V *)(z + r), left = *(const V *)(g + ((size_t)p * y.OW + j) * rows + r);
          for (int w = 0; w < y.kh * y.kw; w++) {
            size_t pixel = window + (size_t)(w / y.kw * y.W + w % y.kw) * rows + r;
            auto found = *(const V *)(A + pixel) == most;
            *(V *)(below + pixel) = found ? left : V{};
            left = found ? V{} : left;
          }
        }
      }
  }

  void step(Desk &d, bool alone, T rate) const {
    for (size_t l = 0; l < layers.size(); l++) {
      const Layer<T> &y = layers[l];
      if (!y.weight) continue;
      Memory &m = d.at[l];
      for (int o = 0; o < y.O && y.bias; o++) m.b.data[o] -= rate * m.db.data[o];
      m.db.clear();
      if (alone && y.kind == dense) continue;
      for (size_t i = 0; i < y.weights(); i++) m.W.data[i] -= rate * m.dW.data[i];
      m.dW.clear();
    }
  }

  void add(const Desk &d, double weight, double *sums) const {
    for (size_t l = 0; l < layers.size(); l++) {
      const Layer<T> &y = layers[l];
      if (!y.weight) continue;
      const Memory &m = d.at[l];
      for (int o = 0; o < y.O; o++)
        for (int i = 0; i < y.depth(); i++) *sums++ += weight * (double)m.W.data[(size_t)o * y.line() + i];
      for (int o = 0; o < y.O && y.bias; o++) *sums++ += weight * (double)m.b.data[o];
    }
  }
};

// Whether a layer's numbers fit each other, what goes in (an image, or its numbers in a line) and its weights.
template <class T> bool fits(const Layer<T> &y, int64_t C, int64_t H, int64_t W, const Span<const T> *weights) {
  bool weighted = y.kind != pool;
  bool shaped = y.kind == dense ? y.C == C * H * W && y.H == 1 && y.W == 1 && y.OH == 1 && y.OW == 1 && y.kh == 1 &&
                                      y.kw == 1 && y.ph == 0 && y.pw == 0
                                : y.C == C && y.H == H && y.W == W;
  if (y.kind == convolution)
    shaped = shaped && y.OH == y.H + 2 * y.ph - y.kh + 1 && y.OW == y.W + 2 * y.pw - y.kw + 1 && y.ph < y.kh && y.pw < y.kw;
  if (y.kind == pool)
    shaped = shaped && y.O == y.C && y.OH == y.H / y.kh && y.OW == y.W / y.kw && y.ph == 0 && y.pw == 0 && !y.activation;
  bool sized = weighted ? weights[0].at && weights[0].size == (int64_t)y.O * y.depth() : !weights[0].at;
  return shaped && sized && (!weights[1].at || (weighted && weights[1].size == y.O));
}

template <class T> bool network(Span<const int> numbers, Span<const Span<const T>> weights, Net<T> &net) {
  if (numbers.size < 1) return false;
  int64_t count = numbers.at[0], row = 0;  // numbers that a row's way through the layers takes
  if (count < 1 || count > largest || numbers.size != 1 + 12 * count || weights.size != 2 * count) return false;
  int64_t C = 0, H = 0, W = 0;
  for (int l = 0; l < count; l++) {
    const int *n = numbers.at + 1 + 12 * l;
    const Span<const T> *w = weights.at + 2 * l;
    for (int i = 0; i < 12; i++)
      if (n[i] < (i < 2 || i > 9 ? 0 : 1) || n[i] > largest) return false;
    if (n[0] > pool || n[1] > sigmoid) return false;
    net.layers.push_back({n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], w[0].at, w[1].at});
    const Layer<T> &y = net.layers.back();
    if (!fits(y, l ? C : y.C, l ? H : y.H, l ? W : y.W, w)) return false;
    C = y.O, H = y.OH, W = y.OW;
    row += 2 * y.in() + 2 * y.out();
  }
  if (net.layers.back().kind != dense) return false;
  int64_t fitting = (1 << 20) / (row * (int64_t)sizeof(T) * Vec<T>::width);
  net.vectors = fitting > 9 ? 9 : fitting < 1 ? 1 : (int)fitting;
  return true;
}

}  // namespace
