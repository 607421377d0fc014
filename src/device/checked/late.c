/*
 * late.c - operations on streams that wait for their turn. Each has a struct of arguments, a copy
 * of the memory that these point to, and the processor's operation. Data of a model (ropes, rows of
 * its file) is not copied, because it stays.
 */
#include "device/checked/checked.h"
#include "device/cpu/cpu.h"

/* ---- host memory ---- */

struct upload {
    const void *host;
    size_t size;
    struct pi_at to;
};

static bool upload_copy(struct checked_queue *q, void *args)
{
    struct upload *a = args;
    a->host = checked_keep(q, a->host, a->size);
    return a->host != NULL;
}

static void upload_run(struct pi_stream *inner, const void *args)
{
    const struct upload *a = args;
    (void)inner;
    memcpy(pi_cpu_ptr(a->to), a->host, a->size);
}

static const struct checked_kind upload = {sizeof(struct upload), upload_copy, upload_run};

void checked_upload(struct pi_stream *s, const void *host, size_t size, struct pi_at to)
{
    const struct upload args = {host, size, to};
    if (s != NULL) {
        checked_ask(s, &upload, &args);
        return;
    }
    checked_wait(NULL);
    checked_copy_in(host, size, to);
}

void *checked_download(struct pi_stream *s, struct pi_at from, size_t size, void *room)
{
    checked_wait(s);
    checked_copy_out(from, size, room);
    return room;
}

/* ---- rows ---- */

static const size_t body_size[PI_ROWS_N_BODY] = {
    [PI_ROWS_EMBED] = sizeof(struct pi_embed_rows),
    [PI_ROWS_BETWEEN] = sizeof(struct pi_between_rows),
    [PI_ROWS_PICK] = sizeof(struct pi_pick_rows),
    [PI_ROWS_CAP] = sizeof(struct pi_cap_rows),
    [PI_ROWS_QUANTIZE] = sizeof(struct pi_quantize_rows),
    [PI_ROWS_QKV] = sizeof(struct pi_qkv_rows),
    [PI_ROWS_CENTRE] = sizeof(struct pi_centre_rows),
    [PI_ROWS_OUT] = sizeof(struct pi_out_rows),
    [PI_ROWS_GATE] = sizeof(struct pi_gate_rows),
    [PI_ROWS_MOE_CHOOSE] = sizeof(struct pi_moe_choose_rows),
    [PI_ROWS_MOE_GATHER] = sizeof(struct pi_moe_gather_rows),
    [PI_ROWS_MOE_HIDDEN] = sizeof(struct pi_moe_hidden_rows),
    [PI_ROWS_MOE_SUM] = sizeof(struct pi_moe_sum_rows),
    [PI_ROWS_DELTA_IN] = sizeof(struct pi_delta_rows),
    [PI_ROWS_DELTA_UNIT] = sizeof(struct pi_delta_rows),
    [PI_ROWS_DELTA_OUT] = sizeof(struct pi_delta_rows),
    [PI_ROWS_LATENT_LOW] = sizeof(struct pi_latent_rows),
    [PI_ROWS_LATENT_IN] = sizeof(struct pi_latent_rows),
    [PI_ROWS_LATENT_QUERY] = sizeof(struct pi_latent_rows),
    [PI_ROWS_LATENT_GATHER] = sizeof(struct pi_latent_rows),
};

struct rows {
    enum pi_rows_body body;
    const void *args;
    int64_t n_row, work;
};

static bool rows_copy(struct checked_queue *q, void *args)
{
    struct rows *a = args;
    a->args = checked_keep(q, a->args, body_size[a->body]);
    return a->args != NULL;
}

static void rows_run(struct pi_stream *inner, const void *args)
{
    const struct rows *a = args;
    cpu_rows(inner, a->body, a->args, a->n_row, a->work);
}

static const struct checked_kind rows = {sizeof(struct rows), rows_copy, rows_run};

void checked_rows(struct pi_stream *s, enum pi_rows_body body, const void *args, int64_t n_row,
                  int64_t work)
{
    const struct rows a = {body, args, n_row, work};
    assert(body_size[body] > 0);
    checked_ask(s, &rows, &a);
}

/* ---- products ---- */

static bool weights_copy(struct checked_queue *q, const struct pi_weight **w, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        w[i] = checked_keep(q, w[i], sizeof(*w[i]));
        if (w[i] == NULL)
            return false;
    }
    return true;
}

static bool product_copy(struct checked_queue *q, void *args)
{
    struct pi_product *p = args;
    return weights_copy(q, p->w, p->n);
}

static void product_run(struct pi_stream *inner, const void *args)
{
    cpu_product(inner, args);
}

static bool heads_copy(struct checked_queue *q, void *args)
{
    struct pi_product_heads *p = args;
    return weights_copy(q, &p->w, 1);
}

static void heads_run(struct pi_stream *inner, const void *args)
{
    cpu_product_heads(inner, args);
}

static bool experts_copy(struct checked_queue *q, void *args)
{
    struct pi_product_experts *p = args;
    return weights_copy(q, p->w, p->n);
}

static void experts_run(struct pi_stream *inner, const void *args)
{
    cpu_product_experts(inner, args);
}

static const struct checked_kind product = {sizeof(struct pi_product), product_copy, product_run};
static const struct checked_kind heads = {sizeof(struct pi_product_heads), heads_copy, heads_run};
static const struct checked_kind experts = {sizeof(struct pi_product_experts), experts_copy,
                                            experts_run};

void checked_product(struct pi_stream *s, const struct pi_product *p)
{
    checked_ask(s, &product, p);
}

void checked_product_heads(struct pi_stream *s, const struct pi_product_heads *p)
{
    checked_ask(s, &heads, p);
}

void checked_product_experts(struct pi_stream *s, const struct pi_product_experts *p)
{
    checked_ask(s, &experts, p);
}

/* ---- experts ---- */

struct sort {
    struct pi_moe_rule rule;
    struct pi_moe_places places;
    int32_t n_tok;
};

static void sort_run(struct pi_stream *inner, const void *args)
{
    const struct sort *a = args;
    cpu_moe_sort(inner, &a->rule, &a->places, a->n_tok);
}

static const struct checked_kind sort = {sizeof(struct sort), NULL, sort_run};

void checked_moe_sort(struct pi_stream *s, const struct pi_moe_rule *rule,
                      const struct pi_moe_places *places, int32_t n_tok)
{
    const struct sort args = {*rule, *places, n_tok};
    checked_ask(s, &sort, &args);
}

/* ---- delta nets ---- */

struct delta {
    struct pi_delta_rows d;
    struct pi_at w;
    const struct pi_delta_item *items; /* [n] */
    int32_t n;
};

static bool delta_copy(struct checked_queue *q, void *args)
{
    struct delta *a = args;
    a->items = checked_keep(q, a->items, (size_t)a->n * sizeof(*a->items));
    return a->items != NULL;
}

static void conv_run(struct pi_stream *inner, const void *args)
{
    const struct delta *a = args;
    cpu_delta_conv(inner, &a->d, a->w, a->items, a->n);
}

static void turn_run(struct pi_stream *inner, const void *args)
{
    const struct delta *a = args;
    cpu_delta_turn(inner, &a->d, a->items, a->n);
}

static const struct checked_kind conv = {sizeof(struct delta), delta_copy, conv_run};
static const struct checked_kind turn = {sizeof(struct delta), delta_copy, turn_run};

void checked_delta_conv(struct pi_stream *s, const struct pi_delta_rows *d, struct pi_at w,
                        const struct pi_delta_item *items, int32_t n)
{
    const struct delta args = {*d, w, items, n};
    checked_ask(s, &conv, &args);
}

void checked_delta_turn(struct pi_stream *s, const struct pi_delta_rows *d,
                        const struct pi_delta_item *items, int32_t n)
{
    const struct delta args = {*d, {0}, items, n};
    checked_ask(s, &turn, &args);
}
