/*
 * Choices of read policies that a device of GPU kind makes by itself, against those that the host
 * makes of the same lanes. Near ties may go either way, and are counted. Nothing comes to the host.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/gpu/host.h"
#include "policy/read/projection.h"
#include "policy/read/read.h"
#include "gpu_rig.h"
#include "near.h"
#include "status.h"
#include "testing.h"

enum { N_LAYER = 3, N_HEAD = 2, N_GROUP = 3, DIM = 64, BEFORE = 220, MOST_TOK = 12 };
enum { ROW = N_HEAD * N_GROUP * DIM, MOST = BEFORE + MOST_TOK, CAP = 128 };

static pith_error err;

TEST_GROUP(NULL, free_gpu);

/* ---- lanes ---- */

struct rig {
    struct pi_device *d;
    struct pi_stream *stream;
    struct policy_model model;
    struct kv_cache *cache;
    struct kv_seq *seq;
    struct read *read;
    struct pi_pass_reader reader;
    int32_t n_tok;
    const struct kv_seq *other; /* that is chosen for in the same calls; NULL: none */
    bool here;                  /* the host has the queries, and chooses */
    float *q;                   /* [MOST_TOK][ROW] */
    struct pi_at q_at, out_at;
};

static void fill(float *x, size_t n, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(rng);
}

/* A lane in which every third entry is before the others in the text: as after overwriting. */
static void overwrite(struct rig *r, const float *k, const float *v)
{
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            kv_seq_set_victim(r->seq, l, h, 7);
    check(kv_seq_reserve(r->seq, 1, &err), &err);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            kv_seq_append(r->seq, l, h, BEFORE, 1, k, DIM, v, DIM);
}

static void open_rig(struct rig *r, const char *option, int32_t n_tok, bool overwritten)
{
    static float k[MOST * DIM], v[MOST * DIM];
    struct read_config config;
    uint64_t rng = 11;
    int32_t n = BEFORE + (overwritten ? 1 : 0);
    *r = (struct rig){.d = gpu(), .n_tok = n_tok};
    struct kv_geometry g = {.n_layer = N_LAYER,
                            .n_head = N_HEAD,
                            .dim_k = DIM,
                            .dim_v = DIM,
                            .page_len = 16,
                            .type_k = KV_TYPE_F16,
                            .type_v = KV_TYPE_F16,
                            .device = r->d};
    check(read_config_parse(option, &config, &err), &err);
    check(read_config_fit(&config, &g, &err), &err);
    r->model = (struct policy_model){.g = g, .n_group = N_GROUP, .scale = 0.4f};
    check(kv_cache_create(&g, 16 << 20, &r->cache, &err), &err);
    check(read_create(&config, &r->model, 1, &r->read, &err), &err);
    if (read_projection(r->read) != NULL)
        kv_cache_set_projection(r->cache, read_projection(r->read));
    check(kv_seq_create(r->cache, &r->seq, &err), &err);
    check(kv_seq_reserve(r->seq, MOST, &err), &err);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            fill(k, PI_LEN(k), &rng);
            fill(v, PI_LEN(v), &rng);
            kv_seq_append(r->seq, l, h, 0, BEFORE, k, DIM, v, DIM);
        }
    if (overwritten)
        overwrite(r, k, v);
    check(kv_seq_reserve(r->seq, n_tok, &err), &err);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            kv_seq_append(r->seq, l, h, n, n_tok, k, DIM, v, DIM);
    check(read_reserve(r->read, 2, MOST, &err), &err);
    read_reader(r->read, &r->reader);
    r->stream = r->d->open(r->d, &(struct pi_stream_shape){.n_thread = 1});
    r->q = malloc(MOST_TOK * ROW * sizeof(float));
    fill(r->q, MOST_TOK * ROW, &rng);
    r->q_at = r->d->alloc(r->d, PI_MEM_OTHER, MOST_TOK * ROW * sizeof(float));
    r->out_at = r->d->alloc(r->d, PI_MEM_OTHER, MOST_TOK * ROW * sizeof(float));
    r->d->upload(r->stream, r->q, MOST_TOK * ROW * sizeof(float), r->q_at);
}

static void close_rig(struct rig *r)
{
    r->d->free(r->d, r->q_at);
    r->d->free(r->d, r->out_at);
    r->d->close(r->stream);
    free(r->q);
    kv_seq_free(r->seq);
    read_free(r->read);
    kv_cache_free(r->cache);
}

/* ---- choices ---- */

struct choice {
    int32_t n_slot[N_LAYER][N_HEAD];
    int32_t slots[N_LAYER][N_HEAD][CAP];
};

static int32_t n_copy;
static void (*copy_out)(struct gpu_driver *, void *, gpu_at, size_t);

static void count_copy(struct gpu_driver *driver, void *host, gpu_at from, size_t size)
{
    n_copy++;
    copy_out(driver, host, from, size);
}

/* The slots of a choice that stayed on the device. */
static void bring(struct rig *r, const struct kv_attend_chosen *c, int32_t *slots)
{
    const int32_t *from =
        r->d->download(r->stream, c->at, (size_t)c->n * sizeof(*slots), slots + c->n_first);
    for (int32_t i = 0; i < c->n; i++)
        slots[c->n_first + i] = from[i] + c->n_first;
    for (int32_t i = 0; i < c->n_first; i++)
        slots[i] = i;
    for (int32_t i = 0; i < c->n_last; i++)
        slots[c->n_first + c->n + i] = c->end - c->n_last + i;
}

/* A layer's choice; its outputs begin as numbers of q. Returns copies to the host meanwhile. */
static int32_t choose_layer(struct rig *r, int32_t layer, struct choice *out, float *blended)
{
    struct gpu_driver *driver = gpu_of(r->d)->driver;
    int32_t pos0 = BEFORE + (kv_lane_unordered(r->seq, 0, 0) ? 1 : 0);
    struct pi_pass_item item = {.kv = r->seq, .n_tok = r->n_tok, .pos0 = pos0};
    struct pi_pass_item item2 = {.kv = (struct kv_seq *)r->other, .n_tok = r->n_tok, .pos0 = pos0};
    static struct choice unused;
    struct kv_attend_chosen chosen[2][N_HEAD] = {0};
    struct pi_pass_chunk c[2] = {{.item = &item,
                                  .layer = layer,
                                  .n_tok = r->n_tok,
                                  .q_at = r->here ? (struct pi_at){0} : r->q_at,
                                  .q_stride = ROW,
                                  .cap = CAP,
                                  .slots = out->slots[layer][0],
                                  .n_slot = out->n_slot[layer],
                                  .chosen = chosen[0],
                                  .out_stride = ROW}};
    int32_t n_chunk = r->other != NULL ? 2 : 1;
    c[1] = c[0];
    c[1].item = &item2;
    c[1].index = 1;
    c[1].slots = unused.slots[layer][0];
    c[1].n_slot = unused.n_slot[layer];
    c[1].chosen = chosen[1];
    item2.pos0 += r->other != NULL && kv_lane_unordered(r->other, 0, 0);
    n_copy = 0;
    copy_out = driver->get;
    driver->get = count_copy;
    c[0].q = c[1].q = r->reader.looks(r->reader.user, c, n_chunk) ? r->q : NULL;
    r->reader.select(r->reader.user, c, n_chunk);
    if (r->reader.blended != NULL) {
        memcpy(blended, r->q, ROW * sizeof(float));
        r->d->upload(r->stream, r->q, ROW * sizeof(float), r->out_at);
        c[0].out = blended;
        c[0].out_at = r->out_at;
        if (r->reader.blended(r->reader.user, c, 1))
            r->reader.attended(r->reader.user, c, 1);
    }
    driver->get = copy_out;
    int32_t n = n_copy;
    if (r->reader.blended != NULL && !r->here) {
        const float *x = r->d->download(r->stream, r->out_at, ROW * sizeof(float), blended);
        memmove(blended, x, ROW * sizeof(float));
    }
    for (int32_t h = 0; h < N_HEAD; h++)
        if (pi_at_some(chosen[0][h].at))
            bring(r, &chosen[0][h], out->slots[layer][h]);
    return n;
}

/* Whether a slot is among n ascending ones. */
static bool has(const int32_t *slots, int32_t n, int32_t slot)
{
    for (int32_t i = 0; i < n; i++)
        if (slots[i] == slot)
            return true;
    return false;
}

/* n_wait: copies of the device's way to the host. */
static void run(const char *option, int32_t n_tok, bool overwritten, int32_t n_wait)
{
    static struct choice there, here;
    static float a[ROW], b[ROW];
    struct rig r;
    int32_t n = 0, apart = 0, copies = 0, sparse = 0;
    open_rig(&r, option, n_tok, overwritten);
    for (int32_t l = 0; l < N_LAYER; l++) {
        r.here = false;
        copies += choose_layer(&r, l, &there, a);
        if (r.reader.blended != NULL) {
            r.here = true;
            choose_layer(&r, l, &here, b);
            for (int32_t i = 0; i < ROW; i++)
                near(a[i], b[i], 1e-3);
        }
    }
    r.here = true;
    for (int32_t l = 0; l < N_LAYER; l++)
        choose_layer(&r, l, &here, b);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            assert_int_equal(there.n_slot[l][h], here.n_slot[l][h]);
            sparse += here.n_slot[l][h] >= 0;
            for (int32_t i = 0; i < here.n_slot[l][h]; i++, n++) {
                apart += !has(here.slots[l][h], here.n_slot[l][h], there.slots[l][h][i]);
                assert_true(i == 0 || there.slots[l][h][i] > there.slots[l][h][i - 1]);
            }
        }
    printf("%s, %d tokens: %d of %d entries differ from the host's; %d copies\n", option, n_tok,
           apart, n, copies);
    assert_true(sparse > 0 && n > 0 && apart * 50 <= n);
    assert_int_equal(copies, n_wait);
    close_rig(&r);
}

/* A layer's choices of two chunks together: of a sequence whose vectors the device makes, and of
   one whose lanes hold different positions. */
TEST(company_changes_no_choice)
{
    static struct choice alone, together;
    struct rig r, other;
    const char *option = "lessismore:budget=40,source=0,sinks=2,recent=3";
    open_rig(&r, option, 1, false);
    open_rig(&other, option, 1, true);
    for (int32_t l = 0; l < N_LAYER; l++)
        choose_layer(&r, l, &alone, NULL);
    r.other = other.seq;
    for (int32_t l = 0; l < N_LAYER; l++)
        choose_layer(&r, l, &together, NULL);
    for (int32_t l = 1; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            int32_t n = alone.n_slot[l][h];
            assert_int_equal(n, together.n_slot[l][h]);
            assert_memory_equal(alone.slots[l][h], together.slots[l][h],
                                (size_t)pi_max(n, 0) * sizeof(int32_t));
        }
    assert_true(alone.n_slot[1][0] > 0);
    close_rig(&other);
    close_rig(&r);
}

TEST(samples_of_queries)
{
    run("sampleattention:budget=40,queries=5,chunk=20,gate=1", MOST_TOK, false, 0);
    run("sampleattention:budget=40,weigh=logits,gate=1", 1, false, 0);
}

TEST(last_queries_pooled)
{
    run("snapkv:budget=40,queries=6,chunk=20,sinks=2,recent=3,gate=1", MOST_TOK, false, 0);
    run("snapkv:budget=40,pool=max,kernel=4,gate=1", 1, false, 0);
}

/* Neighbours are neighbours in the text. The choice is listed, since pages have no order. */
TEST(last_queries_pooled_where_an_entry_was_overwritten)
{
    run("snapkv:budget=40,queries=6,chunk=20,gate=1", MOST_TOK, true, N_LAYER);
}

TEST(large_dimensions)
{
    run("sparq:budget=40,recent=5,r=16", 1, false, 0);
    run("sparq:budget=40,recent=5,r=16,rank=softmax", 1, false, 0);
    run("sparq:budget=40,recent=5,r=8,columns=off,mean=off", 1, false, 0);
    run("sparq:quoka,budget=40,r=16,chunk=20,gate=1", MOST_TOK, false, 0);
    run("sparq:budget=40,recent=5,r=2,phase=both,chunk=20,gate=1", MOST_TOK, false, 0);
}

TEST(one_layer_chooses_for_others)
{
    run("tidaldecode:budget=40,source=0,reselect=1,sinks=2,recent=3", 1, false, 0);
    run("tidaldecode:budget=40,source=0,heads=max", 1, false, 0);
    run("tidaldecode:budget=40,source=0,rank=softmax,phase=both,chunk=20", MOST_TOK, false, 0);
}

TEST(one_set_for_all_heads)
{
    run("lessismore:budget=40,source=0,sinks=2,recent=3", 1, false, 0);
    run("lessismore:budget=40,source=1,rank=softmax,share=0", 1, false, 0);
    run("lessismore:quoka,budget=40,source=0,chunk=20,gate=1", MOST_TOK, false, 0);
}

/* Bases of single dimensions. */
static void write_bases(char *path)
{
    struct pith_projection shape = {
        .n_layer = N_LAYER, .n_head = N_HEAD, .dim = DIM, .keys = PITH_KEYS_ROTATED, .n_token = 1};
    struct pith_projection *p;
    close(mkstemp(path));
    check(projection_new(&shape, NULL, NULL, &p, &err), &err);
    for (int32_t i = 0; i < N_LAYER * N_HEAD * DIM; i++) {
        p->value[i] = (float)(DIM - i % DIM);
        p->vector[i * DIM + (7 * i + 3) % DIM] = 1.0f;
    }
    check(pith_projection_save(p, path, &err), &err);
    pith_projection_free(p);
}

TEST(few_dimensions)
{
    char path[] = "/tmp/pith-test-XXXXXX", option[256];
    write_bases(path);
    snprintf(option, sizeof(option), "loki:projection=%s,r=16,budget=40,gate=1,rank=softmax", path);
    run(option, 1, false, 0);
    snprintf(option, sizeof(option), "loki:quoka,projection=%s,budget=40,chunk=20,gate=1", path);
    run(option, MOST_TOK, false, 0);
    unlink(path);
}
