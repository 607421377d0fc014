/*
 * snapshot_parse.c - reads snapshots as bytes, after docs/snapshot.md. It trusts no number: each is
 * checked before it is used, whether or not the checksum is right. It knows no pool. Invariant: a
 * snapshot that kv_snapshot_parse accepts can be loaded into a cache of that shape without another
 * check.
 */
#include "file/sum.h"
#include "kv/snapshot.h"
#include "kv/type_internal.h"

/* ---- numbers ---- */

uint32_t kv_snapshot_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get_u64(const uint8_t *p)
{
    return kv_snapshot_u32(p) | (uint64_t)kv_snapshot_u32(p + 4) << 32;
}

static int32_t get_i32(const uint8_t *p)
{
    uint32_t bits = kv_snapshot_u32(p);
    int32_t value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

struct kv_snapshot_ref kv_snapshot_ref_at(const struct kv_snapshot *s, size_t i)
{
    const uint8_t *p = s->refs + i * KV_SNAPSHOT_REF_SIZE;
    uint32_t n = kv_snapshot_u32(p + 8);
    return (struct kv_snapshot_ref){.page = get_i32(p),
                                    .delta = get_i32(p + 4),
                                    .n = (int32_t)(n & ~KV_SNAPSHOT_CLOSED),
                                    .count = get_i32(p + 12),
                                    .closed = (n & KV_SNAPSHOT_CLOSED) != 0};
}

struct kv_snapshot_lane kv_snapshot_lane_at(const struct kv_snapshot *s, size_t l)
{
    uint32_t bits = kv_snapshot_u32(s->lane + 4 * l);
    return (struct kv_snapshot_lane){bits & ~KV_SNAPSHOT_UNORDERED,
                                     (bits & KV_SNAPSHOT_UNORDERED) != 0};
}

/* ---- header ---- */

static pith_status check_envelope(const char *name, const uint8_t *bytes, size_t size,
                                  pith_error *err)
{
    if (size < 12 || memcmp(bytes, KV_SNAPSHOT_MAGIC, 8) != 0)
        return pi_fail(err, PITH_FORMAT, "%s: not a snapshot of a sequence", name);
    uint32_t version = kv_snapshot_u32(bytes + 8);
    if (version != KV_SNAPSHOT_VERSION)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: snapshot version %u; this build reads %d", name,
                       version, KV_SNAPSHOT_VERSION);
    if (size < KV_SNAPSHOT_HEADER_SIZE + KV_SNAPSHOT_SUM_SIZE)
        return pi_fail(err, PITH_FORMAT, "%s: %zu bytes hold no whole header", name, size);
    uint64_t file_size = get_u64(bytes + 16);
    if (file_size != size)
        return pi_fail(err, PITH_FORMAT, "%s: the file has %zu bytes and says %llu", name, size,
                       (unsigned long long)file_size);
    uint64_t sum = get_u64(bytes + size - KV_SNAPSHOT_SUM_SIZE);
    uint64_t found = pi_sum_of(bytes, size - KV_SNAPSHOT_SUM_SIZE);
    if (sum != found)
        return pi_fail(err, PITH_FORMAT, "%s: damaged: its checksum is %016llx, not %016llx", name,
                       (unsigned long long)found, (unsigned long long)sum);
    return PITH_OK;
}

/* The types at the ends, and the groups, which follow from the rest. */
static pith_status parse_edges(const char *name, const uint8_t *bytes, struct kv_geometry *g,
                               pith_error *err)
{
    int32_t edge[KV_SNAPSHOT_N_EDGE], want[KV_SNAPSHOT_N_EDGE];
    for (int i = 0; i < KV_SNAPSHOT_N_EDGE; i++)
        edge[i] = get_i32(bytes + KV_SNAPSHOT_EDGES + 4 * i);
    if (edge[0] < 0 || edge[0] >= KV_N_TYPE || edge[3] < 0 || edge[3] >= KV_N_TYPE)
        return pi_fail(err, PITH_FORMAT,
                       "%s: edge types of K and V: %d and %d are not both below %d", name, edge[0],
                       edge[3], KV_N_TYPE);
    g->edge_k = (struct kv_edge){(enum kv_type)edge[0], edge[1], edge[2]};
    g->edge_v = (struct kv_edge){(enum kv_type)edge[3], edge[4], edge[5]};
    pith_error shape;
    if (kv_geometry_check(g, &shape) != PITH_OK)
        return pi_fail(err, PITH_FORMAT, "%s: %s", name, shape.message);
    kv_snapshot_edges(g, want);
    for (int i = 0; i < KV_SNAPSHOT_N_EDGE; i++)
        if (edge[i] != want[i])
            return pi_fail(err, PITH_FORMAT, "%s: edges and groups: number %d is %d, not %d", name,
                           i, edge[i], want[i]);
    return PITH_OK;
}

/* Shape and types. */
static pith_status parse_shape(const char *name, const uint8_t *bytes, struct kv_geometry *g,
                               pith_error *err)
{
    int32_t field[KV_SNAPSHOT_N_FIELD];
    for (int i = 0; i < KV_SNAPSHOT_N_FIELD; i++)
        field[i] = get_i32(bytes + 24 + 4 * i);
    if (field[5] < 0 || field[5] >= KV_N_TYPE || field[6] < 0 || field[6] >= KV_N_TYPE)
        return pi_fail(err, PITH_FORMAT, "%s: type_k and type_v: %d and %d are not both below %d",
                       name, field[5], field[6], KV_N_TYPE);
    *g = (struct kv_geometry){.n_layer = field[0],
                              .n_head = field[1],
                              .dim_k = field[2],
                              .dim_v = field[3],
                              .page_len = field[4],
                              .type_k = (enum kv_type)field[5],
                              .type_v = (enum kv_type)field[6],
                              .v_in_k = get_i32(bytes + KV_SNAPSHOT_V_IN_K),
                              .index = KV_INDEX_ROWS};
    pith_error shape;
    if (g->v_in_k < 0)
        return pi_fail(err, PITH_FORMAT, "%s: v_in_k: %d is no dimension that values begin at",
                       name, g->v_in_k);
    if (kv_geometry_check(g, &shape) != PITH_OK)
        return pi_fail(err, PITH_FORMAT, "%s: %s", name, shape.message);
    return parse_edges(name, bytes, g, err);
}

static pith_status parse_header(const char *name, const uint8_t *bytes, struct kv_snapshot *out,
                                pith_error *err)
{
    uint32_t size = kv_snapshot_u32(bytes + 12);
    if (size != KV_SNAPSHOT_HEADER_SIZE)
        return pi_fail(err, PITH_FORMAT, "%s: header_size: %u is not %d", name, size,
                       KV_SNAPSHOT_HEADER_SIZE);
    PI_TRY(parse_shape(name, bytes, &out->g, err));
    out->n_kind = kv_classes_make(&out->g, out->kind);
    uint64_t page_bytes = get_u64(bytes + 64);
    if (page_bytes != kv_page_bytes(&out->g))
        return pi_fail(err, PITH_FORMAT, "%s: page_bytes: %llu is not the %zu of its shape", name,
                       (unsigned long long)page_bytes, kv_page_bytes(&out->g));
    out->n_page = get_i32(bytes + 52);
    if (out->n_page < 0)
        return pi_fail(err, PITH_FORMAT, "%s: n_page: %u is too large", name,
                       kv_snapshot_u32(bytes + 52));
    return PITH_OK;
}

/* ---- sections ---- */

struct reader {
    const char *name; /* of the file */
    const uint8_t *at;
    size_t left;
};

/* Takes a section that must hold n items of item_size bytes. */
static pith_status take_section(struct reader *r, const char *tag, uint64_t n, size_t item_size,
                                const uint8_t **out, pith_error *err)
{
    if (r->left < KV_SNAPSHOT_SECTION_SIZE || memcmp(r->at, tag, 4) != 0)
        return pi_fail(err, PITH_FORMAT, "%s: section %s is not where it belongs", r->name, tag);
    uint64_t size = get_u64(r->at + 4);
    r->at += KV_SNAPSHOT_SECTION_SIZE;
    r->left -= KV_SNAPSHOT_SECTION_SIZE;
    if (size > r->left)
        return pi_fail(err, PITH_FORMAT, "%s: section %s: %llu bytes, and %zu are left", r->name,
                       tag, (unsigned long long)size, r->left);
    if (size % item_size != 0 || size / item_size != n)
        return pi_fail(err, PITH_FORMAT, "%s: section %s: %llu bytes are not %llu items of %zu",
                       r->name, tag, (unsigned long long)size, (unsigned long long)n, item_size);
    *out = r->at;
    r->at += size;
    r->left -= (size_t)size;
    return PITH_OK;
}

/* Pages of all layers alike, or of several sizes, whose sum the tables say. */
static pith_status take_pages(struct reader *r, struct kv_snapshot *out, pith_error *err)
{
    size_t before = r->left, page = out->kind[0].layout.bytes;
    if (out->n_kind == 1) {
        PI_TRY(take_section(r, "PAGE", (uint64_t)out->n_page, page, &out->pages, err));
    } else {
        uint64_t size = r->left >= KV_SNAPSHOT_SECTION_SIZE ? get_u64(r->at + 4) : 0;
        PI_TRY(take_section(r, "PAGE", size, 1, &out->pages, err));
    }
    out->pages_size = before - r->left - KV_SNAPSHOT_SECTION_SIZE;
    return PITH_OK;
}

static bool all_finite(const uint8_t *p, size_t size, int32_t value_bytes);

/* The state is empty, or the number of its tokens and floats. */
static pith_status take_state(struct reader *r, struct kv_snapshot *out, pith_error *err)
{
    uint64_t size = r->left >= KV_SNAPSHOT_SECTION_SIZE ? get_u64(r->at + 4) : 0;
    PI_TRY(take_section(r, "STAT", size, 1, &out->state, err));
    out->state_size = (size_t)size;
    if (size > 0 && (size <= 4 || size % 4 != 0 || get_i32(out->state) < 0 ||
                     !all_finite(out->state + 4, out->state_size - 4, 4)))
        return pi_fail(err, PITH_FORMAT,
                       "%s: section STAT: %zu bytes are no number of tokens and finite floats",
                       r->name, out->state_size);
    return PITH_OK;
}

static pith_status take_sections(struct reader *r, const uint8_t *header, struct kv_snapshot *out,
                                 pith_error *err)
{
    uint64_t n_lane = (uint64_t)out->g.n_layer * (uint64_t)out->g.n_head;
    uint64_t n_ref = get_u64(header + 56), extra_size = get_u64(header + 72);
    PI_TRY(take_section(r, "LANE", n_lane, 4, &out->lane, err));
    PI_TRY(take_section(r, "REFS", n_ref, KV_SNAPSHOT_REF_SIZE, &out->refs, err));
    PI_TRY(take_pages(r, out, err));
    PI_TRY(take_state(r, out, err));
    PI_TRY(take_section(r, "EXTR", extra_size, 1, &out->extra, err));
    out->n_ref = (size_t)n_ref;
    out->extra_size = (size_t)extra_size;
    if (r->left != 0)
        return pi_fail(err, PITH_FORMAT, "%s: %zu bytes follow the last section", r->name, r->left);
    return PITH_OK;
}

/* ---- pages ---- */

/* Whether every value of `size` bytes is finite: f16 and f32 say otherwise with an exponent of all
   ones. Adding 1 at the exponent's lowest bit carries into the sign bit of a magnitude then. */
static bool all_finite(const uint8_t *p, size_t size, int32_t value_bytes)
{
    const uint64_t mag = value_bytes == 2 ? 0x7fff7fff7fff7fffu : 0x7fffffff7fffffffu;
    const uint64_t one = value_bytes == 2 ? 0x0400040004000400u : 0x0080000000800000u;
    uint64_t seen = 0, word;
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&word, p + i, 8);
        seen |= (word & mag) + one;
    }
    word = 0;
    memcpy(&word, p + i, size - i);
    seen |= (word & mag) + one;
    return (seen & ~mag) == 0;
}

/* Whether every value of bf16 is one that the type stores: finite, and 0 or not below its least. */
static bool all_bf16(const uint8_t *p, size_t size)
{
    const uint16_t least = pi_attend_bf16(PI_ATTEND_BF16_STORED, 0.0f);
    bool bad = false;
    for (size_t i = 0; i < size; i += 2) {
        uint16_t value;
        memcpy(&value, p + i, 2);
        value &= 0x7fff;
        bad |= value >= 0x7f80 || (value != 0 && value < least);
    }
    return !bad;
}

/* Codes are -127..127; kernels may rely on it. */
static bool all_codes(const uint8_t *p, size_t size)
{
    bool bad = false;
    for (size_t i = 0; i < size; i++)
        bad |= p[i] == 0x80;
    return !bad;
}

/* Keys or values of a page, and their scales. */
static bool part_is_sound(const struct kv_snapshot *s, const struct kv_part *part,
                          const uint8_t *page)
{
    const struct kv_plane *low = &part->plane[KV_PLANE_LOW], *scale = &part->plane[KV_PLANE_SCALE];
    size_t n = (size_t)s->g.page_len;
    if (part->codec->kernel == PI_ATTEND_BF16)
        return all_bf16(page + low->at, n * low->row);
    if (part->codec->bits > 8)
        return all_finite(page + low->at, n * low->row, part->codec->bits / 8);
    return (part->codec->bits < 8 || all_codes(page + low->at, n * low->row)) &&
           all_finite(page + scale->at, n * scale->row, 2);
}

static pith_status check_page(const char *name, const struct kv_snapshot *s,
                              const struct kv_class *kind, int32_t i, const uint8_t *page,
                              pith_error *err)
{
    bool k = part_is_sound(s, &kind->k, page), v = part_is_sound(s, &kind->v, page);
    if (!k || !v)
        return pi_fail(err, PITH_FORMAT, "%s: page %d: its %s hold a number out of range", name, i,
                       k ? "values" : "keys");
    return PITH_OK;
}

/* ---- tables ---- */

/* The positions of a table entry's entries: ascending, but in an unordered lane, and in range with
   and without the delta. */
static pith_status check_positions(const char *name, size_t index, struct kv_snapshot_ref ref,
                                   const uint8_t *pos, bool unordered, pith_error *err)
{
    int64_t before = pi_max(0, -(int64_t)ref.delta) - 1;
    int64_t last = pi_min(INT32_MAX, INT32_MAX - (int64_t)ref.delta);
    for (int32_t i = 0; i < ref.n; i++) {
        int32_t p = get_i32(pos + 4 * i);
        if (p <= before || p > last)
            return pi_fail(err, PITH_FORMAT,
                           "%s: table entry %zu: position %d of entry %d is out of order or range",
                           name, index, p, i);
        before = unordered ? before : p;
    }
    return PITH_OK;
}

/* Checks a table entry except its page and positions. */
static pith_status check_ref(const char *name, const struct kv_snapshot *s, size_t i,
                             struct kv_snapshot_ref ref, pith_error *err)
{
    if (ref.n < 1 || ref.n > s->g.page_len)
        return pi_fail(err, PITH_FORMAT, "%s: table entry %zu: %d entries are not in 1..%d", name,
                       i, ref.n, s->g.page_len);
    if (ref.count < 1 || ref.count > KV_COUNT_MAX)
        return pi_fail(err, PITH_FORMAT, "%s: table entry %zu: count %d is not in 1..%d", name, i,
                       ref.count, KV_COUNT_MAX);
    if (ref.closed && ref.n == s->g.page_len)
        return pi_fail(err, PITH_FORMAT, "%s: table entry %zu: a full page is closed", name, i);
    return PITH_OK;
}

/* How far the tables were walked. */
struct walk {
    size_t ref;   /* table entries */
    int32_t page; /* pages that were named */
    size_t at;    /* their bytes */
};

/* Table entries of one lane, whose pages are of a class. Pages come in the order in which they are
   first named. */
static pith_status check_lane(const char *name, const struct kv_snapshot *s,
                              const struct kv_class *kind, struct kv_snapshot_lane lane,
                              struct walk *w, pith_error *err)
{
    int32_t first = w->page;
    const uint8_t *base = s->pages + w->at;
    size_t size = kind->layout.bytes;
    int64_t len = 0;
    for (size_t i = w->ref; i < w->ref + lane.n; i++) {
        struct kv_snapshot_ref ref = kv_snapshot_ref_at(s, i);
        if (ref.page < first || ref.page > w->page || ref.page >= s->n_page)
            return pi_fail(err, PITH_FORMAT, "%s: table entry %zu: page %d is out of order", name,
                           i, ref.page);
        PI_TRY(check_ref(name, s, i, ref, err));
        const uint8_t *page = base + (size_t)(ref.page - first) * size;
        if (ref.page == w->page) {
            if (size > s->pages_size - w->at)
                return pi_fail(err, PITH_FORMAT, "%s: page %d: %zu bytes, and %zu are left", name,
                               ref.page, size, s->pages_size - w->at);
            PI_TRY(check_page(name, s, kind, ref.page, page, err));
            w->page++;
            w->at += size;
        }
        PI_TRY(check_positions(name, i, ref, page + kind->layout.stored, lane.unordered, err));
        len += ref.n;
        if (len > INT32_MAX)
            return pi_fail(err, PITH_FORMAT, "%s: a lane has more than %d entries", name,
                           INT32_MAX);
    }
    w->ref += lane.n;
    return PITH_OK;
}

static pith_status check_tables(const char *name, const struct kv_snapshot *s, pith_error *err)
{
    struct walk w = {0};
    for (size_t l = 0; l < (size_t)s->g.n_layer * (size_t)s->g.n_head; l++) {
        struct kv_snapshot_lane lane = kv_snapshot_lane_at(s, l);
        const struct kv_class *kind =
            kv_class_of(s->kind, &s->g, (int32_t)(l / (size_t)s->g.n_head));
        if (lane.n > INT32_MAX || lane.n > s->n_ref - w.ref)
            return pi_fail(err, PITH_FORMAT, "%s: lane %zu: %u table entries, and %zu are left",
                           name, l, lane.n, s->n_ref - w.ref);
        PI_TRY(check_lane(name, s, kind, lane, &w, err));
    }
    if (w.ref != s->n_ref || w.page != s->n_page || w.at != s->pages_size)
        return pi_fail(
            err, PITH_FORMAT,
            "%s: the lanes have %zu table entries and %d pages of %zu bytes, not %zu and "
            "%d of %zu",
            name, w.ref, w.page, w.at, s->n_ref, s->n_page, s->pages_size);
    return PITH_OK;
}

pith_status kv_snapshot_parse(const char *name, const uint8_t *bytes, size_t size,
                              struct kv_snapshot *out, pith_error *err)
{
    struct kv_snapshot s = {0};
    PI_TRY(check_envelope(name, bytes, size, err));
    PI_TRY(parse_header(name, bytes, &s, err));
    struct reader r = {name, bytes + KV_SNAPSHOT_HEADER_SIZE,
                       size - KV_SNAPSHOT_HEADER_SIZE - KV_SNAPSHOT_SUM_SIZE};
    PI_TRY(take_sections(&r, bytes, &s, err));
    PI_TRY(check_tables(name, &s, err));
    *out = s;
    return PITH_OK;
}
