/*
 * keep.cuh - a round: scores of keys or values, the choice among them, and compaction in place.
 * Sums over entries are f64 in an order that the number of entries alone decides. Choices count by
 * whole numbers, so that the order of threads does not matter.
 */
#ifndef PI_GPU_KEEP_CUH
#define PI_GPU_KEEP_CUH

#include "device/gpu/store.cuh"

/* enum kv_weigh_kind: host files assert that they are these. */
enum {
    WEIGH_WAVES,
    WEIGH_KEY,
    WEIGH_ALIKE,
    WEIGH_VALUE_L1,
    WEIGH_VALUE_L2,
    WEIGH_MARK,
    WEIGH_MARK_MEAN,
    WEIGH_MARK_NORM,
    WEIGH_MARK_BITS,
    WEIGH_MARK_GAPS,
    WEIGH_MARK_OR_MOST,
    WEIGH_POSITION,
    WEIGH_VOTES,
    WEIGH_UNLIKE,
    WEIGH_EXPECTED,
    WEIGH_MEAN /* the host's, for ALIKE */
};
#define WEIGH_LEAST 1e-12f /* of a length; below, a key points nowhere */

/* ---- scores ---- */

/* Adds pair f of a key to the sums of four vectors. */
DEV void add_pair(const float *w, int f, float re, float im, float *s)
{
    const float size = sqrtf(fmaf(re, re, im * im));
    const float4 *p = (const float4 *)(w + 12 * f);
    const float4 x = p[0], y = p[1], e = p[2];
    s[0] = fmaf(e.x, size, fmaf(y.x, im, fmaf(x.x, re, s[0])));
    s[1] = fmaf(e.y, size, fmaf(y.y, im, fmaf(x.y, re, s[1])));
    s[2] = fmaf(e.z, size, fmaf(y.z, im, fmaf(x.z, re, s[2])));
    s[3] = fmaf(e.w, size, fmaf(y.w, im, fmaf(x.w, re, s[3])));
}

DEV void add_flat(const float *w, float k, float *s)
{
    UNROLL
    for (int v = 0; v < 4; v++)
        s[v] = fmaf(w[v], k, s[v]);
}

DEV void store_four(const gpu_weigh_lane &l, int group, int slot, const float *s)
{
    for (int v = 0; v < 4 && 4 * group + v < l.n_vector; v++)
        AT(float, l.raw)[(size_t)(4 * group + v) * l.n + slot] = s[v];
}

DEV void load_vectors(const gpu_weigh_args &a, const gpu_weigh_lane &l, int group, float *w)
{
    const int len = GPU_WEIGH_LEN(a.n_pair, a.part.dim);
    for (int i = TID; 4 * group < l.n_vector && i < len; i += 128)
        w[i] = AT(const float, l.w)[(size_t)group * len + i];
    sync_block();
}

/* WAVES over keys of f16 that lie side by side and are not turned: a thread has an entry.
   Grid: (pages / (128 / page_len), lanes, vectors / 4). */
KERNEL(128, 8) weigh_half(const gpu_weigh_args &a)
{
    SHARED(smem);
    float *w = (float *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const int group = (int)blockIdx.z, len = a.page_len, n_pair = a.n_pair;
    const int p = (int)blockIdx.x * (128 / len) + TID / len, entry = TID % len;
    load_vectors(a, l, group, w);
    if (4 * group >= l.n_vector || p >= l.n_page)
        return;
    const gpu_weigh_page page = AT(const gpu_weigh_page, l.pages)[p];
    if (entry >= page.n)
        return;
    const uint16_t *k = AT(const uint16_t, page.page + a.part.plane[PLANE_LOW].at) + entry;
    const int step = (a.adjacent ? 2 : 1) * len, other = (a.adjacent ? 1 : n_pair) * len;
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    UNROLL4
    for (int f = 0; f < n_pair; f++)
        add_pair(w, f, float_of(k[f * step]), float_of(k[f * step + other]), s);
    for (int d = 2 * n_pair; d < a.part.dim; d++)
        add_flat(w + 12 * n_pair + 4 * (d - 2 * n_pair), float_of(k[d * len]), s);
    store_four(l, group, page.slot + entry, s);
}

/* Turns keys of x to where they are read, and back to position 0. */
DEV void turn_entries(const gpu_weigh_args &a, const gpu_weigh_lane &l, const gpu_weigh_page &page,
                      int first, float *x)
{
    const float *turn = AT(const float, page.turn), *table = AT(const float, a.turn);
    for (int i = TID; i < a.n_entry * a.n_pair; i += 128) {
        const int e = i % a.n_entry, f = i / a.n_entry;
        if (first + e >= page.n)
            continue;
        float *p = x + e * (a.part.dim + 1) + (a.adjacent ? 2 * f : f);
        float *q = p + (a.adjacent ? 1 : a.n_pair), re = *p, im = *q;
        if (page.turn != 0) {
            const float c = turn[2 * f], s = turn[2 * f + 1];
            const float r = re * c - im * s;
            im = re * s + im * c, re = r;
        }
        if (l.pos != 0) {
            const int pos = AT(const int32_t, l.pos)[page.slot + first + e];
            const float *low = table + ((size_t)(pos % GPU_TURN_LOW) * a.n_pair + f) * 2;
            const float *high =
                table +
                ((size_t)(GPU_TURN_LOW + pos / GPU_TURN_LOW - a.first_high) * a.n_pair + f) * 2;
            const float c = high[0] * low[0] - high[1] * low[1];
            const float s = high[1] * low[0] + high[0] * low[1];
            const float r = re * c + im * s;
            im = im * c - re * s, re = r;
        }
        *p = re, *q = im;
    }
    sync_block();
}

/* Four vectors and the entries of x; threads of an entry take one or two vectors each. */
DEV void score_waves(const gpu_weigh_args &a, const gpu_weigh_lane &l, const gpu_weigh_page &page,
                     int first, const float *x, const float *w)
{
    const int e = TID % a.n_entry, dim = a.part.dim, n_pair = a.n_pair, group = (int)blockIdx.z;
    const float *k = x + e * (dim + 1);
    for (int v = TID / a.n_entry; v < 4; v += 128 / a.n_entry) {
        float s = 0.0f;
        for (int f = 0; f < n_pair; f++) {
            const float re = k[a.adjacent ? 2 * f : f], im = k[a.adjacent ? 2 * f + 1 : n_pair + f];
            const float *p = w + 12 * f + v;
            s = fmaf(p[8], sqrtf(fmaf(re, re, im * im)), fmaf(p[4], im, fmaf(p[0], re, s)));
        }
        for (int d = 2 * n_pair; d < dim; d++)
            s = fmaf(w[12 * n_pair + 4 * (d - 2 * n_pair) + v], k[d], s);
        if (first + e < page.n && 4 * group + v < l.n_vector)
            AT(float, l.raw)[(size_t)(4 * group + v) * l.n + page.slot + first + e] = s;
    }
}

/* The length of entry e of x, or the sum of its moduli. */
DEV float length_of(const gpu_weigh_args &a, const float *x, int e, bool moduli)
{
    float sum = 0.0f;
    for (int d = 0; d < a.part.dim; d++) {
        const float k = x[e * (a.part.dim + 1) + d];
        sum = moduli ? sum + fabsf(k) : fmaf(k, k, sum);
    }
    return moduli ? sum : sqrtf(sum);
}

/* MEAN: the sum of a part's keys, each divided by its length. room: [n_entry]. */
DEV void sum_units(const gpu_weigh_args &a, const gpu_weigh_lane &l, const gpu_weigh_page &page,
                   int first, const float *x, float *room)
{
    const int dim = a.part.dim;
    if (TID < a.n_entry)
        room[TID] = f_max(length_of(a, x, TID, false), WEIGH_LEAST);
    sync_block();
    for (int d = TID; d < dim; d += 128) {
        float sum = 0.0f;
        for (int e = 0; e < a.n_entry && first + e < page.n; e++)
            sum += x[e * (dim + 1) + d] / room[e];
        AT(float, l.sum)[(size_t)blockIdx.x * dim + d] = sum;
    }
}

DEV void score_one_number(const gpu_weigh_args &a, const gpu_weigh_lane &l,
                          const gpu_weigh_page &page, int first, const float *x)
{
    const int e = TID, dim = a.part.dim;
    if (e >= a.n_entry || first + e >= page.n)
        return;
    float s = length_of(a, x, e, a.kind == WEIGH_VALUE_L1);
    if (a.kind == WEIGH_ALIKE) {
        const float *mean = AT(const float, l.spread);
        float dot = 0.0f;
        for (int d = 0; d < dim; d++)
            dot = fmaf(x[e * (dim + 1) + d], mean[d], dot);
        s = dot / (f_max(s, WEIGH_LEAST) * mean[dim]);
        s = s == s ? s : 0.0f;
    }
    AT(float, l.raw)[page.slot + first + e] = s;
}

/* Every kind, over pages of every type. A block has n_entry entries of a page, and 128 threads.
   Grid: (parts of pages, lanes, vectors / 4). Shared: a part's floats, the vectors. */
KERNEL(128, 4) weigh_page(const gpu_weigh_args &a)
{
    SHARED(smem);
    float *x = (float *)smem, *w = x + (a.n_entry * (a.part.dim + 1) + 3) / 4 * 4;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const int per = a.page_len / a.n_entry, p = (int)blockIdx.x / per;
    const int first = (int)blockIdx.x % per * a.n_entry, group = (int)blockIdx.z;
    if (p >= l.n_page || 4 * group >= l.n_vector)
        return; /* the whole block */
    const gpu_weigh_page page = AT(const gpu_weigh_page, l.pages)[p];
    decode_entries(a.part, AT(const uint8_t, page.page), a.page_len, first, page.n, a.n_entry, x);
    if (page.turn != 0 || l.pos != 0)
        turn_entries(a, l, page, first, x);
    if (a.kind == WEIGH_WAVES) {
        load_vectors(a, l, group, w);
        score_waves(a, l, page, first, x, w);
    } else if (a.kind == WEIGH_MEAN) {
        sum_units(a, l, page, first, x, w);
    } else {
        score_one_number(a, l, page, first, x);
    }
}

DEV double logistic(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

DEV double gap_worth(const gpu_weigh_lane &l, float last, float gap)
{
    const double ago = last > 0.0f ? (double)(l.now - last) : 0.0;
    const double mri = last > 0.0f ? (double)gap : 1.0;
    if (l.code)
        return 2.0 * logistic(-1.0 - ago / (mri + 1e-5)) +
               (mri > 0.0 ? 2.0 * logistic(1.0 - mri) : 0.0);
    return mri > 0.0 ? 2.0 * logistic(-ago / mri) + 2.0 * logistic(-1.0 / mri) : 0.0;
}

/* Kinds that look at marks, or positions. Grid: (entries / 256, lanes). */
KERNEL(256, 4) weigh_marks(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const int i = l.begin + (int)blockIdx.x * 256 + TID;
    if (i >= l.end)
        return;
    const float *m = AT(const float, l.marks) + i;
    const size_t row = l.row / 4;
    float x = 0.0f;
    if (a.kind == WEIGH_POSITION) {
        x = (float)AT(const int32_t, l.pos)[i];
    } else if (a.kind == WEIGH_MARK_BITS) {
        for (int j = 0; j < l.n_mark; j++)
            for (uint32_t bits = AS_U(m[j * row]); bits != 0; bits &= bits - 1)
                x -= 1.0f;
    } else if (a.kind == WEIGH_MARK_GAPS) {
        x = (float)gap_worth(l, m[0], m[row]);
    } else if (a.kind == WEIGH_MARK_MEAN) {
        x = m[0] / f_max(m[row], 1.0f);
    } else if (a.kind == WEIGH_MARK_NORM) {
        const float norm = AS_F((uint32_t)AT(const uint16_t, l.marks + l.n_mark * l.row)[i] << 16);
        x = m[0] * (norm < 3.402823466e38f ? norm : 3.402823466e38f);
    } else {
        x = m[0] == 0.0f && a.kind == WEIGH_MARK_OR_MOST ? 3.402823466e38f : m[0];
    }
    AT(float, l.raw)[i] = x;
}

/* The mean key of ALIKE, and its length. Grid: lanes. */
KERNEL(128, 4) weigh_anchor(const gpu_weigh_args &a)
{
    SHARED(smem);
    float *square = (float *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.x];
    const int dim = a.part.dim, n_part = l.n_page * (a.page_len / a.n_entry);
    float *mean = AT(float, l.spread);
    square[TID] = 0.0f;
    for (int d = TID; d < dim; d += 128) {
        float sum = 0.0f;
        for (int i = 0; i < n_part; i++)
            sum += AT(const float, l.sum)[(size_t)i * dim + d];
        mean[d] = sum / (float)l.n;
        square[TID] = fmaf(mean[d], mean[d], square[TID]);
    }
    sync_block();
    if (TID == 0) {
        float sum = 0.0f;
        for (int i = 0; i < 128; i++)
            sum += square[i];
        mean[dim] = f_max(sqrtf(sum), WEIGH_LEAST);
    }
}

/* ---- from vectors to a set's scores ---- */

/* What row r scores an entry: the greatest of its vectors. */
DEV float row_score(const gpu_weigh_lane &l, int r, int i)
{
    const int n = l.n_vector / l.n_row;
    const float *raw = AT(const float, l.raw) + (size_t)r * n * l.n + i;
    float x = raw[0];
    for (int v = 1; v < n; v++)
        x = f_max(x, raw[(size_t)v * l.n]);
    return x;
}

/* Of a chunk of a row the sum, and that of squares of what is beside its mean. Grid: (chunks,
   lanes, rows). */
KERNEL(256, 4) weigh_sums(const gpu_weigh_args &a)
{
    SHARED(smem);
    double *room = (double *)smem;
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.y];
    const int r = (int)blockIdx.z, chunk = (int)blockIdx.x,
              first = l.begin + chunk * GPU_WEIGH_CHUNK;
    const int n = l.end - first < GPU_WEIGH_CHUNK ? l.end - first : GPU_WEIGH_CHUNK;
    if (r >= l.n_row || n <= 0 || !l.standard)
        return; /* the whole block */
    double sum = 0.0, square = 0.0;
    for (int i = TID; i < n; i += 256)
        sum += (double)row_score(l, r, first + i);
    sum = tree_sum<256>(sum, room);
    const double mean = sum / n;
    for (int i = TID; i < n; i += 256) {
        const double x = (double)row_score(l, r, first + i) - mean;
        square += x * x;
    }
    square = tree_sum<256>(square, room);
    if (TID == 0) {
        const int n_chunk = (l.end - l.begin + GPU_WEIGH_CHUNK - 1) / GPU_WEIGH_CHUNK;
        double *out = AT(double, l.sum) + ((size_t)r * n_chunk + chunk) * 2;
        out[0] = sum, out[1] = square;
    }
}

/* Mean and deviation of the rows, from chunks in order: a thread has a row. Grid: lanes. */
KERNEL(128, 4) weigh_spread(const gpu_weigh_args &a)
{
    const gpu_weigh_lane l = AT(const gpu_weigh_lane, a.lanes)[blockIdx.x];
    const int n = l.end - l.begin, n_chunk = (n + GPU_WEIGH_CHUNK - 1) / GPU_WEIGH_CHUNK;
    for (int r = TID; l.standard && n > 0 && r < l.n_row; r += 128) {
        const double *part = AT(const double, l.sum) + (size_t)r * n_chunk * 2;
        double *out = AT(double, l.spread) + 2 * r, sum = 0.0, square = 0.0;
        for (int c = 0; c < n_chunk; c++)
            sum += part[2 * c];
        const double mean = sum / n;
        for (int c = 0; c < n_chunk; c++) {
            const int first = c * GPU_WEIGH_CHUNK, rest = n - first;
            const int n_here = rest < GPU_WEIGH_CHUNK ? rest : GPU_WEIGH_CHUNK;
            const double off = part[2 * c] / n_here - mean;
            square += part[2 * c + 1] + n_here * off * off;
        }
        const double deviation = sqrt(square / n);
        const bool number = mean - mean == 0.0 && deviation - deviation == 0.0;
        out[0] = mean;
        out[1] = number ? 1.0 / (deviation > 1e-6 ? deviation : 1e-6) : 0.0;
    }
}

/* A lane's score of an entry. */
DEV float lane_score(const gpu_weigh_lane &l, int i)
{
    float best = 0.0f;
    for (int r = 0; r < l.n_row; r++) {
        float x = row_score(l, r, i);
        if (l.standard) {
            const double *spread = AT(const double, l.spread) + 2 * r;
            x = spread[1] > 0.0 ? (float)(((double)x - spread[0]) * spread[1]) : 0.0f;
        }
        best = r == 0 ? x : f_max(best, x);
    }
    best = best == best ? l.sign * best : 0.0f;
    if (!l.mapped)
        return best;
    return l.slope > 0.0f ? l.slope * best + l.intercept : l.intercept;
}

/* Adds the lanes of a call to their sets. Grid: (entries / 256, sets with lanes). */
KERNEL(256, 4) weigh_fold(const gpu_weigh_args &a)
{
    const gpu_weigh_set set = AT(const gpu_weigh_set, a.sets)[blockIdx.y];
    const int i = set.begin + (int)blockIdx.x * 256 + TID;
    if (i >= set.end)
        return;
    float sum = set.n_before > 0 ? AT(const float, set.score)[i] : 0.0f;
    for (int j = 0; j < set.n_lane; j++) {
        const float x = lane_score(AT(const gpu_weigh_lane, a.lanes)[set.lane + j], i);
        if (set.n_before + j == 0)
            sum = x;
        else
            sum = set.mean ? sum + x : x > sum ? x : sum;
    }
    AT(float, set.score)[i] = sum;
}

/* Sums become means. Grid: (entries / 256, sets). */
KERNEL(256, 4) weigh_finish(const gpu_weigh_args &a)
{
    const gpu_weigh_set set = AT(const gpu_weigh_set, a.sets)[blockIdx.y];
    const int i = set.begin + (int)blockIdx.x * 256 + TID;
    if (i >= set.end)
        return;
    float x = set.n_before > 0 ? AT(const float, set.score)[i] : set.unknown;
    if (set.mean && set.n_before > 1)
        x /= (float)set.n_before;
    AT(float, set.score)[i] = x == x ? x : set.unknown;
}

/* ---- choices ---- */

/* Unsigned numbers in the order of floats; both zeros are one. */
DEV uint32_t rank_of(float x)
{
    const uint32_t b = AS_U(x + 0.0f);
    return (b & 0x80000000u) != 0 ? ~b : b | 0x80000000u;
}

/* The sum of v over this and all lower threads of 1,024; room: [32]. */
DEV int scan_block(int v, int *room)
{
    for (int d = 1; d < 32; d *= 2) {
        const int below = (int)shfl((uint32_t)v, (LANE - d) & 31);
        v += LANE >= d ? below : 0;
    }
    if (LANE == 31)
        room[WARP] = v;
    sync_block();
    int base = 0;
    for (int i = 0; i < WARP; i++)
        base += room[i];
    sync_block();
    return v + base;
}

enum { CHOOSE_BINS = 2048 };
/* Shared memory of a choice. */
struct choose_room {
    uint32_t count[CHOOSE_BINS];
    int32_t scan[32], found[4];
};

/* Of count the bin in which the left-th number from the top lies; found: the bin, and how many of
   it are among those. */
DEV void find_bin(const uint32_t *count, int64_t left, choose_room *room)
{
    const int bin = CHOOSE_BINS - 2 - 2 * TID, high = (int)count[bin + 1], low = (int)count[bin];
    const int upto = scan_block(high + low, room->scan), before = upto - high - low;
    if (before < left && left <= upto) {
        const bool in_high = left <= before + high;
        room->found[0] = bin + in_high;
        room->found[1] = (int)(in_high ? left - before : left - before - high);
    }
    sync_block();
}

DEV uint32_t choice_rank(const gpu_choose_job &job, int i)
{
    const float x = AT(const float, job.score)[i];
    return rank_of(job.lowest ? -x : x);
}

/* Marks the k best of [begin, end) that are not marked, of equal ones the lower. */
DEV void take_best(const gpu_choose_job &job, int begin, int end, int k, choose_room *room)
{
    uint8_t *taken = AT(uint8_t, job.taken);
    uint32_t prefix = 0, known = 0;
    int left = k, n_seen = 0;
    if (k == 0)
        return; /* the whole block */
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const uint32_t mask = pass == 2 ? 0x3ff : 0x7ff;
        for (int i = TID; i < CHOOSE_BINS; i += 1024)
            room->count[i] = 0;
        sync_block();
        for (int i = begin + TID; i < end; i += 1024) {
            const uint32_t rank = choice_rank(job, i);
            if (!taken[i] && (rank & known) == prefix)
                atomic_add(&room->count[rank >> shift & mask], 1u);
        }
        sync_block();
        find_bin(room->count, left, room);
        prefix |= (uint32_t)room->found[0] << shift;
        known |= mask << shift;
        left = room->found[1];
        sync_block();
    }
    for (int base = begin; base < end; base += 1024) {
        const int i = base + TID;
        const bool there = i < end && !taken[i < end ? i : begin];
        const uint32_t rank = there ? choice_rank(job, i) : 0;
        const int equal = there && rank == prefix, upto = scan_block(equal, room->scan) + n_seen;
        if (there && (rank > prefix || (equal && upto <= left)))
            taken[i] = 1;
        if (TID == 1023)
            room->found[2] = upto;
        sync_block();
        n_seen = room->found[2];
        sync_block();
    }
}

/* Grid: jobs. */
KERNEL(1024, 1) choose_best(const gpu_choose_args &a)
{
    SHARED(smem);
    choose_room *room = (choose_room *)smem;
    const gpu_choose_job job = AT(const gpu_choose_job, a.jobs)[blockIdx.x];
    uint8_t *taken = AT(uint8_t, job.taken);
    int n_found = 0;
    for (int i = TID; i < job.n; i += 1024)
        taken[i] = 0;
    sync_block();
    for (int p = 0; p < job.n_part; p++) {
        const gpu_choose_part part = AT(const gpu_choose_part, job.parts)[p];
        take_best(job, part.begin, part.end, part.k, room);
    }
    for (int base = 0; base < job.n; base += 1024) {
        const int i = base + TID, is = i < job.n && taken[i < job.n ? i : 0];
        const int upto = scan_block(is, room->scan) + n_found;
        if (is)
            AT(int32_t, job.slots)[upto - 1] = i;
        if (TID == 1023)
            room->found[2] = upto;
        sync_block();
        n_found = room->found[2];
        sync_block();
    }
}

/* ---- all lanes together ---- */

enum { ALL_ENTRIES = 4096 }; /* of a block */
struct all_state {
    int64_t left;
    uint32_t found, known;
};

/* Adds the digits of a lane's ranks that begin as was found. Grid: (entries / ALL_ENTRIES,
   lanes). */
KERNEL(256, 4) all_count(const gpu_choose_args &a)
{
    SHARED(smem);
    uint32_t *count = (uint32_t *)smem;
    const gpu_choose_job job = AT(const gpu_choose_job, a.jobs)[blockIdx.y];
    const all_state s = *AT(const all_state, a.state);
    const uint32_t mask = a.shift == 0 ? 0x3ff : 0x7ff;
    const int first = (int)blockIdx.x * ALL_ENTRIES;
    if (first >= job.n)
        return; /* the whole block */
    const int end = job.n - first < ALL_ENTRIES ? job.n : first + ALL_ENTRIES;
    for (int i = TID; i < CHOOSE_BINS; i += 256)
        count[i] = 0;
    sync_block();
    for (int i = first + TID; i < end; i += 256) {
        const uint32_t rank = choice_rank(job, i);
        if ((rank & s.known) == s.found)
            atomic_add(&count[rank >> a.shift & mask], 1u);
    }
    sync_block();
    for (int i = TID; i < CHOOSE_BINS; i += 256)
        if (count[i] != 0)
            atomic_add(&AT(uint32_t, a.count)[i], count[i]);
}

/* The next digit of the border; counts are cleared. One block. */
KERNEL(1024, 1) all_digit(const gpu_choose_args &a)
{
    SHARED(smem);
    choose_room *room = (choose_room *)smem;
    all_state *s = AT(all_state, a.state);
    uint32_t *count = AT(uint32_t, a.count);
    const uint32_t mask = a.shift == 0 ? 0x3ff : 0x7ff;
    const int64_t left = s->left;
    find_bin(count, left, room);
    if (TID == 0) {
        s->found |= (uint32_t)room->found[0] << a.shift;
        s->known |= mask << a.shift;
        s->left = room->found[1];
    }
    count[2 * TID] = count[2 * TID + 1] = 0;
}

/* How many ranks of a lane are above the border, and at it. Grid as of all_count. */
KERNEL(256, 4) all_above(const gpu_choose_args &a)
{
    const gpu_choose_job job = AT(const gpu_choose_job, a.jobs)[blockIdx.y];
    const uint32_t border = AT(const all_state, a.state)->found;
    const int first = (int)blockIdx.x * ALL_ENTRIES;
    const int end = job.n - first < ALL_ENTRIES ? job.n : first + ALL_ENTRIES;
    uint32_t above = 0, equal = 0;
    for (int i = first + TID; i < end; i += 256) {
        const uint32_t rank = choice_rank(job, i);
        above += rank > border, equal += rank == border;
    }
    if (above != 0)
        atomic_add(&AT(uint32_t, job.count)[0], above);
    if (equal != 0)
        atomic_add(&AT(uint32_t, job.count)[1], equal);
}

/* ---- compaction ---- */

/* Where each place of a goal gets its entry from; `source` is full of 0. A thread has a part. */
KERNEL(128, 4) compact_list(const gpu_compact_args &a)
{
    const int i = (int)blockIdx.x * 128 + TID;
    if (i >= a.n_part)
        return;
    const gpu_compact_part part = AT(const gpu_compact_part, a.parts)[i];
    uint32_t *to = AT(uint32_t, a.source) + (size_t)part.row * a.page_len + part.to_slot;
    for (int e = 0; e < part.n; e++)
        to[e] = part.from * 64 + part.from_slot + e + 1;
}

/* An entry's vector, and where it goes. */
DEV size_t vector_at(const gpu_compact_plane &p, int v, int slot, int width)
{
    return p.at + (size_t)(v / p.per_row) * p.row + (size_t)slot * p.element +
           v % p.per_row * width;
}

/* A block of 256 threads moves N vectors a thread of each goal of a lane, one goal after the other.
   No source lies in an earlier page of the lane than its goal. So the next goal's vectors may be
   read while one's are written. A block's vectors are the same ones of all entries. */
template <class T, int N> DEV void compact(const gpu_compact_args &a)
{
    const gpu_compact_plane plane = a.plane[blockIdx.z];
    const gpu_compact_lane lane = AT(const gpu_compact_lane, a.lanes)[blockIdx.x];
    const int len = a.page_len, n_here = 256 * N / len, first = (int)blockIdx.y * n_here;
    const int n_vector =
        (int)plane.n_vector - first < n_here ? (int)plane.n_vector - first : n_here;
    const uint32_t *source = AT(const uint32_t, a.source) + (size_t)lane.first * len;
    const int32_t *goal = AT(const int32_t, a.goals) + lane.first;
    if (n_vector <= 0)
        return; /* the whole block */
    int entry[N], vector[N];
    UNROLL
    for (int j = 0; j < N; j++) {
        const int i = 256 * j + TID;
        entry[j] = plane.beside ? i % len : i / n_vector;
        vector[j] = plane.beside ? i / len : i % n_vector;
        entry[j] = vector[j] < n_vector && entry[j] < len ? entry[j] : -1;
        vector[j] += first;
    }
    /* Numbers of sources are read two goals ahead, vectors one. */
    T x[N], next[N];
    uint32_t from[N], from_next[N], from_later[N];
    auto seek = [&](int g, uint32_t *at) {
        UNROLL
        for (int j = 0; j < N; j++)
            at[j] = g < lane.n && entry[j] >= 0 ? source[(size_t)g * len + entry[j]] : 0;
    };
    auto read = [&](const uint32_t *at, T *v) {
        UNROLL
        for (int j = 0; j < N; j++)
            if (at[j] != 0)
                v[j] = *AT(const T, a.pool + (size_t)((at[j] - 1) / 64) * a.stride +
                                        vector_at(plane, vector[j], (at[j] - 1) % 64, sizeof(T)));
    };
    seek(0, from);
    seek(1, from_next);
    read(from, x);
    for (int g = 0; g < lane.n; g++) {
        const size_t to = a.pool + (size_t)goal[g] * a.stride;
        sync_block();
        seek(g + 2, from_later);
        read(from_next, next);
        UNROLL
        for (int j = 0; j < N; j++) {
            if (from[j] != 0)
                *AT(T, to + vector_at(plane, vector[j], entry[j], sizeof(T))) = x[j];
            x[j] = next[j], from[j] = from_next[j], from_next[j] = from_later[j];
        }
    }
}

/* Grid: (lanes, vectors / those of a block, planes). */
KERNEL(256, 4) compact_2(const gpu_compact_args &a)
{
    compact<uint16_t, 8>(a);
}
KERNEL(256, 4) compact_4(const gpu_compact_args &a)
{
    compact<uint32_t, 8>(a);
}
KERNEL(256, 4) compact_16(const gpu_compact_args &a)
{
    compact<uint4, 4>(a);
}

#endif
