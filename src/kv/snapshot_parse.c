/*
 * snapshot_parse.c - reads snapshots as bytes, after docs/snapshot.md. It trusts no number: each is
 * checked before it is used, whether or not the checksum is right. It knows no pool. Invariant:
 * what kv_snapshot_parse accepts can be loaded into a cache of that shape without another check.
 */
#include "kv/hash.h"
#include "kv/snapshot.h"

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

struct kv_page_ref kv_snapshot_ref(const uint8_t *p)
{
    return (struct kv_page_ref){get_i32(p), get_i32(p + 4), get_i32(p + 8)};
}

struct kv_snapshot_lane kv_snapshot_lane_at(const struct kv_snapshot *s, size_t l)
{
    uint32_t bits = kv_snapshot_u32(s->lane + 4 * l);
    if (s->version < KV_SNAPSHOT_VERSION_UNORDERED)
        return (struct kv_snapshot_lane){bits, false};
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
    if (version == 1 || version == 2)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: snapshot version %u, whose keys stand in an order that is no longer "
                       "read; this build reads %d and %d",
                       name, version, KV_SNAPSHOT_VERSION, KV_SNAPSHOT_VERSION_UNORDERED);
    if (version < KV_SNAPSHOT_VERSION || version > KV_SNAPSHOT_VERSION_UNORDERED)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: snapshot version %u; this build reads %d and %d",
                       name, version, KV_SNAPSHOT_VERSION, KV_SNAPSHOT_VERSION_UNORDERED);
    if (size < KV_SNAPSHOT_HEADER_SIZE + KV_SNAPSHOT_SUM_SIZE)
        return pi_fail(err, PITH_FORMAT, "%s: %zu bytes hold no whole header", name, size);
    uint64_t file_size = get_u64(bytes + 16);
    if (file_size != size)
        return pi_fail(err, PITH_FORMAT, "%s: the file has %zu bytes and says %llu", name, size,
                       (unsigned long long)file_size);
    uint64_t sum = get_u64(bytes + size - KV_SNAPSHOT_SUM_SIZE);
    uint64_t found = kv_hash_of(bytes, size - KV_SNAPSHOT_SUM_SIZE);
    if (sum != found)
        return pi_fail(err, PITH_FORMAT, "%s: damaged: its checksum is %016llx, not %016llx", name,
                       (unsigned long long)found, (unsigned long long)sum);
    return PITH_OK;
}

static pith_status parse_header(const char *name, const uint8_t *bytes, struct kv_snapshot *out,
                                pith_error *err)
{
    uint32_t header_size = kv_snapshot_u32(bytes + 12);
    if (header_size != KV_SNAPSHOT_HEADER_SIZE)
        return pi_fail(err, PITH_FORMAT, "%s: header_size: %u is not %d", name, header_size,
                       KV_SNAPSHOT_HEADER_SIZE);
    int32_t field[KV_SNAPSHOT_N_FIELD];
    for (int i = 0; i < KV_SNAPSHOT_N_FIELD; i++)
        field[i] = get_i32(bytes + 24 + 4 * i);
    if (field[5] < 0 || field[5] >= KV_N_TYPE || field[6] < 0 || field[6] >= KV_N_TYPE)
        return pi_fail(err, PITH_FORMAT, "%s: type_k and type_v: %d and %d are not both below %d",
                       name, field[5], field[6], KV_N_TYPE);
    out->g = (struct kv_geometry){.n_layer = field[0],
                                  .n_head = field[1],
                                  .dim_k = field[2],
                                  .dim_v = field[3],
                                  .page_len = field[4],
                                  .type_k = (enum kv_type)field[5],
                                  .type_v = (enum kv_type)field[6],
                                  .index = KV_INDEX_ROWS};
    pith_error shape;
    if (kv_geometry_check(&out->g, &shape) != PITH_OK)
        return pi_fail(err, PITH_FORMAT, "%s: %s", name, shape.message);
    kv_page_layout_make(&out->g, &out->layout);
    uint64_t page_bytes = get_u64(bytes + 64);
    if (page_bytes != out->layout.bytes)
        return pi_fail(err, PITH_FORMAT, "%s: page_bytes: %llu is not the %zu of its shape", name,
                       (unsigned long long)page_bytes, out->layout.bytes);
    out->version = kv_snapshot_u32(bytes + 8);
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

static pith_status take_sections(struct reader *r, const uint8_t *header, struct kv_snapshot *out,
                                 pith_error *err)
{
    uint64_t n_lane = (uint64_t)out->g.n_layer * (uint64_t)out->g.n_head;
    uint64_t n_ref = get_u64(header + 56), extra_size = get_u64(header + 72);
    PI_TRY(take_section(r, "LANE", n_lane, 4, &out->lane, err));
    PI_TRY(take_section(r, "REFS", n_ref, KV_SNAPSHOT_REF_SIZE, &out->refs, err));
    PI_TRY(take_section(r, "PAGE", (uint64_t)out->n_page, out->layout.bytes, &out->pages, err));
    PI_TRY(take_section(r, "EXTR", extra_size, 1, &out->extra, err));
    out->n_ref = (size_t)n_ref;
    out->extra_size = (size_t)extra_size;
    if (r->left != 0)
        return pi_fail(err, PITH_FORMAT, "%s: %zu bytes follow the last section", r->name, r->left);
    return PITH_OK;
}

/* ---- tables ---- */

/* The positions of a table entry's entries: ascending, but in an unordered lane, and in range with
   and without the delta. */
static pith_status check_positions(const char *name, const struct kv_snapshot *s, size_t index,
                                   struct kv_page_ref ref, bool unordered, pith_error *err)
{
    const uint8_t *pos = s->pages + (size_t)ref.page * s->layout.bytes + s->layout.pos;
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

/* Table entries of one lane. Pages come in the order in which they are first named; first is the
   first of this lane, *next the next new one. */
static pith_status check_lane(const char *name, const struct kv_snapshot *s, size_t begin,
                              struct kv_snapshot_lane lane, int32_t *next, pith_error *err)
{
    int32_t first = *next;
    int64_t len = 0;
    for (size_t i = begin; i < begin + lane.n; i++) {
        struct kv_page_ref ref = kv_snapshot_ref(s->refs + i * KV_SNAPSHOT_REF_SIZE);
        if (ref.page < first || ref.page > *next || ref.page >= s->n_page)
            return pi_fail(err, PITH_FORMAT, "%s: table entry %zu: page %d is out of order", name,
                           i, ref.page);
        if (ref.n < 1 || ref.n > s->g.page_len)
            return pi_fail(err, PITH_FORMAT, "%s: table entry %zu: %d entries are not in 1..%d",
                           name, i, ref.n, s->g.page_len);
        PI_TRY(check_positions(name, s, i, ref, lane.unordered, err));
        *next += ref.page == *next;
        len += ref.n;
        if (len > INT32_MAX)
            return pi_fail(err, PITH_FORMAT, "%s: a lane has more than %d entries", name,
                           INT32_MAX);
    }
    return PITH_OK;
}

static pith_status check_tables(const char *name, const struct kv_snapshot *s, pith_error *err)
{
    size_t begin = 0;
    int32_t next = 0;
    for (size_t l = 0; l < (size_t)s->g.n_layer * (size_t)s->g.n_head; l++) {
        struct kv_snapshot_lane lane = kv_snapshot_lane_at(s, l);
        if (lane.n > INT32_MAX || lane.n > s->n_ref - begin)
            return pi_fail(err, PITH_FORMAT, "%s: lane %zu: %u table entries, and %zu are left",
                           name, l, lane.n, s->n_ref - begin);
        PI_TRY(check_lane(name, s, begin, lane, &next, err));
        begin += lane.n;
    }
    if (begin != s->n_ref || next != s->n_page)
        return pi_fail(err, PITH_FORMAT,
                       "%s: the lanes have %zu table entries and %d pages, not %zu and %d", name,
                       begin, next, s->n_ref, s->n_page);
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

/* Codes are -127..127; kernels may rely on it. */
static bool all_codes(const uint8_t *p, size_t size)
{
    bool bad = false;
    for (size_t i = 0; i < size; i++)
        bad |= p[i] == 0x80;
    return !bad;
}

/* Keys or values of a page, and their scales. */
static bool part_is_sound(const struct kv_snapshot *s, enum kv_type type, int32_t dim,
                          const uint8_t *values, const uint8_t *scales)
{
    const struct kv_codec *codec = &kv_codecs[type];
    size_t n = (size_t)dim * (size_t)s->g.page_len;
    if (codec->scale_bytes == 0)
        return all_finite(values, n * (size_t)codec->value_bytes, codec->value_bytes);
    return all_codes(values, n) &&
           all_finite(scales, n / (size_t)codec->block * (size_t)codec->scale_bytes,
                      codec->scale_bytes);
}

static pith_status check_pages(const char *name, const struct kv_snapshot *s, pith_error *err)
{
    for (int32_t i = 0; i < s->n_page; i++) {
        const uint8_t *page = s->pages + (size_t)i * s->layout.bytes;
        bool k =
            part_is_sound(s, s->g.type_k, s->g.dim_k, page + s->layout.k, page + s->layout.k_scale);
        bool v =
            part_is_sound(s, s->g.type_v, s->g.dim_v, page + s->layout.v, page + s->layout.v_scale);
        if (!k || !v)
            return pi_fail(err, PITH_FORMAT, "%s: page %d: its %s hold a number out of range", name,
                           i, k ? "values" : "keys");
    }
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
    PI_TRY(check_pages(name, &s, err));
    *out = s;
    return PITH_OK;
}
