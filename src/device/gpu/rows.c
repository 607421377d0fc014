/*
 * rows.c - bodies of rows, the experts' order and the delta net. device.h's structs become
 * args.h's. The host copies the rows of embeddings from the model's file.
 */
#include "device/gpu/host.h"
#include "tensor/dtype.h"

enum { SUM_SMEM = 64 * sizeof(float), WIDE = 1024 /* floats of a row that a block takes */ };

/* ---- the stream ---- */

/* A rotation's frequencies on the device; 0: no memory. */
gpu_at gpu_freq(struct gpu_device *d, const struct pi_rope *rope)
{
    size_t size = (size_t)rope->n_pair * sizeof(double);
    for (int i = 0; i < GPU_N_ROPE; i++)
        if (d->rope[i].n_pair == rope->n_pair && memcmp(d->rope[i].copy, rope->freq, size) == 0)
            return d->rope[i].freq;
    struct gpu_rope *to = &d->rope[d->next_rope++ % GPU_N_ROPE];
    if (to->freq != 0)
        d->driver->free(d->driver, to->freq, (size_t)to->n_pair * sizeof(double));
    pi_mem_free(to->copy);
    *to = (struct gpu_rope){d->driver->alloc(d->driver, size), pi_mem_alloc(PI_MEM_DEVICE, size),
                            rope->n_pair};
    if (to->freq == 0 || to->copy == NULL) {
        d->driver->failure = "no memory for a rotation's frequencies";
        to->n_pair = 0;
        return 0;
    }
    memcpy(to->copy, rope->freq, size);
    d->driver->put(d->driver, to->freq, to->copy, size);
    return to->freq;
}

/* Rows of the file go up as a list. */
static void embed(struct gpu_device *d, const struct pi_embed_rows *a, int64_t n_row)
{
    const struct pi_dtype_traits *traits = pi_dtype_find((uint32_t)a->embd.type);
    size_t row = pi_dtype_row_bytes(traits, a->embd.n_col);
    void *list;
    struct gpu_embed_args args = {.pos = a->pos.at,
                                  .x = a->x.at,
                                  .type = a->embd.type == PI_DTYPE_BF16
                                              ? GPU_ROW_BF16
                                              : (int32_t)gpu_weight_type_of(a->embd.type),
                                  .block_len = traits->block_len,
                                  .block_bytes = traits->block_bytes,
                                  .row_bytes = (int32_t)row,
                                  .n = a->embd.n_col,
                                  .scale = a->scale};
    for (int i = 0; i < 2 && a->rope[i] != NULL; i++) {
        args.freq[i] = gpu_freq(d, a->rope[i]);
        args.cs[i] = a->cs[i].at;
        args.n_pair[i] = args.freq[i] != 0 ? a->rope[i]->n_pair : 0;
        args.magnitude[i] = a->rope[i]->magnitude;
    }
    if (!pi_at_some(a->x)) {
        args.n = 0;
    } else {
        args.rows = gpu_list(d, (size_t)n_row * row, &list);
        if (args.rows == 0)
            return;
        for (int64_t t = 0; t < n_row; t++)
            memcpy((uint8_t *)list + (size_t)t * row, a->file + (size_t)a->tokens[t] * row, row);
        gpu_send(d, args.rows, (size_t)n_row * row);
    }
    gpu_run(d, GPU_KERNEL_embed, n_row, 1, 1, 0, &args);
}

static void between(struct gpu_device *d, const struct pi_between_rows *a, int64_t n_row)
{
    struct gpu_between_args args = {.x = a->x.at,
                                    .h = a->h.at,
                                    .bias = a->bias.at,
                                    .post_norm = a->post_norm.at,
                                    .norm = a->norm.at,
                                    .out = a->h.at,
                                    .leave = a->leave,
                                    .n = a->n,
                                    .eps = a->eps};
    if (pi_at_some(a->norm))
        args.packed = gpu_packs(d, a->h.at, n_row, a->n);
    gpu_run(d, GPU_KERNEL_between, n_row, 1, 1, SUM_SMEM, &args);
}

static void pick(struct gpu_device *d, const struct pi_pick_rows *a, int64_t n_row)
{
    const struct gpu_between_args args = {.x = a->x.at,
                                          .h = a->out.at,
                                          .norm = a->norm.at,
                                          .index = a->index.at,
                                          .out = a->out.at,
                                          .packed = gpu_packs(d, a->out.at, n_row, a->n),
                                          .n = a->n,
                                          .eps = a->eps};
    gpu_run(d, GPU_KERNEL_between, n_row, 1, 1, SUM_SMEM, &args);
}

/* ---- attention ---- */

static void qkv(struct gpu_device *d, const struct pi_qkv_rows *a, int64_t n_row)
{
    const struct gpu_qkv_args args = {
        .q = a->q.at,
        .k = a->k.at,
        .v = a->v.at,
        .q_gate = a->q_gate.at,
        .q_pre = a->q_pre.at,
        .k_pre = a->k_pre.at,
        .bq = a->bq.at,
        .bk = a->bk.at,
        .bv = a->bv.at,
        .q_norm = a->q_norm.at,
        .k_norm = a->k_norm.at,
        .cs = a->rope != NULL ? a->cs.at : 0,
        .pos = a->pos.at,
        .n_pair = a->rope != NULL ? a->rope->n_pair : 0,
        .adjacent = a->rope != NULL && a->rope->adjacent,
        .temp_len = a->temp.len,
        .n_head = a->n_head,
        .n_head_kv = a->n_head_kv,
        .dim_k = a->dim_k,
        .n_v = a->n_v,
        .temp_scale = a->temp.scale,
        .eps = a->eps,
    };
    int64_t n_block = pi_ceil_div(a->n_head + a->n_head_kv, 4);
    gpu_run(d, GPU_KERNEL_qkv, n_block + (pi_at_some(a->bv) ? pi_ceil_div(a->n_v, 512) : 0), n_row,
            1, 0, &args);
}

/* ---- experts ---- */

static struct gpu_moe_args places_of(const struct pi_moe_places *p)
{
    return (struct gpu_moe_args){.weight = p->weight.at,
                                 .chosen = p->chosen.at,
                                 .row = p->row.at,
                                 .token = p->token.at,
                                 .first = p->first.at,
                                 .busy = p->busy.at,
                                 .n_busy = p->n_busy.at};
}

static void moe_choose(struct gpu_device *d, const struct pi_moe_choose_rows *a, int64_t n_row)
{
    const struct pi_moe_rule *rule = &a->rule;
    struct gpu_moe_args args = places_of(&a->places);
    args.logit = a->logit.at;
    args.rank = a->rank.at;
    args.b_router = a->b_router.at;
    args.b_choice = a->b_choice.at;
    args.h = a->h.at;
    args.shared_gate = a->shared_gate.at;
    args.shared_weight = a->shared_weight.at;
    args.n_expert = rule->n_expert;
    args.n_used = rule->n_used;
    args.n_group = rule->n_group;
    args.n_group_used = rule->n_group_used;
    args.gating = (int32_t)rule->gating;
    args.norm = rule->norm;
    args.scale = rule->scale;
    args.n = a->n_embd;
    gpu_run(d, GPU_KERNEL_moe_choose, n_row, 1, 1, SUM_SMEM, &args);
}

static void moe_gather(struct gpu_device *d, const struct pi_moe_gather_rows *a, int64_t n_row)
{
    struct gpu_moe_args args = places_of(&a->places);
    args.h = a->h.at;
    args.x = a->x.at;
    args.n = a->n;
    gpu_run(d, GPU_KERNEL_moe_gather, n_row, 1, 1, 0, &args);
}

static void moe_hidden(struct gpu_device *d, const struct pi_moe_hidden_rows *a, int64_t n_row)
{
    struct gpu_moe_args args = places_of(&a->places);
    args.gate = a->gate.at;
    args.up = a->up.at;
    args.b_gate = a->b_gate.at;
    args.b_up = a->b_up.at;
    args.fn = a->fn == PI_MOE_OAI ? PI_GATE_OAI : PI_GATE_SILU;
    args.n = a->n;
    gpu_run(d, GPU_KERNEL_moe_hidden, n_row, 1, 1, 0, &args);
}

static void moe_sum(struct gpu_device *d, const struct pi_moe_sum_rows *a, int64_t n_row)
{
    struct gpu_moe_args args = places_of(&a->places);
    args.x = a->x.at;
    args.h = a->h.at;
    args.b_down = a->b_down.at;
    args.shared = a->shared;
    args.shared_weight = a->shared_weight.at;
    args.n = a->n;
    args.n_used = a->n_used;
    gpu_run(d, GPU_KERNEL_moe_sum, n_row, 1, 1, 0, &args);
}

void gpu_moe_sort(struct pi_stream *s, const struct pi_moe_rule *rule,
                  const struct pi_moe_places *places, int32_t n_tok)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_moe_args args = places_of(places);
    args.padded = d->padded;
    args.n_expert = rule->n_expert;
    args.n_used = rule->n_used;
    args.n_tok = n_tok;
    gpu_enter_pass(d);
    gpu_run(d, GPU_KERNEL_moe_sort, 1, 1, 1, 0, &args);
    gpu_leave(d);
}

/* ---- gated delta nets ---- */

static struct gpu_delta_args delta_args(const struct pi_delta_rows *a)
{
    const struct pi_delta_parts *p = &a->parts;
    return (struct gpu_delta_args){.u = p->u.at,
                                   .z = p->z.at,
                                   .c = p->c.at,
                                   .beta = p->beta.at,
                                   .decay = p->decay.at,
                                   .beta_alpha = p->beta_alpha.at,
                                   .kq = p->kq.at,
                                   .dt = a->dt.at,
                                   .a = a->a.at,
                                   .norm = a->norm.at,
                                   .n_key = a->shape.n_key,
                                   .n_value = a->shape.n_value,
                                   .dim = a->shape.dim,
                                   .n_conv = a->shape.n_conv,
                                   .tiled = a->shape.tiled,
                                   .mixed = a->mixed,
                                   .mixed_gates = a->mixed_gates,
                                   .eps = a->eps};
}

/* Items to the device; 0: no memory. */
static gpu_at put_items(struct gpu_device *d, const struct pi_delta_item *items, int32_t n)
{
    size_t size = (size_t)n * sizeof(struct gpu_delta_item);
    void *host;
    gpu_at at = gpu_list(d, size, &host);
    if (at == 0)
        return 0;
    struct gpu_delta_item *to = host;
    for (int32_t i = 0; i < n; i++)
        to[i] = (struct gpu_delta_item){items[i].past.at, items[i].matrix.at, items[i].row0,
                                        items[i].n_tok};
    gpu_send(d, at, size);
    return at;
}

static int64_t mix_of(const struct pi_delta_shape *s)
{
    return (int64_t)s->dim * (2 * (int64_t)s->n_key + s->n_value);
}

void gpu_delta_conv(struct pi_stream *s, const struct pi_delta_rows *rows, struct pi_at w,
                    const struct pi_delta_item *items, int32_t n)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_delta_args args = delta_args(rows);
    gpu_enter_pass(d);
    args.w = w.at;
    args.items = put_items(d, items, n);
    gpu_run(d, GPU_KERNEL_delta_conv, pi_ceil_div(mix_of(&rows->shape), 128), n, 1, 0, &args);
    gpu_leave(d);
}

void gpu_delta_turn(struct pi_stream *s, const struct pi_delta_rows *rows,
                    const struct pi_delta_item *items, int32_t n)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_delta_args args = delta_args(rows);
    gpu_enter_pass(d);
    args.items = put_items(d, items, n);
    gpu_run(d, GPU_KERNEL_delta_turn, pi_ceil_div(rows->shape.dim, 64), rows->shape.n_value, n, 0,
            &args);
    gpu_leave(d);
}

/* ---- latent attention ---- */

static struct gpu_latent_args latent_args(const struct pi_latent_rows *a)
{
    return (struct gpu_latent_args){.low = a->low.at,
                                    .query_a_norm = a->query_a_norm.at,
                                    .raw = a->raw.at,
                                    .latent_norm = a->latent_norm.at,
                                    .k = a->k.at,
                                    .v = a->v.at,
                                    .head = a->head.at,
                                    .att = a->att.at,
                                    .q = a->q.at,
                                    .q_pre = a->q_pre.at,
                                    .k_pre = a->k_pre.at,
                                    .cs = a->cs.at,
                                    .pos = a->pos.at,
                                    .wants_v = a->wants_v,
                                    .n_pair = a->rope->n_pair,
                                    .adjacent = a->rope->adjacent,
                                    .temp_len = a->temp.len,
                                    .n_tok = a->n_tok,
                                    .n_head = a->n_head,
                                    .n_query = a->n_query,
                                    .dim_key = a->dim_key,
                                    .n_rot = a->n_rot,
                                    .dim_k = a->dim_k,
                                    .dim_v = a->dim_v,
                                    .temp_scale = a->temp.scale,
                                    .eps = a->eps};
}

/* ---- the table's ---- */

static void plain_rows(struct gpu_device *d, enum pi_rows_body body, const void *args, int64_t n)
{
    if (body == PI_ROWS_CAP) {
        const struct pi_cap_rows *a = args;
        const struct gpu_cap_args to = {a->x.at, a->n, a->cap};
        gpu_run(d, GPU_KERNEL_cap, pi_ceil_div(a->n, WIDE), n, 1, 0, &to);
    } else if (body == PI_ROWS_CENTRE) {
        const struct pi_centre_rows *a = args;
        const struct gpu_centre_args to = {a->k.at, a->mean.at, a->n};
        gpu_run(d, GPU_KERNEL_centre, n, 1, 1, 0, &to);
    } else if (body == PI_ROWS_OUT) {
        const struct pi_out_rows *a = args;
        const struct gpu_out_args to = {a->x.at, a->q_gate.at, gpu_packs(d, a->x.at, n, a->n),
                                        a->n,    a->n_head,    a->dim};
        gpu_run(d, GPU_KERNEL_out_gate, n, 1, 1, SUM_SMEM, &to);
    } else if (body == PI_ROWS_GATE) {
        const struct pi_gate_rows *a = args;
        const struct gpu_gate_args to = {a->gate.at, a->up.at, gpu_packs(d, a->gate.at, n, a->n),
                                         (int32_t)a->fn, a->n};
        gpu_run(d, GPU_KERNEL_gate, n, 1, 1, SUM_SMEM, &to);
    }
}

static void delta_rows(struct gpu_device *d, enum pi_rows_body body, const struct pi_delta_rows *a,
                       int64_t n)
{
    const struct gpu_delta_args to = delta_args(a);
    if (body == PI_ROWS_DELTA_IN)
        gpu_run(d, GPU_KERNEL_delta_in, n, 1, 1, 0, &to);
    else if (body == PI_ROWS_DELTA_UNIT)
        gpu_run(d, GPU_KERNEL_delta_unit, pi_ceil_div(to.n_key, 4), n, 1, 0, &to);
    else
        gpu_run(d, GPU_KERNEL_delta_out, pi_ceil_div(to.n_value, 4), n, 1, 0, &to);
}

static void latent_rows(struct gpu_device *d, enum pi_rows_body body,
                        const struct pi_latent_rows *a, int64_t n)
{
    const struct gpu_latent_args to = latent_args(a);
    if (body == PI_ROWS_LATENT_LOW)
        gpu_run(d, GPU_KERNEL_latent_low, n, 1, 1, SUM_SMEM, &to);
    else if (body == PI_ROWS_LATENT_IN)
        gpu_run(d, GPU_KERNEL_latent_in, 1 + pi_ceil_div(to.n_head, 4), n, 1, SUM_SMEM, &to);
    else if (body == PI_ROWS_LATENT_QUERY)
        gpu_run(d, GPU_KERNEL_latent_query, to.n_head, n, 1, 0, &to);
    else
        gpu_run(d, GPU_KERNEL_latent_gather, to.n_head, n, 1, 0, &to);
}

void gpu_rows(struct pi_stream *s, enum pi_rows_body body, const void *args, int64_t n_row,
              int64_t work)
{
    struct gpu_device *d = gpu_of_stream(s);
    (void)work;
    if (body == PI_ROWS_OUT && !pi_at_some(((const struct pi_out_rows *)args)->q_gate))
        return; /* nothing is done, and packed rows stay up to date */
    gpu_enter_pass(d);
    switch (body) {
    case PI_ROWS_EMBED:
        embed(d, args, n_row);
        break;
    case PI_ROWS_BETWEEN:
        between(d, args, n_row);
        break;
    case PI_ROWS_PICK:
        pick(d, args, n_row);
        break;
    case PI_ROWS_QUANTIZE: /* there are no int8 copies */
        break;
    case PI_ROWS_QKV:
        qkv(d, args, n_row);
        break;
    case PI_ROWS_MOE_CHOOSE:
        moe_choose(d, args, n_row);
        break;
    case PI_ROWS_MOE_GATHER:
        moe_gather(d, args, n_row);
        break;
    case PI_ROWS_MOE_HIDDEN:
        moe_hidden(d, args, n_row);
        break;
    case PI_ROWS_MOE_SUM:
        moe_sum(d, args, n_row);
        break;
    case PI_ROWS_DELTA_IN:
    case PI_ROWS_DELTA_UNIT:
    case PI_ROWS_DELTA_OUT:
        delta_rows(d, body, args, n_row);
        break;
    case PI_ROWS_LATENT_LOW:
    case PI_ROWS_LATENT_IN:
    case PI_ROWS_LATENT_QUERY:
    case PI_ROWS_LATENT_GATHER:
        latent_rows(d, body, args, n_row);
        break;
    default:
        plain_rows(d, body, args, n_row);
        break;
    }
    gpu_leave(d);
}
