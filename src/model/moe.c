/*
 * moe.c - the block of a mixture of experts. A router chooses some experts for each token, and
 * their outputs are summed with the router's weights. A shared expert, where there is one, takes
 * every token.
 *
 * The rows of a pass are sorted by expert; each token has one row for each of its experts. So a
 * matrix is read once for all of its rows, and experts without a row are not read. Invariant: a
 * token's sum is added in the order of its own router, from products whose bits do not depend on
 * other rows. So its bits depend on that token alone.
 */
#include "model/pass.h"

static const struct pi_moe_rule *rule_of(const struct pi_pass *pass)
{
    return &pass->model->hp.moe;
}

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    out->norm = layer->moe.norm;
    out->bias = NULL;
    out->post_norm = NULL;
    out->reads_int8 =
        pi_matrix_reads_int8(&layer->moe.router) || pi_matrix_reads_int8(&layer->moe.gate) ||
        pi_matrix_reads_int8(&layer->moe.up) ||
        (layer->moe.shared_gate.data != NULL && (pi_matrix_reads_int8(&layer->moe.shared_gate) ||
                                                 pi_matrix_reads_int8(&layer->moe.shared_up)));
}

/* ---- scratch ---- */

/* Floats of n values, to the next cache line. */
static size_t line_len(size_t n)
{
    return pi_align(n, 16);
}

static size_t blocks_of(const struct pi_hparams *hp)
{
    return (size_t)pi_ceil_div(pi_max(hp->n_embd, hp->whole.n_ff_expert), PI_ACT_BLOCK);
}

/* The parts of the memory, in the order in which they lie there: floats of a token. */
enum { AT_X, AT_GATE, AT_UP, AT_Q, AT_SCALE, AT_SUM, AT_PLACES, AT_ROUTER, AT_SHARED, N_PART };

static void count_parts(const struct pi_hparams *hp, size_t part[N_PART])
{
    const struct pi_moe_rule *m = &hp->moe;
    size_t n = (size_t)m->n_used, n_expert = (size_t)m->n_expert;
    part[AT_X] = line_len(n * (size_t)hp->n_embd);
    part[AT_GATE] = part[AT_UP] = line_len(n * (size_t)hp->whole.n_ff_expert);
    part[AT_Q] = line_len(n * blocks_of(hp) * PI_ACT_BLOCK / sizeof(float));
    part[AT_SCALE] = part[AT_SUM] = line_len(n * blocks_of(hp));
    part[AT_PLACES] = line_len(4 * n + 2 * n_expert + 2); /* as much as one token needs */
    part[AT_ROUTER] = line_len(2 * n_expert + 1);
    part[AT_SHARED] = line_len(2 * (size_t)hp->whole.n_ff_shared);
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    size_t part[N_PART];
    count_parts(hp, part);
    *out = (struct pi_block_scratch){
        .widest = (size_t)pi_max(hp->whole.n_ff_expert, hp->whole.n_ff_shared)};
    for (int32_t i = 0; i < N_PART; i++)
        out->row += part[i];
}

/* Values of 4 bytes, n of them. */
static struct pi_at take(struct pi_at *memory, size_t n)
{
    struct pi_at part = *memory;
    *memory = pi_at_item(*memory, n);
    return part;
}

static void place(struct pi_pass *pass, struct pi_at memory)
{
    const struct pi_moe_rule *rule = rule_of(pass);
    struct pi_pass_moe *m = &pass->moe;
    struct pi_moe_places *p = &m->places;
    size_t part[N_PART], n_tok = (size_t)pass->plan.max_tok, n_row = n_tok * (size_t)rule->n_used;
    size_t n_expert = (size_t)rule->n_expert;
    struct pi_at at[N_PART];
    count_parts(&pass->model->hp, part);
    for (int32_t i = 0; i < N_PART; i++)
        at[i] = take(&memory, n_tok * part[i]);
    m->x = at[AT_X];
    m->gate = at[AT_GATE];
    m->up = at[AT_UP];
    m->act = (struct pi_int8){at[AT_Q], at[AT_SCALE], at[AT_SUM]};
    p->weight = take(&at[AT_PLACES], n_row);
    p->chosen = take(&at[AT_PLACES], n_row);
    p->row = take(&at[AT_PLACES], n_row);
    p->token = take(&at[AT_PLACES], n_row);
    p->first = take(&at[AT_PLACES], n_expert + 1);
    p->busy = take(&at[AT_PLACES], n_expert);
    p->n_busy = take(&at[AT_PLACES], 1);
    m->logit = take(&at[AT_ROUTER], n_tok * n_expert);
    m->rank = take(&at[AT_ROUTER], n_tok * n_expert);
    m->shared_weight = at[AT_ROUTER];
    m->shared_gate = take(&at[AT_SHARED], n_tok * (size_t)pass->model->hp.whole.n_ff_shared);
    m->shared_up = at[AT_SHARED];
}

/* ---- the choice of experts ---- */

static void choose(struct pi_pass *pass)
{
    const struct pi_layer *layer = pass->now.layer;
    const struct pi_moe_rule *rule = rule_of(pass);
    const struct pi_moe_choose_rows rows = {
        .rule = *rule,
        .places = pass->moe.places,
        .logit = pass->moe.logit,
        .rank = pass->moe.rank,
        .b_router = pi_pass_vector(pass, layer->moe.router_bias),
        .b_choice = pi_pass_vector(pass, layer->moe.choice_bias),
        .h = pass->rows.h,
        .shared_gate = pi_pass_vector(pass, layer->moe.shared_weight),
        .shared_weight = pass->moe.shared_weight,
        .n_embd = pass->model->hp.n_embd,
    };
    pi_pass_rows(pass, PI_ROWS_MOE_CHOOSE, &rows, rule->n_expert);
    pass->device->moe_sort(pass->stream, rule, &pass->moe.places, pass->now.n_tok);
    pi_pass_fetch_experts(pass);
}

/* ---- rows of experts ---- */

/* A body over the sorted rows; a row costs about `work` operations. */
static void expert_rows(const struct pi_pass *pass, enum pi_rows_body body, const void *args,
                        int64_t work)
{
    pass->device->rows(pass->stream, body, args, (int64_t)pass->now.n_tok * rule_of(pass)->n_used,
                       work);
}

static void gather(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    bool gate_int8 = pi_weight_reads_int8(&w->moe.gate);
    bool up_int8 = pi_weight_reads_int8(&w->moe.up);
    struct pi_moe_gather_rows rows = {
        .places = pass->moe.places, .h = pass->rows.h, .n = pass->model->hp.n_embd};
    if (!gate_int8 || !up_int8)
        rows.x = pass->moe.x;
    if (gate_int8 || up_int8) {
        rows.from = pass->rows.act;
        rows.act = pass->moe.act;
    }
    expert_rows(pass, PI_ROWS_MOE_GATHER, &rows, rows.n);
}

static void multiply(struct pi_pass *pass, struct pi_at x, const struct pi_weight *const *w,
                     const struct pi_at *out, int32_t n)
{
    struct pi_product_experts p = {.places = pass->moe.places,
                                   .x = x,
                                   .act = pass->moe.act,
                                   .n_row = pass->now.n_tok * rule_of(pass)->n_used,
                                   .n = n,
                                   .n_expert = rule_of(pass)->n_expert};
    for (int32_t i = 0; i < n; i++) {
        p.w[i] = w[i];
        p.out[i] = out[i];
    }
    pass->device->product_experts(pass->stream, &p);
}

static void run_experts(struct pi_pass *pass)
{
    const struct pi_layer *layer = pass->now.layer;
    const struct pi_placed_layer *w = pass->now.w;
    const struct pi_moe_rule *rule = rule_of(pass);
    struct pi_pass_moe *m = &pass->moe;
    const struct pi_int8 unread = {.q = {0}};
    const struct pi_moe_hidden_rows rows = {
        .places = m->places,
        .gate = m->gate,
        .up = m->up,
        .b_gate = pi_pass_vector(pass, layer->moe.gate_bias),
        .b_up = pi_pass_vector(pass, layer->moe.up_bias),
        .act = pi_weight_reads_int8(&w->moe.down) ? m->act : unread,
        .fn = rule->act,
        .n = rule->n_ff,
    };
    gather(pass);
    multiply(pass, m->x, (const struct pi_weight *const[]){&w->moe.gate, &w->moe.up},
             (const struct pi_at[]){m->gate, m->up}, 2);
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_row = pass->now.n_tok * rule->n_used;
    expert_rows(pass, PI_ROWS_MOE_HIDDEN, &rows, (int64_t)rule->n_ff * 40);
    pi_pass_gather(m->gate, &rows.act, n_row, hp->whole.n_ff_expert / PI_ACT_BLOCK, PI_ACT_BLOCK);
    multiply(pass, m->gate, (const struct pi_weight *const[]){&w->moe.down},
             (const struct pi_at[]){m->x}, 1);
    pi_pass_gather_rows(m->x, n_row, hp->n_embd);
}

/* ---- the shared expert ---- */

/* From the stream, which still has its int8 copy, to shared_gate. */
static void enter_shared(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->moe.shared_gate, &w->moe.shared_up},
                    (const struct pi_at[]){pass->moe.shared_gate, pass->moe.shared_up}, 2);
}

/* Writes to h, whose rows are not read any more. */
static void leave_shared(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    const struct pi_gate_rows rows = {
        .gate = pass->moe.shared_gate,
        .up = pass->moe.shared_up,
        .act = pi_pass_act(pass, &w->moe.shared_down),
        .fn = rule_of(pass)->act == PI_MOE_OAI ? PI_GATE_OAI : PI_GATE_SILU,
        .n = rule_of(pass)->n_ff_shared,
    };
    const struct pi_hparams *hp = &pass->model->hp;
    pi_pass_rows(pass, PI_ROWS_GATE, &rows, rows.n);
    pi_pass_gather(pass->moe.shared_gate, &rows.act, pass->now.n_tok,
                   hp->whole.n_ff_shared / PI_ACT_BLOCK, PI_ACT_BLOCK);
    pi_pass_product(pass, pass->moe.shared_gate, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->moe.shared_down},
                    (const struct pi_at[]){pass->rows.h}, 1);
    pi_pass_gather_rows(pass->rows.h, pass->now.n_tok, hp->n_embd);
}

/* ---- the block ---- */

static void add_up(struct pi_pass *pass, bool shared)
{
    const struct pi_layer *layer = pass->now.layer;
    struct pi_moe_sum_rows rows = {
        .places = pass->moe.places,
        .x = pass->moe.x,
        .h = pass->rows.h,
        .b_down = pi_pass_vector(pass, layer->moe.down_bias),
        .shared = shared,
        .n = pass->model->hp.n_embd,
        .n_used = rule_of(pass)->n_used,
    };
    if (layer->moe.shared_weight != NULL)
        rows.shared_weight = pass->moe.shared_weight;
    pi_pass_rows(pass, PI_ROWS_MOE_SUM, &rows, rows.n);
}

static void run(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    bool shared = pi_at_some(w->moe.shared_gate.data);
    pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->moe.router},
                    (const struct pi_at[]){pass->moe.logit}, 1);
    if (shared)
        enter_shared(pass);
    choose(pass);
    run_experts(pass);
    if (shared)
        leave_shared(pass);
    add_up(pass, shared);
}

const struct pi_block pi_block_moe = {
    .name = "experts",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
