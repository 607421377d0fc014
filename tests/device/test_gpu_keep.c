/*
 * A round on a device of GPU kind: scores of keys and values against f64, choices against the
 * host's. Compaction and the index are compared with the processor's bytes. Lanes in one call have
 * the bits that they have alone. Near ties are counted: where f64 chooses another entry, its score
 * is at the border.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kv/choose.h"
#include "kv/internal.h"
#include "kv/weigh.h"
#include "gpu_rig.h"
#include "near.h"
#include "status.h"
#include "testing.h"

enum { N_LAYER = 2, N_HEAD = 2, MOST = 300, MOST_DIM = 128, N_ROW = 3, MOST_VECTOR = 3 };

TEST_GROUP(NULL, free_gpu);

/* ---- a sequence ---- */

struct rig {
    struct kv_cache *cache;
    struct kv_seq *seq;
    struct pi_stream *stream;
    struct pi_rope rope;
    int32_t n;
};

static void rig_open(struct rig *r, struct pi_device *d, const struct kv_geometry *shape, int32_t n,
                     bool adjacent)
{
    static float k[MOST * MOST_DIM], v[MOST * MOST_DIM],
        projection[N_LAYER * N_HEAD * 64 * MOST_DIM];
    struct kv_geometry g = *shape;
    uint64_t rng = 3;
    g.device = d;
    *r = (struct rig){.n = n};
    check(kv_cache_create(&g, 64 << 20, &r->cache, NULL), NULL);
    for (size_t i = 0; i < PI_LEN(projection); i++)
        projection[i] = 0.1f * rng_float(&rng);
    if ((g.index & KV_INDEX_PROJ) != 0)
        kv_cache_set_projection(r->cache, projection);
    check(kv_seq_create(r->cache, &r->seq, NULL), NULL);
    check(kv_seq_reserve(r->seq, n, NULL), NULL);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            for (int32_t i = 0; i < n * g.dim_k; i++)
                k[i] = rng_float(&rng) + 0.3f * (float)(i % g.dim_k < 9);
            for (int32_t i = 0; i < n * g.dim_v; i++)
                v[i] = rng_float(&rng);
            kv_seq_append(r->seq, l, h, 0, n, k, (size_t)g.dim_k, v, (size_t)g.dim_v);
        }
    r->stream = d->open(d, &(struct pi_stream_shape){.n_thread = 1});
    r->rope = (struct pi_rope){.n_pair = g.dim_k / 2, .adjacent = adjacent, .magnitude = 1.0f};
    double *freq = test_malloc((size_t)r->rope.n_pair * sizeof(*freq));
    for (int32_t f = 0; f < r->rope.n_pair; f++)
        freq[f] = pow(10000.0, -2.0 * f / g.dim_k);
    r->rope.freq = freq;
}

static void rig_close(struct rig *r)
{
    test_free((void *)r->rope.freq);
    r->stream->device->close(r->stream);
    kv_seq_free(r->seq);
    kv_cache_free(r->cache);
}

/* ---- scores ---- */

/* A call's vectors, and what it is to give. */
struct want {
    float w[N_ROW * MOST_VECTOR * MOST_DIM], e[N_ROW * MOST_DIM / 2];
    struct kv_weigh_job job;
    int32_t pos[MOST];
};

static void turn(const struct pi_rope *rope, double by, double *k)
{
    for (int32_t f = 0; f < rope->n_pair; f++) {
        double *a = &k[rope->adjacent ? 2 * f : f], *b = a + (rope->adjacent ? 1 : rope->n_pair);
        double c = cos(by * rope->freq[f]), s = sin(by * rope->freq[f]), x = *a;
        *a = x * c - *b * s;
        *b = x * s + *b * c;
    }
}

/* The key of a slot as attention sees it, or its value. */
static void entry_of(const struct rig *r, int32_t layer, int32_t head, int32_t slot, bool value,
                     double *out)
{
    float row[MOST_DIM];
    const struct kv_geometry *g = &r->cache->g;
    if (value)
        kv_lane_value(r->seq, layer, head, slot, row);
    else
        kv_lane_key(r->seq, layer, head, slot, row);
    for (int32_t d = 0; d < (value ? g->dim_v : g->dim_k); d++)
        out[d] = row[d];
    if (!value)
        turn(&r->rope,
             kv_lane_pos(r->seq, layer, head, slot) -
                 kv_lane_written_pos(r->seq, layer, head, slot),
             out);
}

static double length(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Row i's score of a key. */
static double wave(const struct rig *r, const struct want *w, int32_t i, const double *key)
{
    const struct kv_weigh_waves *v = &w->job.waves;
    int32_t dim = r->cache->g.dim_k, n_pair = r->rope.n_pair;
    double best = -INFINITY;
    for (int32_t j = 0; j < v->n_vector; j++) {
        double s = 0;
        for (int32_t d = 0; d < dim; d++)
            s += v->w[(i * v->n_vector + j) * dim + d] * key[d];
        for (int32_t f = 0; v->e != NULL && f < n_pair; f++) {
            double a = key[r->rope.adjacent ? 2 * f : f];
            double b = key[r->rope.adjacent ? 2 * f + 1 : n_pair + f];
            s += v->e[i * n_pair + f] * sqrt(a * a + b * b);
        }
        best = fmax(best, s);
    }
    return best;
}

/* The scores of a lane in f64, before lanes are combined. */
static void score_exactly(const struct rig *r, const struct want *w, const struct kv_weigh_set *set,
                          double *out)
{
    static double key[MOST][MOST_DIM];
    const struct kv_weigh_job *job = &w->job;
    bool value = job->kind == KV_WEIGH_VALUE_L1 || job->kind == KV_WEIGH_VALUE_L2;
    int32_t dim = value ? r->cache->g.dim_v : r->cache->g.dim_k;
    double mean[MOST_DIM] = {0};
    for (int32_t i = 0; i < r->n; i++) {
        entry_of(r, job->layer, job->head, i, value, key[i]);
        if (job->kind == KV_WEIGH_WAVES && job->waves.still)
            turn(&r->rope, -w->pos[i], key[i]);
        for (int32_t d = 0; d < dim; d++)
            mean[d] += key[i][d] / length(key[i], dim) / r->n;
    }
    for (int32_t i = 0; i < r->n; i++) {
        double dot = 0, sum = 0;
        for (int32_t d = 0; d < dim; d++) {
            dot += key[i][d] * mean[d];
            sum += fabs(key[i][d]);
        }
        out[i] = job->kind == KV_WEIGH_VALUE_L1 ? sum : length(key[i], dim);
        if (job->kind == KV_WEIGH_ALIKE)
            out[i] = dot / length(key[i], dim) / length(mean, dim);
    }
    for (int32_t v = 0; job->kind == KV_WEIGH_WAVES && v < job->waves.n_row; v++) {
        double x[MOST], m = 0, square = 0;
        int32_t n = set->end - set->begin;
        for (int32_t i = 0; i < r->n; i++)
            x[i] = wave(r, w, v, key[i]);
        for (int32_t i = set->begin; i < set->end; i++)
            m += x[i] / n;
        for (int32_t i = set->begin; i < set->end; i++)
            square += (x[i] - m) * (x[i] - m) / n;
        for (int32_t i = 0; i < r->n; i++) {
            double z = job->waves.standard ? (x[i] - m) / sqrt(square) : x[i];
            out[i] = v == 0 ? z : fmax(out[i], z);
        }
    }
    for (int32_t i = 0; i < r->n; i++) {
        out[i] *= job->lowest ? -1 : 1;
        out[i] = job->mapped ? job->slope * out[i] + job->intercept : out[i];
    }
}

static void make_job(const struct rig *r, struct want *w, int32_t layer, int32_t head,
                     const struct kv_weigh_job *like)
{
    uint64_t rng = (uint64_t)(100 + layer * 10 + head);
    w->job = *like;
    w->job.seq = r->seq;
    w->job.layer = layer;
    w->job.head = head;
    w->job.rope = &r->rope;
    for (size_t i = 0; i < PI_LEN(w->w); i++)
        w->w[i] = rng_float(&rng);
    for (size_t i = 0; i < PI_LEN(w->e); i++)
        w->e[i] = 0.3f * fabsf(rng_float(&rng));
    if (w->job.waves.n_row > 0)
        w->job.waves.w = w->w;
    if (w->job.waves.n_row > 0 && head == 0)
        w->job.waves.e = w->e;
    kv_lane_positions(r->seq, layer, head, w->pos, r->n);
}

/* All lanes of a layer count for one set, or each for its own. */
static struct kv_weigh_list list_of(const struct rig *r, struct kv_weigh_job *jobs,
                                    struct kv_weigh_set *sets, int32_t n_set, const int32_t *pos)
{
    for (int32_t s = 0; s < n_set; s++)
        sets[s] = (struct kv_weigh_set){
            .n = r->n, .pos = pos, .begin = 5, .end = r->n - 11, .unknown = 0.25f};
    return (struct kv_weigh_list){.jobs = jobs, .sets = sets, .n_set = n_set};
}

static void fetch(const struct rig *r, const struct kv_weigh_set *set, float *out)
{
    const float *x =
        r->stream->device->download(r->stream, set->score, (size_t)set->n * sizeof(*out), out);
    if (x != out)
        memcpy(out, x, (size_t)set->n * sizeof(*out));
}

/* Scores all lanes, combined over layers and perhaps heads; lanes of a layer in one call, or in one
   call each. out [n_set][n] */
static void weigh(const struct rig *r, struct want want[N_LAYER][N_HEAD], int32_t n_set, bool mean,
                  bool alone, struct kv_weigh_set *sets, float *out)
{
    struct kv_weigh_job jobs[N_HEAD];
    struct kv_weigh_list list = list_of(r, jobs, sets, n_set, want[0][0].pos);
    list.mean = mean;
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h += alone ? 1 : N_HEAD) {
            list.n = alone ? 1 : N_HEAD;
            for (int32_t i = 0; i < list.n; i++) {
                jobs[i] = want[l][h + i].job;
                jobs[i].set = n_set == 1 ? 0 : h + i;
            }
            r->stream->device->weigh(r->stream, &list);
            for (int32_t i = 0; i < list.n; i++)
                sets[jobs[i].set].n_of++;
        }
    list.n = 0;
    list.last = true;
    r->stream->device->weigh(r->stream, &list);
    for (int32_t s = 0; s < n_set; s++)
        fetch(r, &sets[s], out + (size_t)s * MOST);
}

static void check_scores(const struct rig *r, const struct kv_weigh_job *like, int32_t n_set,
                         bool mean)
{
    static struct want want[N_LAYER][N_HEAD];
    static float out[N_HEAD * MOST], apart[N_HEAD * MOST];
    struct kv_weigh_set sets[N_HEAD];
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            make_job(r, &want[l][h], l, h, like);
    weigh(r, want, n_set, mean, true, sets, apart);
    weigh(r, want, n_set, mean, false, sets, out);
    for (int32_t s = 0; s < n_set; s++) {
        double sum[MOST], x[MOST], off = 0, all = 0;
        int32_t n_lane = 0;
        for (int32_t l = 0; l < N_LAYER; l++)
            for (int32_t h = 0; h < N_HEAD; h++) {
                if (n_set != 1 && h != s)
                    continue;
                score_exactly(r, &want[l][h], &sets[s], x);
                for (int32_t i = 0; i < r->n; i++)
                    sum[i] = n_lane == 0 ? x[i] : mean ? sum[i] + x[i] : fmax(sum[i], x[i]);
                n_lane++;
            }
        for (int32_t i = sets[s].begin; i < sets[s].end; i++) {
            double ref = sum[i] / (mean ? n_lane : 1);
            off += (out[s * MOST + i] - ref) * (out[s * MOST + i] - ref);
            all += ref * ref;
            assert_true(out[s * MOST + i] == apart[s * MOST + i]);
        }
        if (!(sqrt(off / all) < 1e-5))
            fail_msg("%s %s, kind %d: error %.2e", kv_type_name(r->cache->g.type_k),
                     kv_type_name(r->cache->g.type_v), (int)like->kind, sqrt(off / all));
    }
}

static struct kv_geometry shape_of(enum kv_type k, enum kv_type v, int32_t dim, int32_t page_len,
                                   uint32_t index)
{
    return (struct kv_geometry){.n_layer = N_LAYER,
                                .n_head = N_HEAD,
                                .dim_k = dim,
                                .dim_v = 64,
                                .page_len = page_len,
                                .type_k = k,
                                .type_v = v,
                                .index = index,
                                .index_dim = (index & KV_INDEX_PROJ) != 0 ? 8 : 0};
}

static const struct kv_weigh_job kinds[] = {
    {.kind = KV_WEIGH_WAVES, .waves = {.n_row = 3, .n_vector = 1, .standard = true}},
    {.kind = KV_WEIGH_WAVES, .waves = {.n_row = 2, .n_vector = 3}, .lowest = true},
    {.kind = KV_WEIGH_WAVES,
     .waves = {.n_row = 1, .n_vector = 1, .still = true},
     .mapped = true,
     .slope = 0.5f,
     .intercept = -2.0f},
    {.kind = KV_WEIGH_KEY, .lowest = true},
    {.kind = KV_WEIGH_ALIKE},
    {.kind = KV_WEIGH_VALUE_L1},
    {.kind = KV_WEIGH_VALUE_L2},
};

TEST(scores_of_every_kind_are_near_and_have_the_same_bits_in_company)
{
    for (size_t i = 0; i < PI_LEN(kinds); i++) {
        struct rig r;
        const struct kv_geometry g = shape_of(KV_TYPE_F16, KV_TYPE_F16, 64, i % 2 ? 64 : 16, 0);
        rig_open(&r, gpu(), &g, 203, i % 3 == 1);
        check_scores(&r, &kinds[i], i % 2 ? N_HEAD : 1, i % 4 < 2);
        rig_close(&r);
    }
}

TEST(scores_of_every_storage_type_are_near)
{
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        struct rig r;
        const struct kv_geometry g = shape_of((enum kv_type)t, (enum kv_type)((t + 3) % KV_N_TYPE),
                                              128, 32, t % 2 ? KV_INDEX_ROWS : 0);
        rig_open(&r, gpu(), &g, 150, false);
        check_scores(&r, &kinds[0], 1, true);
        check_scores(&r, &kinds[4 + t % 3], N_HEAD, true);
        rig_close(&r);
    }
}

/* Pages that are read elsewhere than they were written, and partial ones among them. */
TEST(scores_of_shifted_entries_are_near)
{
    const struct kv_geometry g = shape_of(KV_TYPE_F16, KV_TYPE_F16, 64, 32, 0);
    struct rig r;
    rig_open(&r, gpu(), &g, 150, false);
    for (int32_t l = 0; l < N_LAYER * N_HEAD; l++) {
        int32_t slots[150], n = 0;
        for (int32_t i = 0; i < 150; i++)
            if (i < 40 || i > 60)
                slots[n++] = i;
        check(kv_seq_compact(r.seq, l / 2, l % 2, slots, n, NULL), NULL);
        check(kv_seq_reserve_table(r.seq, 64, NULL), NULL);
        check(kv_seq_split(r.seq, l / 2, l % 2, 40, NULL), NULL);
        kv_seq_shift(r.seq, l / 2, l % 2, 40, 20);
        r.n = n;
    }
    check_scores(&r, &kinds[0], 1, true);
    check_scores(&r, &kinds[4], 1, false);
    rig_close(&r);
}

/* ---- choices ---- */

/* f64 takes another of two entries only where their scores are nearly the same. */
static void check_near_ties(const struct rig *r, struct want want[N_LAYER][N_HEAD],
                            const struct kv_weigh_set *set, const float *out)
{
    double a[MOST], b[MOST];
    int32_t n_pair = 0, n_near = 0;
    score_exactly(r, &want[0][0], set, a);
    score_exactly(r, &want[1][0], set, b);
    for (int32_t i = set->begin; i < set->end; i++)
        for (int32_t j = set->begin; j < i; j++) {
            double x = (a[i] + b[i]) / 2, y = (a[j] + b[j]) / 2;
            bool other = (x > y) != (out[i] > out[j]);
            assert_false(other && fabs(x - y) > 1e-5);
            n_pair++;
            n_near += other;
        }
    assert_true(n_near * 1000 < n_pair);
}

/* Of the scores on the device the same slots are chosen as the host chooses of a copy. Scores of
   f64 choose others only among near ties. */
TEST(choices_are_the_hosts_but_for_near_ties)
{
    static struct want want[N_LAYER][N_HEAD];
    static float out[N_HEAD * MOST];
    static int32_t slots[N_HEAD][MOST], host[MOST];
    struct kv_weigh_set sets[N_HEAD];
    struct rig r;
    const struct kv_geometry g = shape_of(KV_TYPE_F16, KV_TYPE_F16, 64, 64, 0);
    rig_open(&r, gpu(), &g, 280, false);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            make_job(&r, &want[l][h], l, h, &kinds[0]);
    weigh(&r, want, N_HEAD, true, false, sets, out);
    uint8_t *scratch = test_malloc(kv_choose_scratch_bytes(MOST));
    for (int32_t k = 0; k < 260; k += 37)
        for (int32_t form = 0; form < 3; form++) {
            struct kv_choose_job jobs[N_HEAD];
            struct kv_choose_list list = {.jobs = jobs, .n = N_HEAD, .scratch = scratch};
            for (int32_t s = 0; s < N_HEAD; s++)
                jobs[s] = (struct kv_choose_job){.at = pi_at_item(sets[s].score, 5),
                                                 .n = sets[s].end - 5,
                                                 .k = k,
                                                 .lowest = form != 1,
                                                 .n_part = form == 2 ? 8 : 0,
                                                 .pos = want[0][0].pos + 5,
                                                 .lo = 5,
                                                 .hi = sets[s].end,
                                                 .slots = slots[s]};
            gpu()->choose(r.stream, &list);
            for (int32_t s = 0; s < N_HEAD; s++) {
                struct kv_choose_job again = jobs[s];
                again.score = out + s * MOST + 5;
                again.slots = host;
                kv_choose(&again, scratch);
                assert_memory_equal(slots[s], host, (size_t)k * sizeof(*host));
            }
        }
    test_free(scratch);
    check_near_ties(&r, want, &sets[0], out);
    rig_close(&r);
}

/* Of all lanes together: by shares of ties, and by age. */
TEST(choices_among_all_lanes_are_the_hosts)
{
    enum { N_LANE = 5, LEN = 3000 };
    static float score[N_LANE][LEN];
    static int32_t pos[N_LANE][LEN];
    struct pi_device *d = gpu();
    struct pi_stream *s = d->open(d, &(struct pi_stream_shape){.n_thread = 1});
    struct pi_at room = d->alloc(d, PI_MEM_OTHER, sizeof(score));
    uint64_t rng = 5;
    for (int32_t form = 0; form < 4; form++) {
        struct kv_choose_lane lanes[N_LANE], host[N_LANE];
        for (int32_t l = 0; l < N_LANE; l++) {
            for (int32_t i = 0; i < LEN; i++) {
                score[l][i] = form < 2 ? rng_float(&rng) : (float)rng_below(&rng, 5) - 2.0f;
                pos[l][i] = 3 * i + l;
            }
            host[l] = lanes[l] =
                (struct kv_choose_lane){.score = score[l], .pos = pos[l], .n = LEN - 700 * l};
            lanes[l].at = pi_at_item(room, (size_t)(l * LEN));
            lanes[l].score = NULL;
        }
        d->upload(s, score, sizeof(score), room);
        for (int64_t k = 0; k < 8000; k += 1999) {
            struct kv_choose_all there = {lanes, N_LANE, k, form % 2 == 1};
            struct kv_choose_all here = {host, N_LANE, k, form % 2 == 1};
            d->choose_all(s, &there);
            kv_choose_all(&here);
            for (int32_t l = 0; l < N_LANE; l++)
                assert_int_equal(lanes[l].n_top, host[l].n_top);
        }
    }
    d->free(d, room);
    d->close(s);
}

/* ---- compaction ---- */

/* All pages of all lanes, one behind the other. */
static size_t export_lanes(const struct rig *r, uint8_t *out)
{
    size_t used = 0;
    for (int32_t l = 0; l < N_LAYER * N_HEAD; l++) {
        const struct kv_lane *lane = kv_lane_at(r->seq, l / N_HEAD, l % N_HEAD);
        for (int32_t i = 0; i < lane->n_live; i++) {
            kv_page_export(r->cache, lane->kind, lane->table[i].page, out + used);
            used += lane->kind->layout.bytes;
        }
    }
    return used;
}

/* Copies all pages from a to b. */
static void copy_lanes(const struct rig *a, const struct rig *b, uint8_t *room)
{
    for (int32_t l = 0; l < N_LAYER * N_HEAD; l++) {
        const struct kv_lane *from = kv_lane_at(a->seq, l / N_HEAD, l % N_HEAD);
        const struct kv_lane *to = kv_lane_at(b->seq, l / N_HEAD, l % N_HEAD);
        for (int32_t i = 0; i < from->n_live; i++) {
            kv_page_export(a->cache, from->kind, from->table[i].page, room);
            kv_page_import(b->cache, to->kind, to->table[i].page, room);
        }
    }
}

static void compact(struct rig *r, int32_t form)
{
    static int32_t slots[N_LAYER * N_HEAD][MOST];
    struct kv_cut cut[N_LAYER * N_HEAD];
    uint64_t rng = (uint64_t)(form + 1);
    for (int32_t l = 0; l < N_LAYER * N_HEAD; l++) {
        int32_t n = 0, len = kv_lane_len(r->seq, l / N_HEAD, l % N_HEAD);
        for (int32_t i = 0; i < len; i++)
            if (form == 0 ? rng_below(&rng, 2) == 0 : i % 50 != 3 + form + l)
                slots[l][n++] = i;
        cut[l] = (struct kv_cut){l / N_HEAD, l % N_HEAD, slots[l], n};
    }
    check(kv_seq_compact_lanes(r->seq, cut, N_LAYER * N_HEAD, 1, NULL), NULL);
}

TEST(compaction_gives_the_processors_bytes)
{
    static const uint32_t index[] = {0, KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS,
                                     KV_INDEX_PROJ | KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM};
    static const int32_t page_len[] = {16, 32, 64};
    uint8_t *a = test_malloc(16 << 20), *b = test_malloc(16 << 20);
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        struct rig cpu, own;
        const struct kv_geometry g =
            shape_of((enum kv_type)t, (enum kv_type)((t * 3 + 1) % KV_N_TYPE), t % 2 ? 128 : 32,
                     page_len[t % 3], index[(t + 1) % 3]);
        rig_open(&cpu, &pi_device_cpu, &g, MOST, false);
        rig_open(&own, gpu(), &g, MOST, false);
        copy_lanes(&cpu, &own, a);
        for (int32_t form = 2; form >= 0; form--) {
            compact(&cpu, form);
            compact(&own, form);
            size_t size = export_lanes(&cpu, a);
            assert_int_equal(export_lanes(&own, b), size);
            assert_memory_equal(a, b, size);
        }
        rig_close(&cpu);
        rig_close(&own);
    }
    test_free(a);
    test_free(b);
}

/* ---- the index ---- */

/* A part of the index in a page as kv_page_export gives it. */
static const uint8_t *index_part(const struct kv_page_layout *at, const uint8_t *page, size_t part)
{
    return page + at->saved + (part - at->stored);
}

static void check_floats(const uint8_t *a, const uint8_t *b, size_t n, float bound)
{
    for (size_t i = 0; i < n; i++) {
        float x, y;
        memcpy(&x, a + i * sizeof(x), sizeof(x));
        memcpy(&y, b + i * sizeof(y), sizeof(y));
        assert_true(fabsf(x - y) <= bound * fabsf(x));
    }
}

/* Copies, and sums in one order, are the same. Codes may differ by one, and lengths by a
   rounding. */
TEST(the_index_is_the_processors)
{
    static const uint32_t both = KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS | KV_INDEX_PROJ |
                                 KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM;
    struct kv_geometry g = shape_of(KV_TYPE_F16, KV_TYPE_F16, 64, 32, both);
    struct rig cpu, own;
    int32_t n_other = 0;
    rig_open(&cpu, &pi_device_cpu, &g, 96, false);
    rig_open(&own, gpu(), &g, 96, false);
    for (int32_t l = 0; l < N_LAYER * N_HEAD * 3; l++) {
        const struct kv_lane *a = kv_lane_at(cpu.seq, l / 6, l / 3 % N_HEAD);
        const struct kv_lane *b = kv_lane_at(own.seq, l / 6, l / 3 % N_HEAD);
        const struct kv_page_layout *at = &a->kind->layout;
        uint8_t *x = test_malloc(at->bytes), *y = test_malloc(at->bytes);
        kv_page_export(cpu.cache, a->kind, a->table[l % 3].page, x);
        kv_page_export(own.cache, b->kind, b->table[l % 3].page, y);
        assert_memory_equal(x, y, at->stored);
        check_floats(index_part(at, x, at->norm), index_part(at, y, at->norm), 32, 1e-6f);
        check_floats(index_part(at, x, at->unit_scale), index_part(at, y, at->unit_scale), 32,
                     1e-6f);
        assert_memory_equal(index_part(at, x, at->columns), index_part(at, y, at->columns),
                            64 * 32 * sizeof(uint16_t));
        assert_memory_equal(index_part(at, x, at->bounds), index_part(at, y, at->bounds),
                            2 * 64 * sizeof(float));
        assert_memory_equal(index_part(at, x, at->value_sum), index_part(at, y, at->value_sum),
                            64 * sizeof(float));
        for (int32_t i = 0; i < 32 * 64; i++) {
            int32_t off = index_part(at, x, at->unit)[i] - index_part(at, y, at->unit)[i];
            assert_true(off >= -1 && off <= 1);
            n_other += off != 0;
        }
        for (int32_t i = 0; i < 32 * 8; i++) {
            uint16_t p, q;
            memcpy(&p, index_part(at, x, at->proj) + 2 * i, 2);
            memcpy(&q, index_part(at, y, at->proj) + 2 * i, 2);
            assert_true(p - q <= 2 && q - p <= 2);
        }
        test_free(x);
        test_free(y);
    }
    assert_true(n_other < 10);
    rig_close(&cpu);
    rig_close(&own);
}
