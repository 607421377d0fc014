/*
 * attention_settings.c - setting the watch, reader, writer and recaller: the functions, and the
 * memory that their part of attention needs. attention_policies.c calls them.
 */
#include "model/pass.h"

/* ---- the watch ---- */

/* Rows of weights of one attention call. There are enough of them that a decoded page is used
   several times. They are few enough that they stay in a cache beside their inputs. */
#define WATCH_ROWS 32

/* Room of another watch is for its threads. */
static void use_threads(struct pi_pass *pass, int32_t n_thread)
{
    struct pi_pass_watching *w = &pass->watching;
    n_thread = (int32_t)pi_min(n_thread, pass->plan.n_thread);
    if (n_thread != w->n_thread) {
        pi_mem_free(w->rows);
        w->rows = NULL;
        w->stride = 0;
    }
    w->n_thread = n_thread;
}

/* Room for a watch, and the size of its tiles. */
static pith_status make_watch(struct pi_pass *pass, const struct pi_pass_watch *watch,
                              pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    bool ok = true;
    int32_t tile = (int32_t)pi_max(1, WATCH_ROWS / (hp->n_head / hp->n_head_kv));
    pass->watching.tile = (int32_t)pi_min(tile, pass->plan.tile);
    if (watch != NULL && pass->watching.items == NULL) {
        struct pi_pass_watching w = pass->watching;
        w.items = pi_pass_alloc(pass->plan.max_tok, 1, sizeof(*w.items), &ok);
        w.lanes = pi_pass_alloc(pass->plan.max_tok, (size_t)hp->n_head_kv, sizeof(*w.lanes), &ok);
        w.taps = pi_pass_alloc(pass->plan.n_thread, 1, sizeof(*w.taps), &ok);
        if (!pass->device->in_host)
            w.out = pi_pass_alloc(pass->plan.n_thread * w.tile, (size_t)(hp->n_head * hp->dim_v),
                                  sizeof(*w.out), &ok);
        if (!ok) {
            pi_mem_free(w.items);
            pi_mem_free(w.lanes);
            pi_mem_free(w.taps);
            pi_mem_free(w.out);
            return pi_fail(err, PITH_NOMEM, "no memory for what is watched of %d tokens",
                           pass->plan.max_tok);
        }
        pass->watching = w;
    }
    if (watch != NULL)
        use_threads(pass, watch->n_thread > 0 ? watch->n_thread : pass->plan.n_thread);
    return PITH_OK;
}

pith_status pi_pass_set_watch(struct pi_pass *pass, const struct pi_pass_watch *watch,
                              pith_error *err)
{
    PI_EACH_STAGE(s, pass)
    PI_TRY(make_watch(s, watch, err));
    PI_EACH_STAGE(s, pass)
    s->watching.fn = watch != NULL ? *watch : (struct pi_pass_watch){0};
    return PITH_OK;
}

/* Whole pages, and more than asked: a lane may grow with every pass. */
static int64_t watch_stride(int64_t longest)
{
    return pi_ceil_div(longest + longest / 8, 64) * 64;
}

size_t pi_pass_watch_bytes(const struct pi_hparams *hp, int32_t n_thread, int64_t longest)
{
    int32_t n_group = hp->n_head / hp->n_head_kv;
    size_t n_row = (size_t)pi_max(1, WATCH_ROWS / n_group) * (size_t)n_group;
    return (size_t)n_thread * pi_pass_watch_len(n_row, (size_t)watch_stride(longest)) *
           sizeof(float);
}

static pith_status reserve_watch(struct pi_pass *pass, int64_t longest, pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_row = pass->watching.tile * (hp->n_head / hp->n_head_kv);
    if (longest <= (int64_t)pass->watching.stride)
        return PITH_OK;
    int64_t stride = watch_stride(longest);
    size_t len;
    float *rows = NULL;
    if (pi_mul_size((size_t)n_row + 1, (size_t)stride * 2 + 16, &len) &&
        pi_mul_size(len, sizeof(*rows), &len))
        rows = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)pass->watching.n_thread,
                              pi_pass_watch_len((size_t)n_row, (size_t)stride) * sizeof(*rows));
    if (rows == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for attention weights over %lld entries",
                       (long long)longest);
    pi_mem_free(pass->watching.rows);
    pass->watching.rows = rows;
    pass->watching.stride = (size_t)stride;
    return PITH_OK;
}

pith_status pi_pass_reserve_watch(struct pi_pass *pass, int64_t longest, pith_error *err)
{
    PI_EACH_STAGE(s, pass)
    PI_TRY(reserve_watch(s, longest, err));
    return PITH_OK;
}

size_t pi_pass_watched_bytes(const struct pi_pass *pass)
{
    size_t bytes = 0;
    for (const struct pi_pass *s = pass; s != NULL; s = s->next)
        bytes += pi_mem_size(s->watching.rows);
    return bytes;
}

/* ---- the reader ---- */

/* A stream with room for a reader's chunks. */
static pith_status make_reader(struct pi_pass *pass, const struct pi_pass_reader *reader,
                               pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    int32_t most = (int32_t)pi_max(pass->plan.tile, PI_PASS_PART_ROWS / n_group);
    most = (int32_t)pi_max(pass->plan.tile, pi_min(most, reader->chunk));
    size_t size = kv_attend_scratch_bytes(&pass->plan.geometry, most * n_group);
    if (size > pass->plan.attend_size && pi_pass_open_stream(pass, size, NULL) != PITH_OK)
        return pi_fail(err, PITH_NOMEM, "no memory for the attention of chunks of %d tokens",
                       reader->chunk);
    pass->reading.part_most = most;
    return PITH_OK;
}

pith_status pi_pass_set_reader(struct pi_pass *pass, const struct pi_pass_reader *reader,
                               pith_error *err)
{
    for (struct pi_pass *s = reader != NULL ? pass : NULL; s != NULL; s = s->next)
        PI_TRY(make_reader(s, reader, err));
    PI_EACH_STAGE(s, pass)
    s->reading.fn = reader != NULL ? *reader : (struct pi_pass_reader){0};
    return PITH_OK;
}

static pith_status reserve_read(struct pi_pass *pass, int32_t n_chunk, int64_t cap, pith_error *err)
{
    int32_t n_head = pass->model->hp.n_head_kv;
    size_t n_slot;
    bool ok = true;
    if (n_chunk <= pass->reading.cap_chunk && cap <= pass->reading.cap_slot)
        return PITH_OK;
    /* More than asked: of a share of the lane it grows with every pass. */
    n_chunk = (int32_t)pi_max(n_chunk, pass->reading.cap_chunk);
    cap = cap <= pass->reading.cap_slot ? pass->reading.cap_slot : cap + cap / 2;
    if (cap > INT32_MAX || !pi_mul_size((size_t)cap, (size_t)n_head, &n_slot))
        return pi_fail(err, PITH_NOMEM, "no memory for reading %lld entries", (long long)cap);
    struct pi_pass_chunk *chunk = pi_pass_alloc(n_chunk, 1, sizeof(*chunk), &ok);
    int32_t *slots = pi_pass_alloc(n_chunk, n_slot, sizeof(*slots), &ok);
    int32_t *n = pi_pass_alloc(n_chunk, (size_t)n_head, sizeof(*n), &ok);
    struct kv_attend_chosen *chosen = pi_pass_alloc(n_chunk, (size_t)n_head, sizeof(*chosen), &ok);
    void *const old[] = {pass->reading.chunk, pass->reading.slots, pass->reading.n_slot,
                         pass->reading.chosen},
                *const fresh[] = {chunk, slots, n, chosen};
    for (size_t i = 0; i < PI_LEN(old); i++)
        pi_mem_free(ok ? old[i] : fresh[i]);
    if (!ok)
        return pi_fail(err, PITH_NOMEM, "no memory for %d chunks that read %lld entries each",
                       n_chunk, (long long)cap);
    pass->reading.chunk = chunk;
    pass->reading.slots = slots;
    pass->reading.n_slot = n;
    pass->reading.chosen = chosen;
    pass->reading.cap_chunk = n_chunk;
    pass->reading.cap_slot = cap;
    return PITH_OK;
}

pith_status pi_pass_reserve_read(struct pi_pass *pass, int32_t n_chunk, int64_t cap,
                                 pith_error *err)
{
    PI_EACH_STAGE(s, pass)
    PI_TRY(reserve_read(s, n_chunk, cap, err));
    return PITH_OK;
}

/* ---- the writer ---- */

/* Room for the rows that a writer sees. */
static pith_status make_writer(struct pi_pass *pass, pith_error *err)
{
    size_t n_head = (size_t)pass->model->hp.n_head_kv, dim = (size_t)pass->model->hp.dim_k;
    bool ok = true;
    if (pi_at_some(pass->rows.k_pre))
        return PITH_OK;
    struct pi_at rows = pi_pass_place(pass, pass->plan.max_tok, n_head * dim, sizeof(float), &ok);
    struct pi_pass_written *lanes = pi_pass_alloc(pass->plan.max_tok, n_head, sizeof(*lanes), &ok);
    if (!ok) {
        pass->device->free(pass->device, rows);
        pi_mem_free(lanes);
        return pi_fail(err, PITH_NOMEM, "no memory for the keys of %d tokens", pass->plan.max_tok);
    }
    pass->rows.k_pre = rows;
    pass->writer.lanes = lanes;
    return PITH_OK;
}

static void free_writer(struct pi_pass *pass)
{
    pass->device->free(pass->device, pass->rows.k_pre);
    pi_mem_free(pass->writer.lanes);
    pass->rows.k_pre = (struct pi_at){0};
    pass->writer.lanes = NULL;
}

pith_status pi_pass_set_writer(struct pi_pass *pass, const struct pi_pass_writer *writer,
                               pith_error *err)
{
    pith_status status = PITH_OK;
    PI_EACH_STAGE(s, pass)
    status = writer != NULL && status == PITH_OK ? make_writer(s, err) : status;
    if (status == PITH_OK)
        PI_EACH_STAGE(s, pass)
    s->writer.fn = writer != NULL ? *writer : (struct pi_pass_writer){0};
    PI_EACH_STAGE(s, pass)
    if (s->writer.fn.written == NULL)
        free_writer(s);
    return status;
}

/* ---- the recaller ---- */

void pi_pass_set_recaller(struct pi_pass *pass, const struct pi_pass_recaller *recaller)
{
    PI_EACH_STAGE(s, pass)
    s->recalling.fn = recaller != NULL ? *recaller : (struct pi_pass_recaller){0};
}
