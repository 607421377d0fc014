/*
 * placed.c - packs a model's weights for devices, and knows who uses them. A GPU makes its packing
 * from the processor's, layer by layer, which is given back. Invariant: a stage is in a model's
 * list once, as long as an engine uses the weights there.
 */
#include "model/placed.h"

#include "base/lock.h"
#include "model/host.h"

struct pi_placed_list {
    struct pi_lock lock;
    struct pi_placed *first;
};

/* False: no memory. A matrix that the model has not, or not packed, stays without data. */
static bool place(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab,
                  struct pi_weight *out)
{
    *out =
        (struct pi_weight){w->type, w->n_row, w->n_col, w->n_group, w->group_bytes, {0}, d->floats};
    if (w->data != NULL)
        out->data = d->pack(d, w, n_slab);
    return w->data == NULL || pi_at_some(out->data);
}

/* Where each matrix of a layer stands, in the model and here, and how many slabs it has. */
enum slabs { ONE, HEADS, EXPERTS };
static const struct entry {
    size_t matrix, weight;
    enum slabs slabs;
} entries[] = {
#define ENTRY(field, slabs)                                                                        \
    {                                                                                              \
        offsetof(struct pi_layer, field), offsetof(struct pi_placed_layer, field), slabs           \
    }
    ENTRY(attn.wq, ONE),         ENTRY(attn.wk, ONE),          ENTRY(attn.wv, ONE),
    ENTRY(attn.wo, ONE),         ENTRY(ffn.gate, ONE),         ENTRY(ffn.up, ONE),
    ENTRY(ffn.down, ONE),        ENTRY(latent.query, ONE),     ENTRY(latent.query_a, ONE),
    ENTRY(latent.query_b, ONE),  ENTRY(latent.compress, ONE),  ENTRY(latent.absorb, HEADS),
    ENTRY(latent.expand, HEADS), ENTRY(latent.out, ONE),       ENTRY(delta.mix, ONE),
    ENTRY(delta.z, ONE),         ENTRY(delta.mix_z, ONE),      ENTRY(delta.beta, ONE),
    ENTRY(delta.alpha, ONE),     ENTRY(delta.beta_alpha, ONE), ENTRY(delta.out, ONE),
    ENTRY(moe.router, ONE),      ENTRY(moe.gate, EXPERTS),     ENTRY(moe.up, EXPERTS),
    ENTRY(moe.down, EXPERTS),    ENTRY(moe.shared_gate, ONE),  ENTRY(moe.shared_up, ONE),
    ENTRY(moe.shared_down, ONE),
#undef ENTRY
};

_Static_assert(sizeof(struct pi_placed_layer) == PI_LEN(entries) * sizeof(struct pi_weight),
               "every matrix of a layer has an entry");

static struct pi_weight *weight_of(struct pi_placed_layer *layer, const struct entry *e)
{
    return (struct pi_weight *)(void *)((char *)layer + e->weight);
}

static const struct pi_matrix *matrix_of(const struct pi_layer *layer, const struct entry *e)
{
    return (const struct pi_matrix *)(const void *)((const char *)layer + e->matrix);
}

static int32_t slabs_of(const struct pi_hparams *hp, const struct entry *e)
{
    return e->slabs == ONE ? 1 : e->slabs == HEADS ? hp->n_head : hp->moe.n_expert;
}

static bool place_layer(struct pi_device *d, const struct pi_hparams *hp,
                        const struct pi_layer *layer, struct pi_placed_layer *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < PI_LEN(entries); i++)
        ok = place(d, matrix_of(layer, &entries[i]), slabs_of(hp, &entries[i]),
                   weight_of(out, &entries[i]));
    return ok;
}

static bool is_tied(const struct pith_model *m)
{
    return m->embd.data == m->output.data;
}

/* Rows of embeddings that are the output's matrix, too, may be of this stage's. */
static bool place_ends(const struct pith_model *m, struct pi_placed *out)
{
    struct pi_device *d = out->device;
    bool first = out->stage.begin == 0;
    bool ok = !out->stage.output || place(d, &m->output, 1, &out->output);
    if (first && is_tied(m) && out->stage.output)
        out->embd = out->output;
    else if (first)
        ok = ok && place(d, &m->embd, 1, &out->embd);
    return ok;
}

/* ---- the host's packing ---- */

/* Structs of matrices in the model, one range after the other: of a stage's ends and layers. */
struct range {
    const void *begin, *end;
};
enum { N_RANGE = 3 };

static void find_ranges(const struct pith_model *m, const struct pi_stage *stage,
                        struct range out[N_RANGE])
{
    const struct pi_matrix *output = is_tied(m) ? &m->embd : &m->output;
    bool twice = stage->begin == 0 && is_tied(m);
    out[0] = (struct range){&m->embd, &m->embd + (stage->begin == 0)};
    out[1] = (struct range){output, output + (stage->output && !twice)};
    out[2] = (struct range){&m->layer[stage->begin], &m->layer[stage->end]};
}

static void give_ranges(const struct pith_model *m, const struct range *range, int n, bool drop)
{
    while (n-- > 0)
        pi_host_give(m, range[n].begin, range[n].end, drop);
}

static pith_status take_ranges(const struct pith_model *m, const struct range *range, int n,
                               pith_error *err)
{
    for (int i = 0; i < n; i++) {
        pith_status status = pi_host_take(m, range[i].begin, range[i].end, err);
        if (status == PITH_OK)
            continue;
        give_ranges(m, range, i, false);
        return status;
    }
    return PITH_OK;
}

/* ---- a stage ---- */

static pith_status fail_place(const struct pi_placed *placed, pith_error *err)
{
    return pi_fail(err, PITH_NOMEM, "no memory for the weights of %d layers on the device %s",
                   placed->stage.end - placed->stage.begin, placed->device->name);
}

static pith_status tell_progress(struct pi_packing *packing, pith_error *err)
{
    packing->n_done++;
    double done = packing->n_done < packing->n ? (double)packing->n_done / packing->n : 1.0;
    if (packing->fn == NULL || packing->fn(packing->user, done))
        return PITH_OK;
    return pi_fail(err, PITH_CANCELLED, "packing weights for a device was cancelled");
}

/* On the host they stay, elsewhere the host's packing of a layer goes when the device has it. */
static pith_status place_matrices(const struct pith_model *m, struct pi_placed *out,
                                  struct pi_packing *packing, pith_error *err)
{
    struct range range[N_RANGE];
    bool stays = out->device->in_host;
    find_ranges(m, &out->stage, range);
    PI_TRY(take_ranges(m, range, 2, err));
    out->on_host = stays;
    bool ok = place_ends(m, out);
    if (!stays)
        give_ranges(m, range, 2, true);
    if (ok)
        PI_TRY(tell_progress(packing, err));
    for (int32_t l = out->stage.begin; ok && l < out->stage.end; l++) {
        const struct range layer = {&m->layer[l], &m->layer[l + 1]};
        PI_TRY(take_ranges(m, &layer, 1, err));
        out->n_taken += stays;
        ok = place_layer(out->device, &m->hp, &m->layer[l], &out->layer[l - out->stage.begin]);
        if (!stays)
            give_ranges(m, &layer, 1, true);
        if (ok)
            PI_TRY(tell_progress(packing, err));
    }
    return ok ? PITH_OK : fail_place(out, err);
}

static pith_status place_all(const struct pith_model *m, struct pi_placed *out,
                             struct pi_packing *packing, pith_error *err)
{
    struct pi_device *d = out->device;
    out->vectors = d->pack_vector(d, m->vectors, pi_mem_size(m->vectors) / sizeof(float));
    if (!pi_at_some(out->vectors))
        return fail_place(out, err);
    return place_matrices(m, out, packing, err);
}

/* At any stage. */
static void unplace(struct pi_placed *placed)
{
    struct pi_device *d = placed->device;
    struct range range[N_RANGE];
    int32_t n = placed->stage.end - placed->stage.begin;
    find_ranges(placed->model, &placed->stage, range);
    range[2].end = &placed->model->layer[placed->stage.begin + placed->n_taken];
    for (int32_t l = 0; placed->layer != NULL && l < n; l++)
        for (size_t i = 0; i < PI_LEN(entries); i++)
            d->unpack(d, weight_of(&placed->layer[l], &entries[i])->data);
    if (placed->embd.data.at != placed->output.data.at)
        d->unpack(d, placed->embd.data);
    d->unpack(d, placed->output.data);
    d->unpack(d, placed->vectors);
    if (placed->on_host)
        give_ranges(placed->model, range, N_RANGE, false);
    pi_mem_free(placed->layer);
    pi_mem_free(placed);
}

static pith_status make(const struct pith_model *model, const struct pi_stage *stage,
                        struct pi_packing *packing, struct pi_placed **out, pith_error *err)
{
    int32_t n = stage->end - stage->begin;
    struct pi_placed *placed = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*placed));
    if (placed != NULL) {
        placed->device = stage->device;
        placed->model = model;
        placed->stage = *stage;
        placed->layer = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)n + 1, sizeof(*placed->layer));
    }
    if (placed == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the list of %d layers' weights", n);
    pith_status status =
        placed->layer != NULL ? place_all(model, placed, packing, err) : fail_place(placed, err);
    if (status != PITH_OK) {
        unplace(placed);
        return status;
    }
    *out = placed;
    return PITH_OK;
}

/* ---- the list ---- */

pith_status pi_placed_list_create(struct pi_placed_list **out, pith_error *err)
{
    struct pi_placed_list *list = pi_mem_alloc(PI_MEM_MODEL, sizeof(*list));
    if (list == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a model");
    pith_status status = pi_lock_init(&list->lock, err);
    if (status != PITH_OK) {
        pi_mem_free(list);
        return status;
    }
    *out = list;
    return PITH_OK;
}

void pi_placed_list_free(struct pi_placed_list *list)
{
    if (list == NULL)
        return;
    assert(list->first == NULL);
    pi_lock_destroy(&list->lock);
    pi_mem_free(list);
}

static struct pi_placed *find(const struct pith_model *model, const struct pi_stage *stage)
{
    struct pi_placed *p = model->placed->first;
    while (p != NULL && (p->device != stage->device || p->stage.begin != stage->begin ||
                         p->stage.end != stage->end || p->stage.output != stage->output))
        p = p->next;
    return p;
}

bool pi_placed_has(const struct pith_model *model, const struct pi_stage *stage)
{
    pi_lock_take(&model->placed->lock);
    bool has = find(model, stage) != NULL;
    pi_lock_give(&model->placed->lock);
    return has;
}

int32_t pi_placed_missing(const struct pith_model *model, const struct pi_stage *stage)
{
    return pi_placed_has(model, stage) ? 0 : 1 + stage->end - stage->begin;
}

pith_status pi_placed_take(const struct pith_model *model, const struct pi_stage *stage,
                           struct pi_packing *packing, const struct pi_placed **out,
                           pith_error *err)
{
    struct pi_placed_list *list = model->placed;
    pith_status status = PITH_OK;
    pi_lock_take(&list->lock);
    struct pi_placed *found = find(model, stage);
    if (found == NULL) {
        status = make(model, stage, packing, &found, err);
        if (status == PITH_OK) {
            found->next = list->first;
            list->first = found;
        }
    }
    if (status == PITH_OK) {
        found->n_user++;
        *out = found;
    }
    pi_lock_give(&list->lock);
    return status;
}

void pi_placed_give(const struct pi_placed *placed)
{
    if (placed == NULL)
        return;
    struct pi_placed_list *list = placed->model->placed;
    struct pi_placed **at = &list->first;
    pi_lock_take(&list->lock);
    while (*at != placed)
        at = &(*at)->next;
    struct pi_placed *own = *at;
    if (--own->n_user == 0) {
        *at = own->next;
        unplace(own);
    }
    pi_lock_give(&list->lock);
}
