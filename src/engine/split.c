/*
 * split.c - which layers are on which device: the last N on GPUs, as llama.cpp counts them, the
 * others on the processor. It weighs weights, buffers and pages against the free memory of each.
 * Invariant: what is planned fits, as far as devices say what they have.
 */
#include "engine/split.h"

#include <math.h>
#include <stdlib.h>

#include "engine/devices.h"
#include "model/delta.h"
#include "model/forward.h"
#include "model/placed.h"

/* ---- devices ---- */

static bool is_gpu(const struct pi_device *d)
{
    return d != &pi_device_cpu;
}

/* Bytes that a device could give now; -1: it does not say. */
static int64_t unused_of(struct pi_device *d, int64_t *total)
{
    struct pi_device_report report = {.total = -1, .unused = -1};
    d->describe(d, &report);
    *total = report.total;
    return report.unused;
}

static pith_status add_device(struct pi_split *s, const char *name, pith_error *err)
{
    struct pi_device *d;
    PI_TRY(pi_device_find(name, &d, err));
    if (s->n_device == PI_SPLIT_MOST)
        return pi_fail(err, PITH_INVALID, "device: more than %d of them", PI_SPLIT_MOST);
    for (int32_t i = 0; i < s->n_device; i++)
        if (s->device[i] == d || !is_gpu(d))
            return pi_fail(err, PITH_INVALID, "device: %s cannot stand beside %s", d->name,
                           s->device[i]->name);
    s->device[s->n_device] = d;
    s->share[s->n_device++] = 1.0;
    return PITH_OK;
}

/* The names between commas, one after the other; false: there are no more. */
static bool next_name(const char **list, char *name, size_t cap)
{
    size_t len = strcspn(*list, ",");
    if (len >= cap)
        len = cap - 1;
    memcpy(name, *list, len);
    name[len] = '\0';
    *list += strcspn(*list, ",");
    *list += **list == ',';
    return len > 0;
}

/* In proportion to free memory. The processor's device reads twenty files to tell it, and estimates
   open hundreds of splits: with one device none is asked. */
static void find_shares(struct pi_split *s)
{
    int64_t total;
    for (int32_t i = 0; i < s->n_device; i++)
        s->share[i] = (double)pi_max(unused_of(s->device[i], &total), 1);
}

static pith_status read_shares(struct pi_split *s, const char *text, pith_error *err)
{
    const char *at = text;
    char *end;
    double sum = 0.0;
    for (int32_t i = 0; i < s->n_device; i++, at = *end == ',' ? end + 1 : end) {
        s->share[i] = strtod(at, &end);
        sum += s->share[i];
        bool last = i == s->n_device - 1;
        if (end == at || !(s->share[i] >= 0.0) || !isfinite(sum) || *end != (last ? '\0' : ','))
            return pi_fail(err, PITH_INVALID,
                           "tensor_split: \"%.64s\" is not a share for each of %d devices, as "
                           "\"3,1\" for two",
                           text, s->n_device);
    }
    return sum > 0.0 ? PITH_OK
                     : pi_fail(err, PITH_INVALID, "tensor_split: \"%.64s\": all are 0", text);
}

pith_status pi_split_open(struct pi_split *s, const pith_engine_params *params, pith_error *err)
{
    const char *list = params->device;
    char name[80];
    s->n_device = 0;
    if (list == NULL || strchr(list, ',') == NULL)
        return add_device(s, list, err);
    while (next_name(&list, name, sizeof(name)))
        PI_TRY(add_device(s, name, err));
    if (params->tensor_split != NULL)
        return read_shares(s, params->tensor_split, err);
    find_shares(s);
    return PITH_OK;
}

/* ---- stages ---- */

static void add_stage(struct pi_stages *out, struct pi_device *d, int32_t begin, int32_t end)
{
    if (begin < end)
        out->stage[out->n++] = (struct pi_stage){d, begin, end, false};
}

/* The last n layers on the devices, in proportion to their shares. */
static void make_stages(const struct pi_split *s, int32_t n, struct pi_stages *out)
{
    int32_t n_layer = s->model->hp.n_layer, n_there = (int32_t)pi_min(n, n_layer);
    int32_t first = n_layer - n_there, begin = first;
    double sum = 0.0, so_far = 0.0;
    *out = (struct pi_stages){0};
    for (int32_t i = 0; i < s->n_device; i++)
        sum += s->share[i];
    add_stage(out, &pi_device_cpu, 0, first);
    for (int32_t i = 0; i < s->n_device; i++) {
        so_far += s->share[i];
        int32_t end = first + (int32_t)lround(n_there * so_far / sum);
        add_stage(out, s->device[i], begin, end);
        begin = end;
    }
    if (n <= n_layer && n_there > 0)
        out->stage[out->n++] = (struct pi_stage){&pi_device_cpu, n_layer, n_layer, false};
    out->stage[out->n - 1].output = true;
}

/* The bytes of a state of the recurrent layers among some. */
static size_t state_bytes(const struct pith_model *m, int32_t begin, int32_t end)
{
    size_t n = 0, all = (size_t)m->hp.delta.n_layer;
    for (int32_t l = begin; l < end; l++)
        n += m->layer[l].delta_layer >= 0;
    return all > 0 ? pi_delta_state_bytes(&m->hp.delta) / all * n : 0;
}

static void set_devices(const struct pi_split *s, const struct pi_stages *stages)
{
    struct kv_devices *d = &s->geometry->devices;
    *d = (struct kv_devices){.number = s->model->kv_layer};
    s->geometry->device = s->device[0];
    for (int32_t i = 0; i < stages->n; i++) {
        const struct pi_stage *stage = &stages->stage[i];
        if (stage->begin == stage->end)
            continue;
        d->part[d->n].device = stage->device;
        d->part[d->n].end = stage->end;
        d->part[d->n++].state_bytes = state_bytes(s->model, stage->begin, stage->end);
    }
    if (d->n == 1) {
        s->geometry->device = d->part[0].device;
        d->n = 0;
    }
}

/* ---- memory ---- */

/* The bytes that stages of a device take. */
struct need {
    struct pi_device *device;
    int64_t weights, buffers;
    double share; /* of all pages */
};

/* Whether a stage has a tensor: of its layers, or the output, which may be the embeddings. */
static bool has_tensor(const struct pith_model *m, const struct pi_stage *stage,
                       const struct pi_gguf_tensor *t)
{
    static const char output[] = "output.weight", embd[] = "token_embd.weight";
    bool tied = pi_gguf_find_tensor(&m->gguf, output) == NULL;
    const char *name = tied ? embd : output;
    int32_t layer = pi_gguf_layer(t->name), own = layer - m->hp.whole.first_layer;
    if (layer >= 0)
        return own >= stage->begin && own < stage->end;
    return stage->output && t->name.len == strlen(name) &&
           memcmp(t->name.data, name, t->name.len) == 0;
}

int64_t pi_split_weights(const struct pith_model *m, const struct pi_stage *stage)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->gguf.n_tensor; i++)
        if (has_tensor(m, stage, &m->gguf.tensor[i]))
            bytes += (int64_t)m->gguf.tensor[i].size;
    return bytes;
}

/* Bytes of a sequence of the longest length in a stage's layers. */
static double pages_of(const struct pi_split *s, const struct pi_stage *stage)
{
    double sum = (double)state_bytes(s->model, stage->begin, stage->end);
    for (int32_t l = 0; l < s->geometry->n_layer; l++) {
        int32_t number = s->model->kv_layer[l];
        if (number >= stage->begin && number < stage->end)
            sum += (double)kv_layer_bytes_for_tokens(s->geometry, l, s->n_ctx);
    }
    return sum;
}

static struct need need_of(const struct pi_split *s, const struct pi_stages *stages,
                           struct pi_device *d)
{
    struct need n = {.device = d};
    double all = 0.0;
    for (int32_t i = 0; i < stages->n; i++) {
        const struct pi_stage *stage = &stages->stage[i];
        double pages = pages_of(s, stage);
        all += pages;
        if (stage->device != d)
            continue;
        n.weights += pi_placed_has(s->model, stage) ? 0 : pi_split_weights(s->model, stage);
        n.buffers += pi_pass_stage_bytes(s->model, stage, s->max_tok);
        n.share += pages;
    }
    n.share = all > 0.0 ? n.share / all : 0.0;
    return n;
}

/* Bytes that stay free for others and for the driver: a 16th, within bounds. */
static int64_t margin_of(int64_t total)
{
    const int64_t least = (int64_t)64 << 20, most = (int64_t)512 << 20;
    return pi_min(pi_max(total / 16, least), most);
}

/* Bytes of all pages for which a device has room in `rest`; -1: in none. */
static int64_t pages_in(const struct need *n, int64_t rest)
{
    double pages = n->share > 0.0 ? (double)rest / n->share : 1e18;
    return rest < 0 ? -1 : pages < 1e18 ? (int64_t)pages : INT64_MAX;
}

/* Bytes that a device has beside what stays free, and beside weights and buffers. */
static int64_t rest_of(const struct need *n, int64_t *unused, int64_t *margin)
{
    int64_t total;
    *unused = unused_of(n->device, &total);
    *margin = margin_of(total);
    return *unused - *margin - n->weights - n->buffers;
}

/* Whether stages have room for kv bytes of pages; *most: the most that they should have. A plan
   still fits where a little less is free than when it was made. */
static pith_status weigh(const struct pi_split *s, const struct pi_stages *stages, int64_t kv,
                         int64_t *most, pith_error *err)
{
    *most = INT64_MAX;
    for (int32_t i = 0; i < s->n_device; i++) {
        struct need n = need_of(s, stages, s->device[i]);
        int64_t unused, margin, rest = rest_of(&n, &unused, &margin);
        if (unused < 0)
            continue;
        if (pages_in(&n, rest + margin / 2) < kv)
            return pi_fail(err, PITH_NOMEM,
                           "device %s: %lld bytes are free, of which some stay so: too few for "
                           "%lld of weights, %lld of buffers and %lld of pages",
                           n.device->name, (long long)unused, (long long)n.weights,
                           (long long)n.buffers, (long long)((double)kv * n.share));
        *most = pi_min(*most, pi_max(pages_in(&n, rest), kv));
    }
    return PITH_OK;
}

pith_status pi_split_plan(const struct pi_split *s, int32_t n_gpu_layers, int64_t kv,
                          struct pi_stages *stages, int64_t *most, pith_error *err)
{
    int32_t all = s->model->hp.n_layer + 1;
    int32_t n = (int32_t)pi_min(n_gpu_layers == 0 ? all : n_gpu_layers, all);
    *most = INT64_MAX;
    if (!is_gpu(s->device[0])) {
        bool ends = pi_shape_ends(&s->model->hp);
        *stages = (struct pi_stages){.n = 1, .stage = {{s->device[0], 0, all - 1, ends}}};
        set_devices(s, stages);
        return PITH_OK;
    }
    make_stages(s, (int32_t)pi_max(n, 0), stages);
    pith_status status = weigh(s, stages, kv, most, err);
    while (n_gpu_layers == 0 && status != PITH_OK && n > 0) {
        make_stages(s, --n, stages);
        status = weigh(s, stages, kv, most, err);
    }
    set_devices(s, stages);
    return n <= 0 ? PITH_OK : status;
}

void pi_split_bound(const struct pi_split *s, const struct pi_stages *stages, int64_t kv)
{
    struct kv_devices *d = &s->geometry->devices;
    struct kv_need one = kv_need_for_tokens(s->geometry, 1);
    for (int32_t i = 0; i < d->n; i++) {
        struct need n = need_of(s, stages, d->part[i].device);
        int64_t unused, margin, rest = rest_of(&n, &unused, &margin);
        int64_t share = pi_max((int64_t)((double)kv * n.share), one.part[i]);
        if (is_gpu(n.device) && unused >= 0)
            d->part[i].most = pi_max(rest, share);
    }
}

int64_t pi_split_half(const struct pi_split *s)
{
    int64_t total;
    return pi_max(unused_of(s->device[0], &total), 0) / 2;
}
