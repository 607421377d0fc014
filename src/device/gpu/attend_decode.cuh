/*
 * attend_decode.cuh - attention over pages of any type, layout and length, of the head sizes of
 * attend_few.cuh and attend_many.cuh and with attend_part's bits. Stored entries become f16, eight
 * numbers at a time. Of few rows a warp takes 8, and a chunk: keys and then values of a page go to
 * shared memory (attend_decode). For many rows pages become pages of f16 in a room of the device,
 * 64 entries each, which attend_many reads (attend_copy).
 */
#ifndef PI_GPU_ATTEND_DECODE_CUH
#define PI_GPU_ATTEND_DECODE_CUH

#include "device/gpu/attend_few.cuh"

/* ---- eight numbers ---- */

/* Sixteen numbers of f16: the low bytes of four in a word, and the high ones. */
struct codes_of_four {
    uint32_t low[4], high[4];
};
DEV codes_of_four codes_table(const gpu_part &part)
{
    codes_of_four t;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t x = h2(part.table[4 * i], part.table[4 * i + 1]),
                       y = h2(part.table[4 * i + 2], part.table[4 * i + 3]);
        t.low[i] = prmt(x, y, 0x6420);
        t.high[i] = prmt(x, y, 0x7531);
    }
    return t;
}

/* The numbers of the codes in the lower four nibbles of sel, times a pair of scales. */
DEV void numbers_of_four(const codes_of_four &t, uint32_t sel, uint32_t by, uint32_t *r)
{
    const uint32_t at = sel & 0x7777, upper = prmt_of(0, ~0u, sel >> 1 & 0x4444);
    const uint32_t low = pick(upper, prmt_of(t.low[2], t.low[3], at),
                              prmt_of(t.low[0], t.low[1], at)),
                   high = pick(upper, prmt_of(t.high[2], t.high[3], at),
                               prmt_of(t.high[0], t.high[1], at));
    r[0] = h2_mul(prmt_of(low, high, 0x5140), by);
    r[1] = h2_mul(prmt_of(low, high, 0x7362), by);
}

/* Eight codes of 2 bits, and their upper bits, to nibbles. */
DEV uint32_t nibbles_in_order(uint32_t low, uint32_t high)
{
    low = or_and(low, low << 8, 0x00ff00ffu);
    low = or_and(low, low << 4, 0x0f0f0f0fu);
    low = or_and(low, low << 2, 0x33333333u);
    high = or_and(high, high << 12, 0x000f000fu);
    high = or_and(high, high << 6, 0x03030303u);
    high = or_and(high, high << 3, 0x11111111u);
    return low | high << 2;
}

DEV uint32_t half_pair(float x, float y)
{
    return h2(within(x, 65504.0f), within(y, 65504.0f));
}

/* Eight numbers as they are stored: their bits, upper bits of codes, and a scale. */
struct piece {
    uint32_t x[8], high, scale;
};

/* Where element i of a plane's row lies; elements have `size` bytes. */
DEV const uint8_t *element_at(const gpu_part &part, int plane, const uint8_t *page, int page_len,
                              int slot, int i, int size)
{
    const uint32_t at = part.beside ? (uint32_t)(i * page_len + slot) * size
                                    : slot * part.plane[plane].pitch + i * size;
    return page + part.plane[plane].at + at;
}

/* Dimensions 8 d .. of an entry; group: 8 << group dimensions have a scale. */
DEV piece piece_load(const gpu_part &part, int type, const uint8_t *page, int page_len, int slot,
                     int d, int group)
{
    piece p = {};
    auto at = [&](int plane, int i, int size) {
        return element_at(part, plane, page, page_len, slot, i, size);
    };
    if (type == STORE_F32 && part.beside) {
        UNROLL
        for (int i = 0; i < 8; i++)
            p.x[i] = *(const uint32_t *)at(PLANE_LOW, 8 * d + i, 4);
    } else if (!has_codes(type) && part.beside) {
        UNROLL
        for (int i = 0; i < 8; i++)
            p.x[i / 2] |= (uint32_t) * (const uint16_t *)at(PLANE_LOW, 8 * d + i, 2)
                          << (16 * (i % 2));
    } else if (!has_codes(type)) {
        UNROLL
        for (int i = 0; i < (type == STORE_F32 ? 2 : 1); i++) {
            const uint4 x =
                *(const uint4 *)(at(PLANE_LOW, 8 * d, type == STORE_F32 ? 4 : 2) + 16 * i);
            p.x[4 * i] = x.x, p.x[4 * i + 1] = x.y, p.x[4 * i + 2] = x.z, p.x[4 * i + 3] = x.w;
        }
    } else {
        if (type == STORE_Q8_0) {
            p.x[0] = *(const uint32_t *)at(PLANE_LOW, 2 * d, 4);
            p.x[1] = *(const uint32_t *)at(PLANE_LOW, 2 * d + 1, 4);
        } else if (code_bits(type) == 4) {
            p.x[0] = *(const uint32_t *)at(PLANE_LOW, d, 4);
        } else {
            p.x[0] = *(const uint16_t *)(at(PLANE_LOW, d / 2, 4) + d % 2 * 2);
            if (type == STORE_TURBO3)
                p.high = *(at(PLANE_HIGH, d / 2, 2) + d % 2);
        }
        p.scale = *(const uint16_t *)at(PLANE_SCALE, d >> group, 2);
    }
    return p;
}

/* The piece as f16, as entry_read has it. */
DEV uint4 piece_numbers(int type, const codes_of_four &table, const piece &p)
{
    uint32_t r[4];
    const uint32_t by = p.scale | p.scale << 16;
    if (type == STORE_F16)
        return make_uint4(p.x[0], p.x[1], p.x[2], p.x[3]);
    if (!has_codes(type)) {
        UNROLL
        for (int i = 0; i < 4; i++)
            r[i] = type == STORE_F32 ? half_pair(AS_F(p.x[2 * i]), AS_F(p.x[2 * i + 1]))
                                     : half_pair(AS_F(p.x[i] << 16), AS_F(p.x[i] & 0xffff0000u));
    } else if (type == STORE_Q8_0) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            const uint32_t x = p.x[i] ^ 0x80808080u;
            r[2 * i] = bytes_of(x, 0x4140, q8_scales(by));
            r[2 * i + 1] = bytes_of(x, 0x4342, q8_scales(by));
        }
    } else {
        const uint32_t sel = code_bits(type) == 4 ? p.x[0] : nibbles_in_order(p.x[0], p.high);
        numbers_of_four(table, sel, by, r);
        numbers_of_four(table, sel >> 16, by, r + 2);
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
}

DEV int group_shift(const gpu_part &part)
{
    int shift = 0;
    while (8 << shift < part.group)
        shift++;
    return shift;
}

/* ---- a page, to a warp's shared memory ---- */

/* The short pages of a page, lane s has number s: of 1 << shift entries each. */
struct short_pages {
    gpu_attend_ref ref;
    int shift, there, n; /* entries that there is room for in the store, and up to the last one */
};

DEV short_pages short_pages_of(const gpu_attend_ref &ref, int page_len)
{
    short_pages s = {ref, page_len == 64 ? 6 : page_len == 32 ? 5 : 4, 0, 0};
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int n = (int)shfl((uint32_t)ref.n, i);
        s.there = n > 0 ? (i + 1) << s.shift : s.there;
        s.n = n > 0 ? (i << s.shift) + n : s.n;
    }
    return s;
}

/* The page of the store that entry e is in. All lanes ask. */
DEV const uint8_t *short_page(const gpu_attend_args &a, const short_pages &s, int e)
{
    return AT(const uint8_t, a.pool) + shfl((uint32_t)s.ref.page, e >> s.shift) * a.stride;
}

/* The bytes of f16 that lie as they are read: all of them on their way. `place`: where element i of
   16 bytes goes. */
template <int DIM, typename F>
DEV void bytes_fill(uint8_t *out, const gpu_attend_args &a, const gpu_part &part,
                    const short_pages &s, F place)
{
    enum { D8 = DIM / 8 };
    UNROLL4
    for (int i0 = 0; i0 < TILE * D8; i0 += 32) {
        const int i = i0 + LANE, e = part.beside ? i % 8 * 8 : i / D8,
                  d = part.beside ? i / 8 : i % D8 * 8;
        const uint8_t *page = short_page(a, s, e);
        if (e < s.there)
            cp16(out + place(i) * 16,
                 element_at(part, PLANE_LOW, page, a.page_len, e & (a.page_len - 1), d, 2));
    }
}

/* Numbers of piece d of an entry, to their slots; at(i): where element i of 16 bytes is. */
template <typename F> DEV void piece_put(int d, int order, const uint4 &x, F at)
{
    if (order == GPU_ORDER_PLAIN) {
        *(uint4 *)at(d) = x;
    } else if (order == GPU_ORDER_BYTES) {
        const uint2 even = {x.x, x.z}, odd = {x.y, x.w};
        *(uint2 *)(at(d & ~1) + d % 2 * 8) = even;
        *(uint2 *)(at(d | 1) + d % 2 * 8) = odd;
    } else {
        UNROLL
        for (int i = 0; i < 4; i++) { /* of even numbers, then of odd ones */
            const uint32_t a = i % 2 == 0 ? x.x : x.z, b = i % 2 == 0 ? x.y : x.w;
            *(uint32_t *)(at((d & ~7) + i / 2 * 4 + d % 2 * 2 + i % 2) + d % 8 / 2 * 4) =
                prmt(a, b, i < 2 ? 0x5410 : 0x7632);
        }
    }
}

/* Pieces, N of a lane on their way: [64 entries][DIM] as dots_f16_rows and sums_f16 want them. */
template <int DIM, int N>
DEV void pieces_fill(uint8_t *out, const gpu_attend_args &a, const gpu_part &part, int type,
                     int order, const short_pages &s)
{
    enum { D8 = DIM / 8 };
    const int group = group_shift(part);
    const codes_of_four table = codes_table(part);
    NO_UNROLL
    for (int i0 = 0; i0 < TILE * D8; i0 += 32 * N) {
        piece p[N];
        int to[N];
        UNROLL
        for (int j = 0; j < N; j++) {
            const int i = i0 + 32 * j + LANE, e = part.beside ? i % TILE : i / D8,
                      d = part.beside ? i / TILE : i % D8;
            const uint8_t *page = short_page(a, s, e);
            to[j] = e < s.there ? e * D8 + d : -1;
            if (to[j] >= 0)
                p[j] = piece_load(part, type, page, a.page_len, e & (a.page_len - 1), d, group);
        }
        UNROLL
        for (int j = 0; j < N; j++)
            if (to[j] >= 0)
                piece_put(to[j] % D8, order, piece_numbers(type, table, p[j]), [&](int element) {
                    return out + place_f16(to[j] / D8 * D8 + element, DIM / 128) * 16;
                });
    }
}

/* Keys of f32 or bf16 that lie side by side: [dim][64 entries], as dots_f16 wants them. This is
   thread `id` of n, all lanes of some warps. page(e): where entry e is; NULL: there is none. */
template <typename F>
DEV void sides_fill(uint8_t *out, const gpu_attend_args &a, int dim, int id, int n, F page)
{
    const int type = a.k.type, size = type == STORE_F32 ? 4 : 2;
    UNROLL2
    for (int i = id; i < dim * 8; i += n) {
        const int e = i % 8 * 8;
        const uint8_t *own = page(e);
        if (own == NULL)
            continue;
        const uint8_t *from =
            element_at(a.k, PLANE_LOW, own, a.page_len, e & (a.page_len - 1), i / 8, size);
        const uint4 x = *(const uint4 *)from,
                    y = type == STORE_F32 ? *(const uint4 *)(from + 16) : x;
        const piece p = {{x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w}, 0, 0};
        *(uint4 *)(out + place_f16(i, 0) * 16) = piece_numbers(type, codes_of_four(), p);
    }
}

DEV bool lies_sideways(const gpu_part &part)
{
    return part.beside && !has_codes(part.type);
}

/* Keys or values of a page. */
template <int DIM>
DEV void half_decode(uint8_t *out, const gpu_attend_args &a, bool keys, const short_pages &s)
{
    const gpu_part &part = keys ? a.k : a.v;
    const int shift = part.beside ? 0 : DIM / 128, order = keys ? a.order : (int)GPU_ORDER_PLAIN;
    if (part.type == STORE_F16)
        bytes_fill<DIM>(out, a, part, s, [&](int i) { return place_f16(i, shift); });
    else if (lies_sideways(part))
        sides_fill(out, a, DIM, LANE, 32, [&](int e) {
            const uint8_t *page = short_page(a, s, e);
            return e < s.there ? page : NULL;
        });
    else if (code_bits(part.type) == 4)
        pieces_fill<DIM, 4>(out, a, part, STORE_TURBO4, GPU_ORDER_PLAIN, s);
    else
        pieces_fill<DIM, 2>(out, a, part, part.type, order, s);
}

/* ---- few rows ---- */

/* Queries of a variant, from those that attend_queries made, and what their products are multiplied
   by. */
template <int DIM>
DEV void decode_queries(const gpu_attend_job &job, int variant, int row0, uint32_t (*q)[1][2],
                        few_rows<DIM, 1> &rows)
{
    const int row = row0 + LANE / 4, n_row = job.n_tok * job.n_group;
    const float by = packed_row<DIM, 1>(job, variant * up16(n_row) + row, row < n_row, q, 0);
    UNROLL
    for (int e = 0; e < 2; e++)
        rows.by[0][e] = AS_F(shfl(AS_U(by), 4 * (2 * (LANE % 4) + e)));
}

/* Exponents of a page. Short pages of other deltas have products with queries of their own. */
template <int DIM>
DEV void decode_logits(const gpu_attend_args &a, const gpu_attend_job &job, int row0,
                       const uint8_t *keys, const short_pages &s, few_rows<DIM, 1> &rows,
                       float (*x)[1][4])
{
    auto number = [&](int tile) { return 8 * tile >> s.shift; };
    const int variant = job.n_variant == 1 ? 0 : variant_of(job, s.ref.delta);
    const int n_turn = job.n_variant == 1 ? 1 : s.there >> s.shift;
    NO_UNROLL
    for (int turn = 0; turn < n_turn; turn++) {
        const int own = (int)shfl((uint32_t)variant, turn);
        if (turn > 0 && own == (int)shfl((uint32_t)variant, 0))
            continue; /* the first one's queries are its own */
        uint32_t q[DIM / 16][1][2];
        float y[4][1][4] = {};
        decode_queries<DIM>(job, own, row0, q, rows);
        if (lies_sideways(a.k))
            dots_f16<DIM, 1>(keys, q, y);
        else
            dots_f16_rows<DIM, 1>(keys, q, y);
        auto add = [&](int tile) {
            return AS_F(shfl(AS_U(s.ref.log_count), number(tile))) * LOG2E;
        };
        few_logits<DIM, 1>(a, rows, add, false, {NULL, TILE, 0}, y);
        UNROLL
        for (int i = 0; i < 8; i++) {
            const bool is = turn == 0 || number(i) == turn;
            UNROLL
            for (int e = 0; e < 2; e++) {
                float *to = &x[i / 2][0][i % 2 * 2 + e];
                *to = is ? y[i / 2][0][i % 2 * 2 + e] : *to;
            }
        }
    }
}

/* What rows do not see of page p becomes -inf, and weights that are looked at are kept. */
template <int DIM>
DEV void decode_mask(const gpu_attend_args &a, const gpu_attend_job &job, int p, int row0,
                     const short_pages &s, const few_rows<DIM, 1> &rows, float (*x)[1][4])
{
    const int32_t *pos = page_positions(job, p);
    UNROLL
    for (int i = 0; i < 8; i++) {
        const int entry = 8 * i + LANE / 4, n = (int)shfl((uint32_t)s.ref.n, 8 * i >> s.shift),
                  delta = (int)shfl((uint32_t)s.ref.delta, 8 * i >> s.shift);
        const bool is = (entry & (a.page_len - 1)) < n;
        const int when = is && pos != NULL ? pos[entry] + delta : 0;
        UNROLL
        for (int e = 0; e < 2; e++) {
            const int limit = rows.limit[0][e];
            const bool sees = is && (pos == NULL ||
                                     (when <= limit && (a.window == 0 || when > limit - a.window)));
            float *at = &x[i / 2][0][i % 2 * 2 + e];
            *at = sees ? *at : NEG_INF;
            float *kept = logit_place(job, a.page_len, p, entry, row0 + 2 * (LANE % 4) + e);
            if (kept != NULL)
                *kept = *at;
        }
    }
}

template <int DIM>
DEV void decode_weights(const gpu_attend_args &a, const gpu_attend_job &job, int p, int row0,
                        const uint8_t *keys, const short_pages &s, few_rows<DIM, 1> &rows,
                        uint8_t *ps)
{
    float x[4][1][4];
    decode_logits<DIM>(a, job, row0, keys, s, rows, x);
    decode_mask<DIM>(a, job, p, row0, s, rows, x);
    few_weights<DIM, 1>(rows, x);
    weights_put<1>(ps, false, x);
}

/* Adds weights times the first n values. */
template <int DIM>
DEV void decode_sums(const uint8_t *values, const uint8_t *ps, int n, few_rows<DIM, 1> &rows)
{
    NO_UNROLL
    for (int k = 0; k < (n + 15) / 16; k++) {
        const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
        uint32_t w[1][2];
        weights_at<1>(w, ps, k);
        sums_f16<DIM, 1>(values, k, w, rows.o);
        float l[4] = {rows.l[0][0], rows.l[0][1], 0.0f, 0.0f};
        mma(l, ones, w[0][0], w[0][1]);
        rows.l[0][0] = l[0], rows.l[0][1] = l[1];
    }
}

/* A warp for 8 rows, and a chunk. Grid: (chunks, calls, eights of rows). */
template <int DIM> DEV void attend_decode(const gpu_attend_args &a)
{
    SHARED(smem);
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int row0 = (int)blockIdx.z * 8, chunk = job.n_chunk - 1 - (int)blockIdx.x;
    if (chunk < 0 || row0 >= job.n_tok * job.n_group)
        return;
    int first, end;
    chunk_pages(job, chunk, &first, &end);
    uint8_t *ps = smem, *half = smem + TILE * 16;
    few_rows<DIM, 1> rows = {};
    UNROLL
    for (int e = 0; e < 2; e++) {
        rows.m[0][e] = NEG_INF;
        rows.limit[0][e] = job.pos0 + (row0 + 2 * (LANE % 4) + e) / job.n_group;
    }
    gpu_attend_ref next = short_ref(job, first, LANE);
    NO_UNROLL
    for (int p = first; p < end; p++) {
        const short_pages s = short_pages_of(next, a.page_len);
        if (p + 1 < end)
            next = short_ref(job, p + 1, LANE);
        NO_UNROLL
        for (int side = 0; side < 2; side++) { /* what decodes stands there once */
            half_decode<DIM>(half, a, side == 0, s);
            cp_commit();
            CP_WAIT(0);
            sync_warp();
            if (side == 0)
                decode_weights<DIM>(a, job, p, row0, half, s, rows, ps);
            else
                decode_sums<DIM>(half, ps, s.n, rows);
            sync_warp();
        }
    }
    few_finish<DIM, 1>(a, job, row0, chunk, STORE_F16, rows);
}

KERNEL(32, 12) attend_decode_64(const gpu_attend_args &a)
{
    attend_decode<64>(a);
}
KERNEL(32, 12) attend_decode_128(const gpu_attend_args &a)
{
    attend_decode<128>(a);
}
KERNEL(32, 6) attend_decode_256(const gpu_attend_args &a)
{
    attend_decode<256>(a);
}

/* ---- many rows ---- */

/* Keys or values of a page, of to_dim dimensions: behind the part's come zeros. */
DEV void part_copy(uint8_t *out, const gpu_part &part, const tile_from &from, int page_len,
                   int order, int to_dim)
{
    const int n8 = to_dim / 8, group = group_shift(part);
    const codes_of_four table = codes_table(part);
    for (int i = TID; i < TILE * n8; i += 128) {
        const int e = part.beside ? i % TILE : i / n8, d = part.beside ? i / TILE : i % n8;
        const uint8_t *page;
        int slot;
        uint4 x = {0, 0, 0, 0};
        if (e < from.n && 8 * d < part.dim && entry_at(from, e, &page, &slot))
            x = piece_numbers(part.type, table,
                              piece_load(part, part.type, page, page_len, slot, d, group));
        uint8_t *row = out + (size_t)e * to_dim * 2;
        piece_put(d, order, x, [&](int element) { return row + element * 16; });
    }
}

/* A page of a call becomes one of f16: keys entry by entry, then values. Grid: (pages, calls). */
KERNEL(128, 8) attend_copy(const gpu_gather_args &a)
{
    SHARED(smem);
    gpu_attend_ref *refs = (gpu_attend_ref *)smem; /* [4] */
    const gpu_attend_job &job = AT(const gpu_attend_job, a.jobs)[blockIdx.y];
    const int p = job.first + (int)blockIdx.x;
    if (p >= job.end)
        return; /* the whole block */
    if (TID < 4)
        refs[TID] = short_ref(job, p, TID);
    sync_block();
    tile_from from = {refs, NULL, a.pool, a.stride, 0, a.page_len};
    for (int i = 0; i < job.per; i++)
        from.n = refs[i].n > 0 ? i * a.page_len + refs[i].n : from.n;
    uint8_t *to = AT(uint8_t, a.to) + (size_t)(job.copy0 + (int)blockIdx.x) * a.to_stride;
    part_copy(to, a.k, from, a.page_len, a.order, a.to_k);
    part_copy(to + TILE * a.to_k * 2, a.v, from, a.page_len, GPU_ORDER_PLAIN, a.to_v);
    if (TID == 0) {
        gpu_attend_ref ref = refs[0];
        ref.page = job.copy0 + (int)blockIdx.x;
        ref.n = from.n;
        AT(gpu_attend_ref, a.refs)[ref.page] = ref;
    }
}

#endif
