/*
 * test_checked.c - the device of tests. A process that takes one of its addresses for a pointer
 * dies. A stream does its work late, by copies of the arguments. So the host may overwrite them at
 * once, and change the tables of lanes. A caller that does not wait sees nothing of the work.
 */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/checked/checked.h"
#include "kv/internal.h"
#include "testing.h"

static struct pi_device *const d = &pi_device_checked;

/* ---- memory ---- */

typedef void act(struct pi_at at);

static void read_byte(struct pi_at at)
{
    volatile const char *p = (const char *)at.at;
    char byte = p[0];
    (void)byte;
}

static void write_byte(struct pi_at at)
{
    volatile char *p = (char *)at.at;
    p[0] = 1;
}

static void copy_bytes(struct pi_at at)
{
    char out[16];
    memcpy(out, (const void *)at.at, sizeof(out));
    __asm__ volatile("" : : "r"(out) : "memory");
}

static void read_after_a_call(struct pi_at at)
{
    char room[64];
    d->download(NULL, at, sizeof(room), room);
    read_byte(at);
}

/* Weights close after the eighth at the latest. */
static void read_after_runs(struct pi_at at)
{
    for (int i = 0; i < 8; i++) {
        checked_enter(CHECKED_ALL);
        checked_leave(CHECKED_ALL);
    }
    read_byte(at);
}

static void write_after_free(struct pi_at at)
{
    d->free(d, at);
    write_byte(at);
}

static bool dies(act *fn, struct pi_at at)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka, and sanitizers, go on or report */
        signal(SIGBUS, SIG_DFL);
        fclose(stderr);
        fn(at);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
#if defined(__SANITIZE_ADDRESS__)
    return WIFSIGNALED(status) || WEXITSTATUS(status) != 0; /* it exits with a report */
#else
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
#endif
}

static void check_deaths(struct pi_at at)
{
    act *const acts[] = {read_byte, write_byte, copy_bytes, read_after_a_call, read_after_runs};
    for (size_t i = 0; i < PI_LEN(acts); i++)
        assert_true(dies(acts[i], at));
}

TEST(who_takes_an_address_for_a_pointer_dies)
{
    struct pi_at a = d->alloc(d, PI_MEM_SCRATCH, 100), b = d->map(d, PI_MEM_KV, 1 << 20);
    float x[64] = {1};
    struct pi_at c = d->pack_vector(d, x, 64);
    check_deaths(a);
    check_deaths(pi_at_add(b, 12345));
    check_deaths(c);
    assert_true(dies(write_after_free, a));
    d->free(d, a);
    d->unmap(d, PI_MEM_KV, b, 1 << 20);
    d->unpack(d, c);
}

/* ---- late ---- */

enum { N = 8 };

struct late {
    struct pi_stream *s;
    struct pi_at x; /* [N][N] */
};

static struct late late_new(void)
{
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = N};
    struct late l = {d->open(d, &shape), d->alloc(d, PI_MEM_SCRATCH, N * N * sizeof(float))};
    assert_non_null(l.s);
    assert_true(pi_at_some(l.x));
    return l;
}

static void late_free(struct late *l)
{
    d->close(l->s);
    d->free(d, l->x);
}

/* The value there without a wait. Only a test may look at it. */
static float seen(struct pi_at x, size_t i)
{
    float value;
    checked_copy_out(pi_at_item(x, i), sizeof(value), &value);
    return value;
}

static float awaited(const struct late *l, size_t i)
{
    float value;
    d->download(l->s, pi_at_item(l->x, i), sizeof(value), &value);
    return value;
}

TEST(an_upload_reads_host_memory_before_it_returns)
{
    struct late l = late_new();
    float host[N] = {1, 2, 3};
    d->upload(l.s, host, sizeof(host), l.x);
    memset(host, 0xff, sizeof(host));
    assert_true(seen(l.x, 1) == 0.0f); /* it has not happened */
    assert_true(awaited(&l, 1) == 2.0f);
    late_free(&l);
}

/* soft_cap of 100 by 1 is 1. */
TEST(rows_wait_and_keep_their_arguments)
{
    struct late l = late_new();
    struct pi_cap_rows cap = {l.x, 1.0f, N};
    float host[N] = {100};
    d->upload(l.s, host, sizeof(host), l.x);
    d->rows(l.s, PI_ROWS_CAP, &cap, 1, 1);
    memset(&cap, 0, sizeof(cap));
    assert_true(seen(l.x, 0) == 0.0f);
    d->wait(l.s);
    assert_true(seen(l.x, 0) == 1.0f);
    late_free(&l);
}

/* A product whose struct of a matrix is gone when it runs: as logits are made. */
TEST(products_keep_their_matrices)
{
    struct late l = late_new();
    float w[PI_GROUP * N] = {3}, in[N] = {5};
    uint8_t packed[PI_GROUP * N * sizeof(float)];
    struct pi_matrix m = {PI_DTYPE_F32, N, N, 1, pi_matmul_group_bytes(PI_DTYPE_F32, N), packed};
    assert_true(m.group_bytes <= sizeof(packed));
    pi_matmul_pack_group(PI_DTYPE_F32, N, w, N, packed);
    struct pi_weight weight = {.type = m.type,
                               .n_row = m.n_row,
                               .n_col = m.n_col,
                               .n_group = m.n_group,
                               .group_bytes = m.group_bytes,
                               .data = d->pack(d, &m, 1)};
    struct pi_at data = weight.data;
    struct pi_product p = {
        .x = l.x, .n_tok = 1, .n = 1, .w = {&weight}, .out = {pi_at_item(l.x, N)}};
    memset(packed, 0, sizeof(packed)); /* the host's packing may go at once */
    d->upload(l.s, in, sizeof(in), l.x);
    d->product(l.s, &p);
    memset(&weight, 0, sizeof(weight));
    memset(&p, 0, sizeof(p));
    assert_true(awaited(&l, N) == 15.0f);
    d->unpack(d, data);
    late_free(&l);
}

TEST(a_call_without_a_stream_comes_after_all_streams)
{
    struct late a = late_new(), b = late_new();
    float one = 1, two = 2, out;
    d->upload(a.s, &one, sizeof(one), a.x);
    d->upload(b.s, &two, sizeof(two), b.x);
    d->download(NULL, a.x, sizeof(out), &out);
    assert_true(out == 1.0f);
    assert_true(seen(b.x, 0) == 2.0f);
    d->upload(a.s, &two, sizeof(two), a.x);
    d->close(a.s); /* what was asked of it still happens */
    assert_true(seen(a.x, 0) == 2.0f);
    d->free(d, a.x);
    late_free(&b);
}

/* More than a queue has room for, in order all the same. */
TEST(a_full_queue_runs_in_order)
{
    struct late l = late_new();
    size_t big = 3 << 20;
    struct pi_at at = d->alloc(d, PI_MEM_SCRATCH, 3 * big);
    uint8_t *host = calloc(3, big);
    float last = 0;
    for (int i = 0; i < 5; i++) {
        float x = (float)i;
        memset(host, i, 3 * big);
        d->upload(l.s, host, i % 2 == 0 ? big : 3 * big, at); /* one that never fits, too */
        d->upload(l.s, &x, sizeof(x), l.x);
    }
    d->download(l.s, l.x, sizeof(last), &last);
    assert_true(last == 4.0f);
    d->download(l.s, at, 3 * big, host);
    assert_int_equal(host[0], 4);
    assert_int_equal(host[big], 3);
    free(host);
    d->free(d, at);
    late_free(&l);
}

/* ---- lanes ---- */

enum { N_HEAD = 2, DIM = 16, N_TOKEN = 40 };

struct attend_ctx {
    const struct kv_seq *seq;
    struct pi_at q, out;
    const int32_t *slots;
    int32_t n_slot;
};

/* One token attends in each head's lane; head 1 reads listed entries alone. */
static bool next_job(void *user, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    const struct attend_ctx *c = user;
    (void)thread;
    if (turn > 0)
        return false;
    *out = (struct kv_attend_job){.seq = c->seq,
                                  .head = (int32_t)i,
                                  .n_tok = 1,
                                  .n_group = 1,
                                  .pos0 = N_TOKEN - 1,
                                  .q_at = pi_at_item(c->q, (size_t)i * DIM),
                                  .q_stride = DIM,
                                  .scale = 1,
                                  .out_at = pi_at_item(c->out, (size_t)i * DIM),
                                  .out_stride = DIM};
    if (i == 1) {
        out->slots = c->slots;
        out->n_slot = c->n_slot;
    }
    return true;
}

/* Appends and attends on a stream, and overwrites all its arguments before it waits. */
static void append_and_attend(struct pi_device *on, float *out)
{
    struct kv_geometry g = {.n_layer = 1,
                            .n_head = N_HEAD,
                            .dim_k = DIM,
                            .dim_v = DIM,
                            .page_len = 16,
                            .type_k = KV_TYPE_F32,
                            .type_v = KV_TYPE_F32,
                            .index = KV_INDEX_ROWS,
                            .device = on};
    struct kv_cache *cache;
    struct kv_seq *seq;
    const struct pi_stream_shape shape = {
        .n_thread = 1, .widest = DIM, .attend_size = kv_attend_scratch_bytes(&g, 1)};
    size_t n_row = (size_t)N_TOKEN * N_HEAD * DIM, size = n_row * sizeof(float);
    float *rows = malloc(size);
    uint64_t rng = 3;
    for (size_t i = 0; i < n_row; i++)
        rows[i] = rng_float(&rng);
    assert_int_equal(kv_cache_create(&g, 1 << 20, &cache, &err), PITH_OK);
    assert_int_equal(kv_seq_create(cache, &seq, &err), PITH_OK);
    assert_int_equal(kv_seq_reserve(seq, N_TOKEN, &err), PITH_OK);
    struct pi_stream *s = on->open(on, &shape);
    struct pi_at kv = on->alloc(on, PI_MEM_SCRATCH, size);
    struct pi_at to = on->alloc(on, PI_MEM_SCRATCH, N_HEAD * DIM * sizeof(float));
    on->upload(s, rows, size, kv);
    struct kv_append jobs[N_HEAD];
    for (int32_t h = 0; h < N_HEAD; h++)
        jobs[h] = (struct kv_append){.seq = seq,
                                     .head = h,
                                     .n = N_TOKEN,
                                     .k = pi_at_item(kv, (size_t)h * DIM),
                                     .k_stride = N_HEAD * DIM,
                                     .v = pi_at_item(kv, (size_t)h * DIM),
                                     .v_stride = N_HEAD * DIM};
    kv_append_place(jobs, N_HEAD);
    on->append(s, jobs, N_HEAD);
    int32_t slots[] = {1, 17, 39};
    struct attend_ctx ctx = {seq, kv, to, slots, 3};
    const struct kv_attend_list list = {.ctx = &ctx, .n = N_HEAD, .work = 1, .job = next_job};
    on->attend(s, &list);
    memset(jobs, 0, sizeof(jobs));
    memset(slots, 0, sizeof(slots));
    memset(&ctx, 0, sizeof(ctx));
    memset(rows, 0, size);
    kv_seq_truncate(seq, 2); /* tables and positions change; pages do not */
    assert_int_equal(kv_seq_reserve(seq, 5, &err), PITH_OK);
    void *room = malloc(N_HEAD * DIM * sizeof(float));
    memcpy(out, on->download(s, to, N_HEAD * DIM * sizeof(float), room),
           N_HEAD * DIM * sizeof(float));
    free(room);
    free(rows);
    on->close(s);
    on->free(on, kv);
    on->free(on, to);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

TEST(lanes_are_read_as_they_were_when_it_was_asked)
{
    float out[2][N_HEAD * DIM];
    append_and_attend(&pi_device_cpu, out[0]);
    append_and_attend(d, out[1]);
    assert_memory_equal(out[0], out[1], sizeof(out[0]));
    assert_true(out[0][0] != 0.0f && out[0][DIM] != 0.0f);
}
