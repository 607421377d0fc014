/*
 * attend_many.cuh - attention of prompts, over pages of 64 entries, for the types and sizes of
 * attend_few.cuh and with the same bits. A block takes 128 rows of a call and all of its pages, a
 * warp 16 MT rows. Codes become f16 in shared memory. What the chunks before the running one gave
 * lies in memory, so that registers hold one chunk: args.o has a row for each of a block.
 *
 * Heads of 256 dimensions take twice the room, so a block has 64 rows and one page. It fetches the
 * next page's keys while it works on values, and values while it works on keys.
 */
#ifndef PI_GPU_ATTEND_MANY_CUH
#define PI_GPU_ATTEND_MANY_CUH

#include "device/gpu/attend_few.cuh"

enum { MANY_PITCH = 4 /* floats between rows of outputs in shared memory */ };

/* Rows of a block. */
template <int DIM> BOTH constexpr int many_height(void)
{
    return DIM > 128 ? 64 : 128;
}
/* Its threads, where a warp takes 16 MT rows. */
template <int DIM, int MT> BOTH constexpr int many_threads(void)
{
    return many_height<DIM>() / (16 * MT) * 32;
}

/* ---- codes to f16: [8 slots or dimensions][64 entries][16 bytes]; 2 threads an entry ---- */

DEV void tile_put(uint8_t *out, int d8, int e, const uint32_t *x)
{
    *(uint4 *)(out + (d8 * TILE + e) * 16) = make_uint4(x[0], x[1], x[2], x[3]);
}

template <int DIM> DEV void keys_q8(const uint8_t *k, uint8_t *out, int e, int half)
{
    UNROLL
    for (int i = 0; i < DIM / 32; i++) {
        const int s = half * (DIM / 32) + i;
        const uint32_t one = *(const uint16_t *)(k + TILE * DIM + (s / 2 * TILE + e) * 2);
        const uint32_t by = q8_scales(one | one << 16);
        uint32_t x[2][4];
        UNROLL
        for (int t = 0; t < 4; t++) {
            const uint32_t w =
                *(const uint32_t *)(k + place_of((4 * s + t) * 16 + e / 4, 1) * 16 + e % 4 * 4) ^
                0x80808080u;
            x[0][t] = bytes_of(w, 0x4140, by);
            x[1][t] = bytes_of(w, 0x4342, by);
        }
        tile_put(out, 2 * s, e, x[0]);
        tile_put(out, 2 * s + 1, e, x[1]);
    }
}

template <int DIM>
DEV void keys_bits(const uint8_t *k, bool three, const code_table &table, uint8_t *out, int e,
                   int half)
{
    const uint8_t *high = k + TILE * DIM / 4, *scales = high + (three ? TILE * DIM / 8 : 0);
    const uint32_t one = *(const uint16_t *)(scales + e * 2), by = one | one << 16;
    uint32_t x[8][4]; /* elements 8 half .. */
    UNROLL
    for (int t = 0; t < 4; t++) {
        const int row = 4 * half + t;
        const uint32_t low =
            *(const uint32_t *)(k + place_of(row * 16 + e / 4, 1) * 16 + e % 4 * 4);
        const uint32_t up =
            three ? *(const uint16_t *)(high + place_of(row * 8 + e / 8, 0) * 16 + e % 8 * 2) : 0;
        uint32_t even, odd, b[2];
        nibbles_of(low, prmt(up, 0, 0x4140), &even, &odd);
        UNROLL
        for (int v = 0; v < 4; v++) {
            numbers_of(table, (v < 2 ? even : odd) >> (v % 2 * 16), b);
            x[2 * v][t] = h2_mul(b[0], by);
            x[2 * v + 1][t] = h2_mul(b[1], by);
        }
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        tile_put(out, 8 * half + i, e, x[i]);
}

DEV void values_q8(const uint8_t *v, uint8_t *out, int e, int half)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int g = 4 * half + i;
        const uint4 c = *(const uint4 *)(v + place_of(e * 8 + g, 1) * 16);
        const uint32_t one = ((const uint16_t *)(v + TILE * 128))[e * 4 + g / 2];
        const uint32_t by = q8_scales(one | one << 16);
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint32_t a = word_of_four(c, 2 * j) ^ 0x80808080u,
                           b = word_of_four(c, 2 * j + 1) ^ 0x80808080u;
            const uint32_t x[4] = {bytes_of(a, 0x4140, by), bytes_of(a, 0x4342, by),
                                   bytes_of(b, 0x4140, by), bytes_of(b, 0x4342, by)};
            tile_put(out, 2 * g + j, e, x);
        }
    }
}

DEV void values_bits(const uint8_t *v, bool three, const code_table &table, uint8_t *out, int e,
                     int half)
{
    const uint8_t *high = v + TILE * 32, *scales = high + (three ? TILE * 16 : 0);
    const uint32_t one = *(const uint16_t *)(scales + e * 2), by = one | one << 16;
    const uint4 c = *(const uint4 *)(v + place_of(e * 2 + half, 0) * 16);
    uint2 up = {0, 0};
    if (three)
        up = *(const uint2 *)(high + e * 16 + 8 * half);
    UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t even, odd, a[2], b[2];
        nibbles_of(word_of_four(c, i), prmt(i < 2 ? up.x : up.y, 0, i % 2 == 0 ? 0x4140 : 0x4342),
                   &even, &odd);
        const uint32_t x = (even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u);
        const uint32_t y = (even >> 4 & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u);
        UNROLL
        for (int j = 0; j < 2; j++) {
            numbers_of(table, x >> (16 * j), a);
            numbers_of(table, y >> (16 * j), b);
            const uint32_t r[4] = {h2_mul(a[0], by), h2_mul(b[0], by), h2_mul(a[1], by),
                                   h2_mul(b[1], by)};
            tile_put(out, 2 * (4 * half + i) + j, e, r);
        }
    }
}

/* Keys of a page to f16, by 128 threads. */
template <int DIM>
DEV void keys_decode(int type, const uint8_t *k, const code_table &table, uint8_t *out)
{
    const int e = TID % TILE, half = TID / TILE % 2;
    if (type == STORE_Q8_0)
        keys_q8<DIM>(k, out, e, half);
    else
        keys_bits<DIM>(k, type == STORE_TURBO3, table, out, e, half);
}

DEV void values_decode(int type, const uint8_t *v, const code_table &table, uint8_t *out)
{
    const int e = TID % TILE, half = TID / TILE % 2;
    if (type == STORE_Q8_0)
        values_q8(v, out, e, half);
    else
        values_bits(v, type == STORE_TURBO3, table, out, e, half);
}

/* ---- fragments ---- */

template <int HEIGHT> DEV void many_rows_at(uint32_t *a, const uint8_t *m, int r, int k)
{
    const int i = LANE / 8;
    ldsm4(a, m + ((2 * k + i / 2) * HEIGHT + 16 * r + (i & 1) * 8 + LANE % 8) * 16);
}

/* ---- weights ---- */

/* Row i of two of products x becomes exponents of 2; returns the largest. A cap's code is long, so
   it stands there once: tiles go by in turn. */
DEV float logits_row(float (*x)[4], int i, float by, float add, const gpu_attend_args &a,
                     const sight &sees, int limit)
{
    float top = NEG_INF;
    if (a.cap > 0.0f) {
        NO_UNROLL
        for (int turn = 0; turn < 8; turn++) {
            const float y = logit_of(x[0][2 * i], by, add, a.cap, a.cap_by);
            const float z = logit_of(x[0][2 * i + 1], by, add, a.cap, a.cap_by);
            UNROLL
            for (int j = 0; j < 7; j++) {
                x[j][2 * i] = x[j + 1][2 * i];
                x[j][2 * i + 1] = x[j + 1][2 * i + 1];
            }
            x[7][2 * i] = y, x[7][2 * i + 1] = z;
        }
    } else {
        UNROLL
        for (int j = 0; j < 8; j++)
            UNROLL
        for (int e = 2 * i; e < 2 * i + 2; e++)
            x[j][e] = fmaf(x[j][e], by, add);
    }
    if (sees.n < TILE || sees.pos != NULL) {
        UNROLL
        for (int j = 0; j < 8; j++)
            UNROLL
        for (int e = 2 * i; e < 2 * i + 2; e++) {
            const int entry = 8 * j + LANE % 4 * 2 + (e & 1);
            const int when = sees.pos != NULL ? sees.pos[entry] : limit;
            x[j][e] = is_seen(sees, entry, when, limit) ? x[j][e] : NEG_INF;
        }
    }
    UNROLL
    for (int j = 0; j < 8; j++)
        UNROLL
    for (int e = 2 * i; e < 2 * i + 2; e++)
        top = n_max(top, x[j][e]);
    top = n_max(top, shfl_xor(top, 1));
    return n_max(top, shfl_xor(top, 2));
}

/* Weights of a row given the largest exponent so far; returns what older sums are multiplied by. */
DEV float weights_row(float (*x)[4], int i, float top, float *m)
{
    const float now = n_max(*m, top), mm = finite_of(now), c = ex2(*m - mm);
    *m = now;
    UNROLL
    for (int j = 0; j < 8; j++) {
        x[j][2 * i] = ex2(x[j][2 * i] - mm);
        x[j][2 * i + 1] = ex2(x[j][2 * i + 1] - mm);
    }
    return c;
}

/* ---- pages ---- */

/* The page behind the last one of which some position is at most `limit`. */
DEV int many_end(const gpu_attend_job &job, int limit)
{
    int end = job.high;
    for (int p = job.high + LANE; p < job.end; p += 32) {
        const int32_t *pos = page_positions(job, p);
        const int n = job.ordered ? 1 : page_ref(job, p).n;
        for (int e = 0; e < n; e++)
            end = pos[e] <= limit ? p + 1 : end;
    }
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
        const int other = (int)shfl((uint32_t)end, LANE ^ mask);
        end = other > end ? other : end;
    }
    return end;
}

/* The page behind chunk i, if there is such a chunk. */
DEV int chunk_last(const gpu_attend_job &job, int i)
{
    int first, end = 0;
    if (i < job.n_chunk)
        chunk_pages(job, i, &first, &end);
    return end;
}

/* A warp's rows, 16 MT: of this chunk. */
template <int DIM, int MT> struct many_rows {
    float o[MT][DIM / 8][4], l[MT][2], m[MT][2];
};

/* What is rarely asked of a row, which registers have no room for: in shared memory. */
struct many_row {
    float by;
    int limit;
};

DEV int many_row_at(int r, int i)
{
    return r * 16 + LANE / 4 + 8 * i;
}

template <int DIM> DEV void many_begin(const gpu_attend_job &job, int row0, many_row *row)
{
    const int n_row = job.n_tok * job.n_group;
    if (TID < many_height<DIM>()) {
        const int own = row0 + TID < n_row ? row0 + TID : n_row - 1;
        row[TID].by = AT(const float, job.scale)[own] * LOG2E;
        row[TID].limit = job.pos0 + own / job.n_group;
    }
}

template <int DIM, int MT> DEV void many_clear(many_rows<DIM, MT> &rows)
{
    UNROLL
    for (int r = 0; r < MT; r++) {
        UNROLL
        for (int d = 0; d < DIM / 8; d++)
            UNROLL
        for (int e = 0; e < 4; e++)
            rows.o[r][d][e] = 0.0f;
        UNROLL
        for (int i = 0; i < 2; i++)
            rows.l[r][i] = 0.0f, rows.m[r][i] = NEG_INF;
    }
}

/* Multiplies the sums so far of sixteen rows, where that changes some. */
template <int DIM, int MT> DEV void many_scale(many_rows<DIM, MT> &rows, int r, const float *c)
{
    if (!any_lane(c[0] != 1.0f || c[1] != 1.0f))
        return;
    UNROLL
    for (int d = 0; d < DIM / 8; d++)
        UNROLL
    for (int e = 0; e < 4; e++)
        rows.o[r][d][e] *= c[e / 2];
    rows.l[r][0] *= c[0], rows.l[r][1] *= c[1];
}

/* Asks for the queries of a block's rows: [8 slots][rows][16 bytes]. */
template <int DIM, int N_THREAD>
DEV void many_queries(const gpu_attend_job &job, int row0, uint8_t *qs)
{
    enum { HEIGHT = many_height<DIM>() };
    const int n_pad = up16(job.n_tok * job.n_group);
    for (int i = TID; i < HEIGHT * DIM / 8; i += N_THREAD) {
        const int row = row0 + i % HEIGHT < n_pad ? row0 + i % HEIGHT : n_pad - 1;
        cp16(qs + i * 16,
             AT(const uint8_t, job.packed) + ((size_t)row * DIM / 8 + i / HEIGHT) * 16);
    }
}

/* The chunk that page `first` is in. */
DEV int many_chunk(const gpu_attend_job &job, int first)
{
    int chunk = 0;
    while (chunk + 1 < job.n_chunk && chunk_last(job, chunk) <= first)
        chunk++;
    return chunk;
}

/* Positions of a page's entries; NULL: the warp's rows see all n. */
template <int MT>
DEV const int32_t *many_positions(const gpu_attend_args &a, const gpu_attend_job &job, int p, int n,
                                  const many_row *row_of)
{
    const int32_t *pos = page_positions(job, p);
    const bool all =
        pos != NULL && job.ordered && a.window == 0 && pos[n - 1] <= row_of[WARP * 16 * MT].limit;
    return all ? NULL : pos;
}

/* Products of keys and the warp's rows; keys(b, j, k): those 16 j .. at dimensions 16 k .. */
template <int DIM, int MT, typename F>
DEV void many_dots(const uint8_t *qs, float (*s)[8][4], F keys)
{
    UNROLL
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t q[MT][4], b[4];
        UNROLL
        for (int r = 0; r < MT; r++)
            many_rows_at<many_height<DIM>()>(q[r], qs, WARP * MT + r, k);
        UNROLL
        for (int j = 0; j < 4; j++) {
            keys(b, j, k);
            UNROLL
            for (int r = 0; r < MT; r++) {
                mma(s[r][2 * j], q[r], b[0], b[1]);
                mma(s[r][2 * j + 1], q[r], b[2], b[3]);
            }
        }
    }
}

/* A page as it is stored, or in the order of keys_q8 and the others. between(): what comes when its
   keys were read, before its values are. */
template <int DIM, int MT, bool CODES, typename F>
DEV void many_page(const gpu_attend_args &a, const gpu_attend_job &job, int p, const uint8_t *qs,
                   const uint8_t *k16, const uint8_t *v16, const many_row *row_of,
                   many_rows<DIM, MT> &rows, F between)
{
    /* of f16 pages: as dots_f16 and sums_f16; place j is at ^ 32 j */
    const int row = LANE / 8 % 2 * 8 + LANE % 8, at = (LANE / 16 ^ LANE % 8) * 16;
    float s[MT][8][4] = {};
    if (CODES)
        many_dots<DIM, MT>(qs, s, [&](uint32_t *b, int j, int k) { keys_at(b, k16, j, k); });
    else if (a.k.beside)
        many_dots<DIM, MT>(qs, s, [&](uint32_t *b, int j, int k) {
            ldsm4t(b, k16 + (row * TILE * 2 | at ^ 32 * j) + k * TILE * 32);
        });
    else { /* as dots_f16_rows */
        const int lane = anew(LANE),
                  own = (lane / 16 * 8 + lane % 8) * DIM * 2 | (lane / 8 % 2 ^ lane % 8) * 16;
        many_dots<DIM, MT>(qs, s, [&](uint32_t *b, int j, int k) {
            ldsm4(b, k16 + (own ^ 32 * (k % 4)) + j * DIM * 32 + k / 4 * 128);
        });
    }
    const gpu_attend_ref ref = page_ref(job, p);
    const sight sees = {many_positions<MT>(a, job, p, ref.n, row_of), ref.n, a.window};
    const float add = ref.log_count * LOG2E;
    uint32_t w[MT][4][4];
    UNROLL
    for (int r = 0; r < MT; r++) {
        float c[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const many_row *own = row_of + many_row_at(WARP * MT + r, i);
            c[i] = weights_row(s[r], i, logits_row(s[r], i, own->by, add, a, sees, own->limit),
                               &rows.m[r][i]);
        }
        UNROLL
        for (int k = 0; k < 4; k++)
            UNROLL
        for (int i = 0; i < 4; i++) {
            const float *x = s[r][2 * k + i / 2] + 2 * (i & 1);
            w[r][k][i] = h2(x[0], x[1]);
        }
        many_scale(rows, r, c);
    }
    between();
    UNROLL
    for (int k = 0; k < 4; k++) {
        if (16 * k >= sees.n)
            continue;
        uint32_t b[4];
        UNROLL
        for (int d = 0; d < DIM / 16; d++) {
            if (CODES)
                values_at(b, v16, d, k);
            else
                ldsm4t(b, v16 + (row * DIM * 2 | at ^ 32 * (d % 4)) + k * DIM * 32 + d / 4 * 128);
            UNROLL
            for (int r = 0; r < MT; r++) {
                mma(rows.o[r][2 * d], w[r][k], b[0], b[1]);
                mma(rows.o[r][2 * d + 1], w[r][k], b[2], b[3]);
            }
        }
        UNROLL
        for (int r = 0; r < MT; r++) {
            float l[4] = {rows.l[r][0], rows.l[r][0], rows.l[r][1], rows.l[r][1]};
            mma(l, w[r][k], ONES, ONES);
            rows.l[r][0] = l[0], rows.l[r][1] = l[2];
        }
    }
}

/* Where what the chunks before gave lies: outputs, a thread's apart, and [rows][2] of maxima and
   sums. Found anew at each join, so that no register holds it meanwhile. */
template <int DIM> struct many_kept {
    float *o, *ml;
};

template <int DIM>
DEV many_kept<DIM> many_kept_of(const gpu_attend_args &a, const gpu_attend_job &job, int row0)
{
    const size_t row = job.part0 + row0;
    return {AT(float, a.o) + row * DIM + TID, AT(float, a.ml) + row * 2};
}

/* Joins a chunk to those before, and begins the next. */
template <int DIM, int MT>
DEV void many_join(const gpu_attend_args &a, const gpu_attend_job &job, int row0,
                   many_rows<DIM, MT> &rows, bool is_first)
{
    enum { N_THREAD = many_threads<DIM, MT>(), D8 = DIM / 8 };
    const many_kept<DIM> kept = many_kept_of<DIM>(a, job, row0);
    float *ml = kept.ml;
    UNROLL
    for (int r = 0; r < MT; r++) {
        float c[2], w[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const int row = many_row_at(WARP * MT + r, i);
            float m = NEG_INF, l = 0.0f;
            if (!is_first) {
                m = ml[2 * row], l = ml[2 * row + 1];
            } else if (job.sink != 0) {
                m = AT(const float, job.sink)[(row0 + row) % job.n_group] * LOG2E;
                l = 1.0f;
            }
            const float high = n_max(m, rows.m[r][i]), mm = finite_of(high);
            c[i] = ex2(m - mm), w[i] = ex2(rows.m[r][i] - mm);
            l = fmaf(rows.l[r][i], w[i], l * c[i]);
            sync_warp();
            if (LANE % 4 == 0)
                ml[2 * row] = high, ml[2 * row + 1] = l;
        }
        UNROLL
        for (int d = 0; d < D8; d++)
            UNROLL
        for (int e = 0; e < 4; e++) {
            float *at = kept.o + ((r * D8 + d) * 4 + e) * N_THREAD;
            float old = *at; /* read in any case, which is shorter than a branch */
            old = is_first ? 0.0f : old;
            *at = fmaf(rows.o[r][d][e], w[e / 2], old * c[e / 2]);
        }
    }
    many_clear(rows);
    sync_warp();
}

/* Outputs go through shared memory, [rows][DIM + MANY_PITCH], where they are turned back. */
template <int DIM, int MT>
DEV void many_finish(const gpu_attend_args &a, const gpu_attend_job &job, int row0, bool is_empty,
                     float *room)
{
    enum { N_THREAD = many_threads<DIM, MT>(), D8 = DIM / 8 };
    const many_kept<DIM> kept = many_kept_of<DIM>(a, job, row0);
    NO_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        const int at = many_row_at(WARP * MT + i / 2, i % 2);
        float *row = room + at * (DIM + MANY_PITCH);
        const float l = is_empty ? 0.0f : kept.ml[2 * at + 1];
        NO_UNROLL
        for (int d = 0; d < D8; d++)
            UNROLL
        for (int e = 0; e < 2; e++) {
            const float x =
                is_empty ? 0.0f : kept.o[((i / 2 * D8 + d) * 4 + i % 2 * 2 + e) * N_THREAD];
            row[d * 8 + LANE % 4 * 2 + e] = l > 0.0f ? x / l : 0.0f;
        }
    }
    sync_warp();
    for (int i = 0; i < 16 * MT; i++) {
        const int at = WARP * MT * 16 + i, n = row0 + at;
        float *row = room + at * (DIM + MANY_PITCH);
        if (n >= job.n_tok * job.n_group)
            break;
        if (a.v.wht_scale != 0.0f) {
            sync_warp();
            wht_shared<32>(row, DIM, a.v.group, a.v.wht_scale, true); /* zeros stay zeros */
        }
        float *out = AT(float, job.out) + (size_t)(n / job.n_group) * job.out_stride +
                     (size_t)(n % job.n_group) * a.dim_v;
        for (int d = LANE; d < a.dim_v; d += 32)
            out[d] = row[d];
    }
}

/* The first page of a lane with a window of which a row that sees from `limit` on sees something. */
DEV int many_first(const gpu_attend_job &job, int window, int limit, int end)
{
    int first = job.first + job.n_low < end ? job.first + job.n_low : end;
    if (window == 0)
        return job.first;
    for (int p = job.first + LANE; p < job.first + job.n_low; p += 32) {
        const int32_t *pos = page_positions(job, p);
        const int n = page_ref(job, p).n;
        for (int e = job.ordered ? n - 1 : 0; e < n; e++)
            first = pos[e] > limit - window && p < first ? p : first;
    }
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
        const int other = (int)shfl((uint32_t)first, LANE ^ mask);
        first = other < first ? other : first;
    }
    return first;
}

/* Grid: (tiles of rows, calls). The last rows, which see most, begin first. */
template <int DIM, bool CODES, int MT> DEV void attend_many(const gpu_attend_args &a)
{
    enum { N_THREAD = many_threads<DIM, MT>(), HEIGHT = many_height<DIM>(), ONE = DIM > 128 };
    SHARED(smem);
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int n_row = job.n_tok * job.n_group;
    const int row0 = ((n_row + HEIGHT - 1) / HEIGHT - 1 - (int)blockIdx.x) * HEIGHT;
    if (row0 < 0)
        return;
    const int type_k = CODES ? a.k.type : (int)STORE_F16,
              type_v = CODES ? a.v.type : (int)STORE_F16;
    const int half_k = half_bytes<DIM>(type_k), page = half_k + half_bytes<DIM>(type_v);
    uint8_t *qs = smem, *raw = smem + HEIGHT * DIM * 2, *dec = raw + (ONE ? 1 : 2) * page;
    many_row *row_of =
        (many_row *)(dec + ((type_k != STORE_F16) + (type_v != STORE_F16)) * TILE * DIM * 2);
    const int last_row = row0 + HEIGHT < n_row ? row0 + HEIGHT - 1 : n_row - 1;
    const int end = many_end(job, job.pos0 + last_row / job.n_group);
    /* first: -1 once a chunk was joined. It and the chunk's end have no registers of their own. */
    int first = many_first(job, a.window, job.pos0 + row0 / job.n_group, end);
    auto fetch = [&](int p, bool keys, bool values) {
        uint8_t *to = raw + (ONE ? 0 : p & 1) * page;
        if (p < end) {
            const uint8_t *from =
                AT(const uint8_t, a.pool) + page_ref((&job)[anew(0)], p).page * a.stride;
            if (keys)
                half_fetch<DIM, N_THREAD>(to, from, a.k, type_k, true);
            if (values)
                half_fetch<DIM, N_THREAD>(to + half_k, from, a.v, type_v, false);
        }
        cp_commit();
    };
    many_queries<DIM, N_THREAD>(job, row0, qs);
    many_rows<DIM, MT> rows;
    many_clear(rows);
    many_begin<DIM>(job, row0, row_of);
    code_table *tables = (code_table *)(row_of + HEIGHT); /* there for codes of bits alone */
    if (CODES && type_k != STORE_Q8_0)
        tables[0] = table_of(a.k);
    if (CODES && type_v != STORE_Q8_0)
        tables[1] = table_of(a.v);
    int chunk = many_chunk(job, first);
    NO_UNROLL
    for (int p = first - 1; p < end; p++) {
        const uint8_t *here = raw + (ONE ? 0 : p & 1) * page, *k16 = here, *v16 = here + half_k;
        if (!ONE)
            fetch(p + 1, true, true);
        else if (p < first)
            fetch(p + 1, true, false);
        else
            fetch(p, false, true);
        if (p < first)
            continue;
        CP_WAIT(1);
        sync_block();
        if (CODES) {
            if (MT == 2 || TID < 128)
                keys_decode<DIM>(type_k, k16, tables[0], dec);
            if (MT == 2 || TID >= 128)
                values_decode(type_v, v16, tables[1], dec + TILE * DIM * 2);
            sync_block();
            k16 = dec;
            v16 = dec + TILE * DIM * 2;
        }
        many_page<DIM, MT, CODES>(a, (&job)[anew(0)], p, qs, k16, v16, row_of, rows, [&]() {
            if (!ONE)
                return;
            sync_block();
            fetch(p + 1, true, false);
            CP_WAIT(1);
            sync_block();
        });
        if (p + 1 == chunk_last((&job)[anew(0)], chunk) || p + 1 == end) {
            many_join(a, job, row0, rows, first >= 0);
            first = -1;
            chunk++;
        }
        sync_block();
    }
    CP_WAIT(0);
    sync_block();
    many_finish<DIM, MT>(a, job, row0, first >= 0, (float *)smem);
}

KERNEL(128, 2) attend_many_64_f16(const gpu_attend_args &a)
{
    attend_many<64, false, 2>(a);
}
KERNEL(128, 2) attend_many_128_f16(const gpu_attend_args &a)
{
    attend_many<128, false, 2>(a);
}
KERNEL(128, 2) attend_many_128_codes(const gpu_attend_args &a)
{
    attend_many<128, true, 2>(a);
}
KERNEL(128, 2) attend_many_256_f16(const gpu_attend_args &a)
{
    attend_many<256, false, 1>(a);
}
KERNEL(256, 1) attend_many_128_f16_1(const gpu_attend_args &a)
{
    attend_many<128, false, 1>(a);
}
KERNEL(256, 1) attend_many_128_codes_1(const gpu_attend_args &a)
{
    attend_many<128, true, 1>(a);
}

#endif
