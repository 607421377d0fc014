/*
 * geometry.c - the entries that a cache can store, the classes of its pages, and their bytes. It
 * knows no pool. Invariant: layers with the same pair of types have pages of one class.
 */
#include "kv/geometry.h"
#include "device/device.h"
#include "kv/class.h"
#include "kv/index_internal.h"
#include "kv/type_internal.h"
#include "kv/window_internal.h"

#define PART_ALIGN 64
#define MAX_DIM 16384
#define MAX_LANE (1 << 20)

/* ---- geometry ---- */

static pith_status check_count(const char *field, int32_t value, int32_t max, pith_error *err)
{
    if (value < 1 || value > max)
        return pi_fail(err, PITH_INVALID, "%s: %d is not in 1..%d", field, value, max);
    return PITH_OK;
}

static pith_status check_type(const char *field, enum kv_type type, int32_t dim, pith_error *err)
{
    if ((int)type < 0 || type >= KV_N_TYPE)
        return pi_fail(err, PITH_INVALID, "%s: %d is no storage type", field, (int)type);
    const struct kv_codec *codec = &kv_codecs[type];
    if (kv_type_group(type, dim) == 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: %s stores blocks of %d dimensions, and the head size %d is no multiple",
                       field, codec->name, codec->block > 0 ? codec->block : KV_CODEC_GROUP, dim);
    return PITH_OK;
}

/* Layers without a window. */
static int32_t full_layers(const struct kv_geometry *g)
{
    int32_t n = g->window != NULL ? 0 : g->n_layer;
    while (n < g->n_layer && g->window[n] == 0)
        n++;
    return n;
}

struct kv_geometry kv_full_lanes(const struct kv_geometry *g)
{
    struct kv_geometry full = *g;
    full.n_layer = full_layers(g);
    full.window = NULL;
    return full;
}

/* Layers that edges are counted in: those without a window, or all where each has one. */
static int32_t edged_layers(const struct kv_geometry *g)
{
    int32_t n = full_layers(g);
    return n > 0 ? n : g->n_layer;
}

static pith_status check_edge(const char *field, const struct kv_edge *edge,
                              const struct kv_geometry *g, int32_t dim, pith_error *err)
{
    if (edge->first == 0 && edge->last == 0)
        return PITH_OK;
    if (edge->first < 0 || edge->last < 0 || (int64_t)edge->first + edge->last > edged_layers(g))
        return pi_fail(err, PITH_INVALID,
                       "%s: the first %d and the last %d layers do not fit in %d layers", field,
                       edge->first, edge->last, edged_layers(g));
    return check_type(field, edge->type, dim, err);
}

static pith_status check_windows(const struct kv_geometry *g, pith_error *err)
{
    if (g->window == NULL)
        return PITH_OK;
    PI_TRY(check_count("step_len", g->step_len, INT32_MAX, err));
    for (int32_t l = 0; l < g->n_layer; l++) {
        if (g->window[l] < 0)
            return pi_fail(err, PITH_INVALID, "window: %d of layer %d is negative", g->window[l],
                           l);
        if (l > 0 && g->window[l] == 0 && g->window[l - 1] > 0)
            return pi_fail(err, PITH_INVALID, "window: layer %d has none, and layer %d has one", l,
                           l - 1);
    }
    return PITH_OK;
}

static bool same_edge(const struct kv_edge *a, const struct kv_edge *b)
{
    bool none_a = a->first == 0 && a->last == 0, none_b = b->first == 0 && b->last == 0;
    return none_a || none_b ? none_a == none_b
                            : a->type == b->type && a->first == b->first && a->last == b->last;
}

/* Of a type of keys that values are parts of. */
static pith_status check_split(const struct kv_geometry *g, enum kv_type type, pith_error *err)
{
    int32_t group = kv_type_group(type, g->dim_k);
    if (g->v_in_k % group != 0 || g->dim_v % group != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_k: %s has groups of %d dimensions, and one of them would hold both "
                       "rotated dimensions and values of a latent lane (%d and %d)",
                       kv_codecs[type].name, group, g->v_in_k, g->dim_v);
    return PITH_OK;
}

/* Values that are parts of keys are stored as these are. */
static pith_status check_latent(const struct kv_geometry *g, pith_error *err)
{
    if (g->v_in_k == 0)
        return PITH_OK;
    if (g->v_in_k < 0 || g->v_in_k > g->dim_k - g->dim_v)
        return pi_fail(err, PITH_INVALID, "v_in_k: keys of %d have no %d dimensions from %d on",
                       g->dim_k, g->dim_v, g->v_in_k);
    if (g->type_k != g->type_v || !same_edge(&g->edge_k, &g->edge_v))
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_v: values of this model are parts of its keys, so that type_v must be "
                       "type_k (%s, and edges alike)",
                       kv_codecs[g->type_k].name);
    PI_TRY(check_split(g, g->type_k, err));
    return g->edge_k.first + g->edge_k.last > 0 ? check_split(g, g->edge_k.type, err) : PITH_OK;
}

pith_status kv_geometry_check(const struct kv_geometry *g, pith_error *err)
{
    PI_TRY(check_count("n_layer", g->n_layer, MAX_LANE, err));
    PI_TRY(check_count("n_head", g->n_head, MAX_LANE / g->n_layer, err));
    PI_TRY(check_count("dim_k", g->dim_k, MAX_DIM, err));
    PI_TRY(check_count("dim_v", g->dim_v, MAX_DIM, err));
    if (g->page_len != 16 && g->page_len != 32 && g->page_len != 64)
        return pi_fail(err, PITH_INVALID, "page_len: %d is not 16, 32 or 64", g->page_len);
    PI_TRY(check_type("type_k", g->type_k, g->dim_k, err));
    PI_TRY(check_type("type_v", g->type_v, g->dim_v, err));
    PI_TRY(check_edge("type_k", &g->edge_k, g, g->dim_k, err));
    PI_TRY(check_edge("type_v", &g->edge_v, g, g->dim_v, err));
    PI_TRY(check_latent(g, err));
    PI_TRY(check_windows(g, err));
    return kv_index_check(g, err);
}

static bool on_edge(const struct kv_geometry *g, const struct kv_edge *edge, int32_t layer)
{
    int32_t n = edged_layers(g);
    return layer < edge->first || (layer < n && layer >= n - edge->last);
}

enum kv_type kv_layer_type_k(const struct kv_geometry *g, int32_t layer)
{
    return on_edge(g, &g->edge_k, layer) ? g->edge_k.type : g->type_k;
}

enum kv_type kv_layer_type_v(const struct kv_geometry *g, int32_t layer)
{
    return on_edge(g, &g->edge_v, layer) ? g->edge_v.type : g->type_v;
}

struct pi_device *kv_geometry_device(const struct kv_geometry *g)
{
    return g->device != NULL ? g->device : pi_device_default();
}

int32_t kv_layer_part(const struct kv_geometry *g, int32_t layer)
{
    const struct kv_devices *d = &g->devices;
    int32_t i = 0;
    while (d->n > 0 && d->number[layer] >= d->part[i].end)
        i++;
    assert(i == 0 || i < d->n);
    return i;
}

struct pi_device *kv_layer_device(const struct kv_geometry *g, int32_t layer)
{
    return g->devices.n > 0 ? g->devices.part[kv_layer_part(g, layer)].device
                            : kv_geometry_device(g);
}

/* ---- classes ---- */

/* Adds a part of P rows to the layout and returns its offset. */
static size_t place(const struct kv_geometry *g, size_t row_bytes, struct kv_page_layout *layout)
{
    size_t offset = layout->bytes;
    layout->entry += row_bytes;
    layout->bytes += pi_align((size_t)g->page_len * row_bytes, PART_ALIGN);
    return offset;
}

static void place_part(const struct kv_geometry *g, enum kv_type type, int32_t dim,
                       struct kv_page_layout *layout, struct kv_part *out)
{
    const struct kv_codec *codec = &kv_codecs[type];
    size_t bits[KV_N_PLANE] = {(size_t)codec->bits, (size_t)codec->bits_high, 0};
    *out = (struct kv_part){
        .type = type, .codec = codec, .dim = dim, .group = kv_type_group(type, dim)};
    for (int32_t i = 0; i < KV_N_PLANE; i++) {
        size_t row = (size_t)dim * bits[i] / 8;
        if (i == KV_PLANE_SCALE && out->group > 1)
            row = (size_t)(dim / out->group) * sizeof(uint16_t);
        bool wide = i == KV_PLANE_LOW && codec->bits != 16;
        out->plane[i] = (struct kv_plane){place(g, row, layout), row, wide ? 4 : 2, row};
    }
}

/* The dimensions of keys that are values. Groups are the keys', whatever the size of a value. */
static struct kv_part part_of_keys(const struct kv_geometry *g, const struct kv_part *k)
{
    struct kv_part out = *k;
    out.dim = g->dim_v;
    for (int32_t i = 0; i < KV_N_PLANE; i++) {
        struct kv_plane *p = &out.plane[i];
        p->at += p->row * (size_t)g->v_in_k / (size_t)g->dim_k;
        p->row = p->row * (size_t)g->dim_v / (size_t)g->dim_k;
    }
    return out;
}

void kv_class_make(const struct kv_geometry *g, enum kv_type type_k, enum kv_type type_v,
                   struct kv_class *out)
{
    struct kv_page_layout *at = &out->layout;
    *out = (struct kv_class){.type_k = type_k, .type_v = type_v};
    at->side_by_side = g->index == 0 && g->v_in_k == 0;
    place_part(g, type_k, g->dim_k, at, &out->k);
    at->k_end = at->bytes;
    place_part(g, type_v, g->v_in_k > 0 ? 0 : g->dim_v, at, &out->v);
    out->value = g->v_in_k > 0 ? part_of_keys(g, &out->k) : out->v;
    out->v_pitch = g->v_in_k > 0 ? g->dim_k : g->dim_v;
    out->group_k = out->k.group;
    out->group_v = out->value.group;
    at->k = out->k.plane[KV_PLANE_LOW].at;
    at->k_high = out->k.plane[KV_PLANE_HIGH].at;
    at->k_scale = out->k.plane[KV_PLANE_SCALE].at;
    at->v = out->value.plane[KV_PLANE_LOW].at;
    at->v_high = out->value.plane[KV_PLANE_HIGH].at;
    at->v_scale = out->value.plane[KV_PLANE_SCALE].at;
    size_t pos = (size_t)g->page_len * sizeof(int32_t);
    at->stored = at->bytes;
    at->saved = at->stored + pos;
    kv_index_place(g, at);
    at->stride = at->bytes;
    at->bytes += pos;
    at->entry += sizeof(int32_t);
    out->page_len = g->page_len;
}

size_t kv_layer_page_bytes(const struct kv_geometry *g, int32_t layer)
{
    struct kv_class kind;
    kv_class_make(g, kv_layer_type_k(g, layer), kv_layer_type_v(g, layer), &kind);
    return kind.layout.bytes;
}

/* Layers from this one on that have the same types, which only change at edges, window and
   device. */
static int32_t count_alike(const struct kv_geometry *g, int32_t layer)
{
    int32_t n = edged_layers(g);
    const int32_t ends[] = {g->edge_k.first, n - g->edge_k.last, g->edge_v.first,
                            n - g->edge_v.last};
    int32_t end = g->n_layer;
    for (size_t i = 0; i < PI_LEN(ends); i++)
        if (ends[i] > layer)
            end = (int32_t)pi_min(end, ends[i]);
    for (int32_t l = layer + 1; (g->window != NULL || g->devices.n > 0) && l < end; l++)
        if (kv_layer_window(g, l) != kv_layer_window(g, layer) ||
            kv_layer_device(g, l) != kv_layer_device(g, layer))
            end = l;
    return end - layer;
}

size_t kv_page_bytes(const struct kv_geometry *g)
{
    size_t most = 0;
    for (int32_t l = 0; l < g->n_layer; l += count_alike(g, l)) {
        size_t bytes = kv_layer_page_bytes(g, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Bytes of n layers like this one, for n_token tokens; INT64_MAX: more. */
static int64_t bytes_alike(const struct kv_geometry *g, int32_t layer, int32_t n, int64_t n_token)
{
    size_t bytes;
    int64_t n_page = n_token > 0 ? (n_token - 1) / g->page_len + 1 : 0;
    if (kv_layer_window(g, layer) > 0)
        n_page = pi_min(n_page, kv_window_pages(g, kv_layer_window(g, layer)));
    if (!pi_mul_size(kv_layer_page_bytes(g, layer), (size_t)n * (size_t)g->n_head, &bytes) ||
        !pi_mul_size(bytes, (size_t)n_page, &bytes) || bytes > INT64_MAX)
        return INT64_MAX;
    return (int64_t)bytes;
}

int64_t kv_layer_bytes_for_tokens(const struct kv_geometry *g, int32_t layer, int64_t n_token)
{
    return bytes_alike(g, layer, 1, n_token);
}

int64_t kv_bytes_for_tokens(const struct kv_geometry *g, int64_t n_token)
{
    int64_t sum = 0;
    for (int32_t l = 0; l < g->n_layer; l += count_alike(g, l)) {
        int64_t bytes = bytes_alike(g, l, count_alike(g, l), n_token);
        if (bytes > INT64_MAX - sum)
            return INT64_MAX;
        sum += bytes;
    }
    return sum;
}

int32_t kv_classes_make(const struct kv_geometry *g, struct kv_class kind[KV_CLASS_MAX])
{
    int32_t n = 0;
    for (int32_t l = 0; l < g->n_layer; l += count_alike(g, l)) {
        enum kv_type k = kv_layer_type_k(g, l), v = kv_layer_type_v(g, l);
        int32_t i = 0;
        struct pi_device *d = kv_layer_device(g, l);
        while (i < n && (kind[i].type_k != k || kind[i].type_v != v || kind[i].device != d))
            i++;
        if (i < n)
            continue;
        assert(i < KV_CLASS_MAX);
        kv_class_make(g, k, v, &kind[i]);
        kind[i].device = d;
        kind[i].part = kv_layer_part(g, l);
        kind[i].number = n++;
    }
    return n;
}

const struct kv_class *kv_class_of(const struct kv_class *kind, const struct kv_geometry *g,
                                   int32_t layer)
{
    enum kv_type k = kv_layer_type_k(g, layer), v = kv_layer_type_v(g, layer);
    struct pi_device *d = kv_layer_device(g, layer);
    while (kind->type_k != k || kind->type_v != v || kind->device != d)
        kind++;
    return kind;
}

struct kv_need kv_need_of_state(const struct kv_geometry *g)
{
    struct kv_need n = {0};
    for (int32_t i = 0; i < g->devices.n; i++)
        kv_need_add(&n, i, (int64_t)pi_align(g->devices.part[i].state_bytes, PART_ALIGN));
    if (n.all == 0)
        kv_need_add(&n, 0, (int64_t)pi_align(g->state_bytes, PART_ALIGN));
    return n;
}

int64_t kv_bytes_of_state(const struct kv_geometry *g)
{
    return kv_need_of_state(g).all;
}

struct kv_need kv_need_for_tokens(const struct kv_geometry *g, int64_t n_token)
{
    struct kv_need n = kv_need_of_state(g);
    for (int32_t l = 0; l < g->n_layer; l++)
        kv_need_add(&n, kv_layer_part(g, l), kv_layer_bytes_for_tokens(g, l, n_token));
    return n;
}
