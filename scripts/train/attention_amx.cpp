// attention_amx.cpp - causal attention and its gradients on AMX-BF16, for PyTorch on processors
// that have it: heads of 64, a multiple of 64 positions, one thread. At 1,024 positions PyTorch
// 2.6's own kernel takes 3.5 times as long (50 against 14 ms for 2 sequences of 4 heads).
//
// Forward: blocks of 32 queries go over blocks of keys with a running maximum (Dao et al. 2022).
// Backward: blocks of 64 keys by 64 queries, transposed, so that what belongs to a query lies along
// vectors; weights are computed again from the logarithm of their sum. Products read bfloat16 and
// add up in float32.
//
// A tile of a product's right side holds pairs: row r has [2 r][c], [2 r + 1][c] for 16 columns c.

#include <immintrin.h>
#include <sys/syscall.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace
{

using bf16 = uint16_t;

constexpr int64_t HEAD = 64, TILE = 16, QUERIES = 32, KEYS = 256, BLOCK = 64;
constexpr float SCALE = 0.125f, LOG2E = float(M_LOG2E); // of a logit: 1 / sqrt(HEAD)
constexpr int64_t PAIRS = TILE * TILE;                  // 32-bit pairs in a tile
constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;

struct alignas(64) Tiles { // what ldtilecfg reads
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Configures the tiles, and gives them back as another library may have left them.
class TileUse
{
    Tiles before_;

  public:
    TileUse()
    {
        static const long refused =
            syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
        TORCH_CHECK(refused == 0, "the kernel does not give AMX tiles to this process");
        _tile_storeconfig(&before_);
        Tiles mine;
        for (int i = 0; i < 8; i++) {
            mine.row_bytes[i] = 64;
            mine.rows[i] = TILE;
        }
        _tile_loadconfig(&mine);
    }
    ~TileUse()
    {
        if (before_.palette)
            _tile_loadconfig(&before_);
        else
            _tile_release();
    }
};

// 2^x; 0 for what is far below.
inline __m512 exp2_of(__m512 x)
{
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.3298820e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6732072e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5503324e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022652e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314720e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

inline __m512i halves(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

inline __m512 widened(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline __m256i load16(const bf16 *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

inline __m512i lane_numbers()
{
    return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

// The pairs (a, b) of two rows of 16.
inline __m512i paired(__m256i a, __m256i b)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(a),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

// Right sides for products over HEAD: x is [n][HEAD] with rows `step` apart; per 16 rows 2 tiles of
// [16 pairs of dimensions][16 rows].
void pack_across(const bf16 *x, int64_t step, int64_t n, uint32_t *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t half = 0; half < 2; half++) {
            const uint32_t *pairs = (const uint32_t *)(x + i * step) + half * TILE;
            uint32_t *tile = out + (i / TILE * 2 + half) * PAIRS + i % TILE;
            for (int64_t r = 0; r < TILE; r++)
                tile[r * TILE] = pairs[r];
        }
}

// Right sides for products over rows: per 32 rows 4 tiles of [16 pairs of rows][16 dimensions].
void pack_along(const bf16 *x, int64_t step, int64_t n, uint32_t *out)
{
    for (int64_t i = 0; i < n; i += 2)
        for (int64_t d = 0; d < 4; d++) {
            const bf16 *at = x + i * step + d * TILE;
            uint32_t *row = out + (i / 32 * 4 + d) * PAIRS + i % 32 / 2 * TILE;
            _mm512_storeu_si512(row, paired(load16(at), load16(at + step)));
        }
}

// Left sides for products over rows: x transposed, per 32 rows 4 tiles of [16 dimensions][32 rows].
void pack_turned(const bf16 *x, int64_t step, int64_t n, bf16 *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < HEAD; d++)
            out[(i / 32 * 4 + d / TILE) * 2 * PAIRS + d % TILE * 32 + i % 32] = x[i * step + d];
}

// Tiles 0 to 3 are C[32][32], 4 and 5 two rows of tiles of A, 6 and 7 two columns of B.
#define TILES_ZERO()                                                                               \
    do {                                                                                           \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        _tile_zero(2);                                                                             \
        _tile_zero(3);                                                                             \
    } while (0)
// move: _tile_loadd or _tile_stored; c: rows of c_step floats.
#define TILES_MOVE(move, c, c_step)                                                                \
    do {                                                                                           \
        move(0, c, (c_step)*4);                                                                    \
        move(1, (c) + TILE, (c_step)*4);                                                           \
        move(2, (c) + TILE * (c_step), (c_step)*4);                                                \
        move(3, (c) + TILE * (c_step) + TILE, (c_step)*4);                                         \
    } while (0)
// C += A B over 32; a0, a1: rows of a_step.
#define TILES_DOT(a0, a1, a_step, b0, b1)                                                          \
    do {                                                                                           \
        _tile_loadd(4, a0, (a_step)*2);                                                            \
        _tile_loadd(6, b0, 64);                                                                    \
        _tile_loadd(7, b1, 64);                                                                    \
        _tile_loadd(5, a1, (a_step)*2);                                                            \
        _tile_dpbf16ps(0, 4, 6);                                                                   \
        _tile_dpbf16ps(1, 4, 7);                                                                   \
        _tile_dpbf16ps(2, 5, 6);                                                                   \
        _tile_dpbf16ps(3, 5, 7);                                                                   \
    } while (0)

// C[32][32] = X Y over HEAD: X rows x_step apart, Y packed across, from its column 16 n on.
inline void product(float *c, int64_t c_step, const bf16 *x, int64_t x_step, const uint32_t *y)
{
    TILES_ZERO();
    for (int64_t half = 0; half < 2; half++)
        TILES_DOT(x + half * 32, x + TILE * x_step + half * 32, x_step, y + half * PAIRS,
                  y + (2 + half) * PAIRS);
    TILES_MOVE(_tile_stored, c, c_step);
}

// One head's queries q over keys; out, q: rows q_step apart; lse: log2 of the sums, [n].
void forward_head(const bf16 *q, int64_t q_step, const uint32_t *k_across, const uint32_t *v_along,
                  int64_t n, bf16 *out, float *lse)
{
    alignas(64) static thread_local float s[QUERIES * KEYS], o[QUERIES * HEAD];
    alignas(64) static thread_local bf16 p[QUERIES * KEYS];
    const __m512 factor = _mm512_set1_ps(SCALE * LOG2E);
    for (int64_t q0 = 0; q0 < n; q0 += QUERIES) {
        float most[QUERIES], sum[QUERIES];
        std::fill_n(most, QUERIES, -1e30f);
        std::fill_n(sum, QUERIES, 0.0f);
        std::fill_n(o, QUERIES * HEAD, 0.0f);
        const bf16 *rows = q + q0 * q_step;
        for (int64_t k0 = 0; k0 < q0 + QUERIES; k0 += KEYS) {
            int64_t count = std::min(KEYS, q0 + QUERIES - k0);
            for (int64_t k = 0; k < count; k += 32)
                product(s + k, KEYS, rows, q_step, k_across + (k0 + k) / TILE * 2 * PAIRS);
            for (int64_t i = 0; i < QUERIES; i++) {
                float *row = s + i * KEYS;
                for (int64_t k = q0 + i + 1 - k0; k < count; k++)
                    row[k] = -1e30f;
                __m512 top = _mm512_set1_ps(-1e30f);
                for (int64_t k = 0; k < count; k += 16)
                    top = _mm512_max_ps(top, _mm512_load_ps(row + k));
                float now = std::max(most[i], _mm512_reduce_max_ps(top) * SCALE * LOG2E);
                const __m512 shift = _mm512_set1_ps(-now);
                __m512 total = _mm512_setzero_ps();
                for (int64_t k = 0; k < count; k += 32) {
                    __m512 a = exp2_of(_mm512_fmadd_ps(_mm512_load_ps(row + k), factor, shift));
                    __m512 b =
                        exp2_of(_mm512_fmadd_ps(_mm512_load_ps(row + k + 16), factor, shift));
                    total = _mm512_add_ps(total, _mm512_add_ps(a, b));
                    _mm512_store_si512(p + i * KEYS + k, halves(a, b));
                }
                float fade = std::exp2(most[i] - now);
                sum[i] = sum[i] * fade + _mm512_reduce_add_ps(total);
                most[i] = now;
                for (int64_t d = 0; d < HEAD; d += 16) {
                    float *at = o + i * HEAD + d;
                    _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(fade)));
                }
            }
            for (int64_t d = 0; d < 2; d++) {
                float *c = o + d * 32;
                TILES_MOVE(_tile_loadd, c, HEAD);
                for (int64_t k = 0; k < count; k += 32) {
                    const uint32_t *b = v_along + ((k0 + k) / 32 * 4 + d * 2) * PAIRS;
                    TILES_DOT(p + k, p + TILE * KEYS + k, KEYS, b, b + PAIRS);
                }
                TILES_MOVE(_tile_stored, c, HEAD);
            }
        }
        for (int64_t i = 0; i < QUERIES; i++) {
            __m512 share = _mm512_set1_ps(1.0f / sum[i]);
            lse[q0 + i] = most[i] + std::log2(sum[i]);
            for (int64_t d = 0; d < HEAD; d += 32) {
                const float *at = o + i * HEAD + d;
                _mm512_storeu_si512(out + (q0 + i) * q_step + d,
                                    halves(_mm512_mul_ps(_mm512_load_ps(at), share),
                                           _mm512_mul_ps(_mm512_load_ps(at + 16), share)));
            }
        }
    }
}

// What a query head's gradients are made of, packed.
struct QueryPack {
    std::vector<uint32_t> q_across, q_along, g_across, g_along;
    std::vector<float> dot, dq; // out . gradient; dq transposed: per 32 queries [HEAD][32]

    explicit QueryPack(int64_t n)
        : q_across(n * 32), q_along(n * 32), g_across(n * 32), g_along(n * 32), dot(n), dq(n * HEAD)
    {
    }

    void fill(const bf16 *q, const bf16 *out, const bf16 *g, int64_t step, int64_t n)
    {
        pack_across(q, step, n, q_across.data());
        pack_along(q, step, n, q_along.data());
        pack_across(g, step, n, g_across.data());
        pack_along(g, step, n, g_along.data());
        for (int64_t i = 0; i < n; i++) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t d = 0; d < HEAD; d += 16)
                sum = _mm512_fmadd_ps(widened(load16(out + i * step + d)),
                                      widened(load16(g + i * step + d)), sum);
            dot[i] = _mm512_reduce_add_ps(sum);
        }
        std::fill(dq.begin(), dq.end(), 0.0f);
    }
};

// C[BLOCK][HEAD] += A[BLOCK][BLOCK] B, B packed along its rows.
void add_rows(float *c, const bf16 *a, const uint32_t *b)
{
    for (int64_t r = 0; r < BLOCK; r += 32)
        for (int64_t d = 0; d < 2; d++) {
            TILES_MOVE(_tile_loadd, c + r * HEAD + d * 32, HEAD);
            for (int64_t i = 0; i < 2; i++) {
                const uint32_t *right = b + (i * 4 + d * 2) * PAIRS;
                TILES_DOT(a + r * BLOCK + i * 32, a + (r + TILE) * BLOCK + i * 32, BLOCK, right,
                          right + PAIRS);
            }
            TILES_MOVE(_tile_stored, c + r * HEAD + d * 32, HEAD);
        }
}

// S[BLOCK][BLOCK] = X Y, X rows `step` apart, Y packed across.
void products(float *s, const bf16 *x, int64_t step, const uint32_t *y)
{
    for (int64_t r = 0; r < BLOCK; r += 32)
        for (int64_t c = 0; c < BLOCK; c += 32)
            product(s + r * BLOCK + c, BLOCK, x + r * step, step, y + c / TILE * 2 * PAIRS);
}

// One block of 64 keys with all queries of one head from q0 = k0 on; adds to dk, dv [BLOCK][HEAD].
void backward_block(const bf16 *k, const bf16 *v, int64_t kv_step, const bf16 *k_turned,
                    QueryPack &pack, const float *lse, int64_t k0, int64_t n, float *dk, float *dv)
{
    alignas(64) static thread_local float s[BLOCK * BLOCK], ds[BLOCK * BLOCK];
    alignas(64) static thread_local bf16 p_rows[BLOCK * BLOCK], d_rows[BLOCK * BLOCK];
    alignas(64) static thread_local uint32_t d_pairs[BLOCK * BLOCK / 2]; // [2][4][16][16]
    const __m512 factor = _mm512_set1_ps(SCALE * LOG2E), scales = _mm512_set1_ps(SCALE);
    const __m512i places = lane_numbers();
    for (int64_t q0 = k0; q0 < n; q0 += BLOCK) {
        products(s, k + k0 * kv_step, kv_step, pack.q_across.data() + q0 * 32);
        products(ds, v + k0 * kv_step, kv_step, pack.g_across.data() + q0 * 32);
        for (int64_t j = 0; j < BLOCK; j += 2)
            for (int64_t i = 0; i < BLOCK; i += 32) {
                __m256i d[2][2]; // [row][half]
                for (int row = 0; row < 2; row++)
                    for (int half = 0; half < 2; half++) {
                        int64_t at = (j + row) * BLOCK + i + half * 16, query = i + half * 16;
                        __m512 sums = _mm512_loadu_ps(lse + q0 + query);
                        __m512 w = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(s + at), factor, sums));
                        if (q0 == k0) { // key j + row is seen by the queries from there on
                            __mmask16 seen = _mm512_cmpge_epi32_mask(
                                places, _mm512_set1_epi32(int(j + row - query)));
                            w = _mm512_maskz_mov_ps(seen, w);
                        }
                        __m512 off = _mm512_sub_ps(_mm512_load_ps(ds + at),
                                                   _mm512_loadu_ps(pack.dot.data() + q0 + query));
                        __m256i p = (__m256i)_mm512_cvtneps_pbh(w);
                        d[row][half] = (__m256i)_mm512_cvtneps_pbh(
                            _mm512_mul_ps(_mm512_mul_ps(w, scales), off));
                        _mm256_store_si256((__m256i *)(p_rows + at), p);
                        _mm256_store_si256((__m256i *)(d_rows + at), d[row][half]);
                    }
                for (int half = 0; half < 2; half++) {
                    int64_t column = (i + half * 16) / TILE;
                    _mm512_store_si512(d_pairs + (j / 32 * 4 + column) * PAIRS + j % 32 / 2 * TILE,
                                       paired(d[0][half], d[1][half]));
                }
            }
        add_rows(dv, p_rows, pack.g_along.data() + q0 * 32);
        add_rows(dk, d_rows, pack.q_along.data() + q0 * 32);
        for (int64_t c = 0; c < 2; c++) // dq^T[HEAD][32] += k^T ds
            for (int64_t d = 0; d < 2; d++) {
                float *to = pack.dq.data() + (q0 / 32 + c) * HEAD * 32 + d * 32 * 32;
                TILES_MOVE(_tile_loadd, to, 32);
                for (int64_t i = 0; i < 2; i++) {
                    const bf16 *a = k_turned + ((k0 / 32 + i) * 4 + d * 2) * 2 * PAIRS;
                    const uint32_t *b = d_pairs + (i * 4 + c * 2) * PAIRS;
                    TILES_DOT(a, a + 2 * PAIRS, 32, b, b + PAIRS);
                }
                TILES_MOVE(_tile_stored, to, 32);
            }
    }
}

void store_rows(const float *rows, int64_t n, bf16 *out, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < HEAD; d += 32) {
            const float *at = rows + i * HEAD + d;
            _mm512_storeu_si512(out + i * step + d,
                                halves(_mm512_loadu_ps(at), _mm512_loadu_ps(at + 16)));
        }
}

// As store_rows, of rows that stand as columns: per 32 of them [HEAD][32].
void store_turned(const float *columns, int64_t n, bf16 *out, int64_t step)
{
    const __m512i down = _mm512_slli_epi32(lane_numbers(), 5);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < HEAD; d += 32) {
            const float *at = columns + (i / 32 * HEAD + d) * 32 + i % 32;
            _mm512_storeu_si512(out + i * step + d,
                                halves(_mm512_i32gather_ps(down, at, 4),
                                       _mm512_i32gather_ps(down, at + TILE * 32, 4)));
        }
}

bf16 *data(const at::Tensor &t)
{
    return (bf16 *)t.data_ptr();
}

void check(const at::Tensor &t, const at::Tensor &like)
{
    TORCH_CHECK(t.dim() == 4 && t.size(3) == HEAD && t.size(1) % BLOCK == 0 &&
                    t.scalar_type() == at::kBFloat16 && t.is_contiguous() &&
                    t.size(0) == like.size(0) && t.size(1) == like.size(1),
                "attention: a tensor is not [sequences][multiple of 64][heads][64] in bfloat16");
}

// q: [sequences][positions][heads][64], k, v: the same of KV heads. Returns the mixed values in q's
// shape and log2 of the sums of weights, [sequences][heads][positions].
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor &q, const at::Tensor &k,
                                           const at::Tensor &v)
{
    check(q, q);
    check(k, q);
    check(v, q);
    int64_t n_seq = q.size(0), n = q.size(1), n_head = q.size(2), n_kv = k.size(2);
    int64_t q_step = n_head * HEAD, kv_step = n_kv * HEAD;
    at::Tensor out = at::empty_like(q);
    at::Tensor lse = at::empty({n_seq, n_head, n}, q.options().dtype(at::kFloat));
    std::vector<uint32_t> k_across(n * 32), v_along(n * 32);
    TileUse tiles;
    for (int64_t lane = 0; lane < n_seq * n_kv; lane++) {
        int64_t seq = lane / n_kv, kv = lane % n_kv, at = seq * n * kv_step + kv * HEAD;
        pack_across(data(k) + at, kv_step, n, k_across.data());
        pack_along(data(v) + at, kv_step, n, v_along.data());
        for (int64_t h = kv * n_head / n_kv; h < (kv + 1) * n_head / n_kv; h++)
            forward_head(data(q) + seq * n * q_step + h * HEAD, q_step, k_across.data(),
                         v_along.data(), n, data(out) + seq * n * q_step + h * HEAD,
                         lse.data_ptr<float>() + (seq * n_head + h) * n);
    }
    return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor &g, const at::Tensor &q,
                                                        const at::Tensor &k, const at::Tensor &v,
                                                        const at::Tensor &out,
                                                        const at::Tensor &lse)
{
    check(g, q);
    int64_t n_seq = q.size(0), n = q.size(1), n_head = q.size(2), n_kv = k.size(2);
    int64_t q_step = n_head * HEAD, kv_step = n_kv * HEAD;
    at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    std::vector<bf16> k_turned(n * HEAD);
    std::vector<float> k_sum(n * HEAD), v_sum(n * HEAD);
    QueryPack pack(n);
    TileUse tiles;
    for (int64_t lane = 0; lane < n_seq * n_kv; lane++) {
        int64_t seq = lane / n_kv, kv = lane % n_kv, at = seq * n * kv_step + kv * HEAD;
        pack_turned(data(k) + at, kv_step, n, k_turned.data());
        std::fill(k_sum.begin(), k_sum.end(), 0.0f);
        std::fill(v_sum.begin(), v_sum.end(), 0.0f);
        for (int64_t h = kv * n_head / n_kv; h < (kv + 1) * n_head / n_kv; h++) {
            int64_t head = seq * n * q_step + h * HEAD;
            pack.fill(data(q) + head, data(out) + head, data(g) + head, q_step, n);
            for (int64_t k0 = 0; k0 < n; k0 += BLOCK)
                backward_block(data(k) + at, data(v) + at, kv_step, k_turned.data(), pack,
                               lse.data_ptr<float>() + (seq * n_head + h) * n, k0, n,
                               k_sum.data() + k0 * HEAD, v_sum.data() + k0 * HEAD);
            store_turned(pack.dq.data(), n, data(dq) + head, q_step);
        }
        store_rows(k_sum.data(), n, data(dk) + at, kv_step);
        store_rows(v_sum.data(), n, data(dv) + at, kv_step);
    }
    return {dq, dk, dv};
}

TORCH_LIBRARY(pith, m)
{
    m.def("attention(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)");
    m.def("attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse)"
          " -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(pith, CPU, m)
{
    m.impl("attention", &forward);
    m.impl("attention_backward", &backward);
}

} // namespace
