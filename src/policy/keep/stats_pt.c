/*
 * stats_pt.c - the statistics that the authors of TriAttention publish: a PyTorch file, which is a
 * ZIP archive of stored entries with a pickle (data.pkl) that says what lies where, and one entry
 * of floats per tensor. The pickle is read by pickle.c, which executes nothing.
 *
 *     {"metadata": {"rope_style": "half", "head_dim": 128, ...},
 *      "stats": {"layer00_head00": {"q_mean_real", "q_mean_imag", "q_abs_mean": [n_pair]}, ...}}
 *
 * It must not believe the archive: every offset is checked, and every entry that is read is
 * compared with its CRC.
 */
#include <stdio.h>

#include "base/mem.h"
#include "policy/keep/pickle.h"
#include "policy/keep/stats.h"

#define END_SIZE 22
#define END_SEARCH (END_SIZE + 65535) /* the archive's comment may follow */
#define CENTRAL_SIZE 46
#define LOCAL_SIZE 30

/* Bytes of a pickle that is read. That of 1,152 heads has 370,555; a hostile one costs some 50
   bytes of memory for each of its own, twice that where arrays have just grown. */
#define MAX_PICKLE (16 << 20)

/* A stored file of the archive. */
struct entry {
    const uint8_t *data; /* [size] */
    size_t size;
    uint32_t crc;
    bool checked;
};

struct archive {
    struct entry pickle;
    struct entry *storage; /* [n_entry] by number, owned; data NULL: absent */
    size_t n_entry;
    size_t n_byte; /* of the entries so far */
    uint32_t crc_table[256];
};

static uint32_t u16_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}
static uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | u16_at(p + 2) << 16;
}

/* ---- the archive ---- */

/* CRC-32 of ZIP: reflected polynomial 0xedb88320. */
static void fill_crc(uint32_t *table)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int b = 0; b < 8; b++)
            c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
        table[i] = c;
    }
}

/* number: of the storage; -1: the pickle. */
static pith_status check_crc(const struct archive *a, struct entry *e, int64_t number,
                             pith_error *err)
{
    char name[32] = "data.pkl";
    uint32_t c = 0xffffffffu;
    if (e->checked)
        return PITH_OK;
    e->checked = true;
    for (size_t i = 0; i < e->size; i++)
        c = a->crc_table[(c ^ e->data[i]) & 0xff] ^ (c >> 8);
    if ((c ^ 0xffffffffu) == e->crc)
        return PITH_OK;
    if (number >= 0)
        snprintf(name, sizeof(name), "data/%lld", (long long)number);
    return pi_fail(err, PITH_FORMAT, "%s: its CRC %08x is not %08x, the archive is damaged", name,
                   c ^ 0xffffffffu, e->crc);
}

/* The record that ends the archive; NULL where there is none. */
static const uint8_t *find_end(const uint8_t *data, size_t size)
{
    size_t least = size > END_SEARCH ? size - END_SEARCH : 0;
    for (size_t at = size >= END_SIZE ? size - END_SIZE + 1 : 0; at-- > least;)
        if (memcmp(data + at, "PK\5\6", 4) == 0)
            return data + at;
    return NULL;
}

/* Whether name [n] ends with "/data/NUMBER"; the number. */
static bool storage_number(const uint8_t *name, size_t n, size_t *number)
{
    size_t digit = n;
    *number = 0;
    while (digit > 0 && name[digit - 1] >= '0' && name[digit - 1] <= '9')
        digit--;
    if (digit == n || n - digit > 9 || digit < 6 || memcmp(name + digit - 6, "/data/", 6) != 0)
        return false;
    for (size_t i = digit; i < n; i++)
        *number = 10 * *number + (size_t)(name[i] - '0');
    return true;
}

/* One record of the central directory, number i: notes the entry where it is one that matters. */
static pith_status note_entry(struct archive *a, const uint8_t *data, size_t size,
                              const uint8_t *record, size_t i, pith_error *err)
{
    const uint8_t *name = record + CENTRAL_SIZE;
    size_t n_name = u16_at(record + 28);
    uint32_t flags = u16_at(record + 8), method = u16_at(record + 10);
    size_t packed = u32_at(record + 20), full = u32_at(record + 24), at = u32_at(record + 42);
    size_t number = 0;
    bool is_pickle = n_name >= 9 && memcmp(name + n_name - 9, "/data.pkl", 9) == 0;
    if (!is_pickle && (!storage_number(name, n_name, &number) || number >= a->n_entry))
        return PITH_OK;
    if ((flags & 1) != 0 || method != 0 || packed != full)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "entry %zu of the archive is compressed or encrypted (method %u, flags %x); "
                       "PyTorch stores entries as they are",
                       i, method, flags);
    if (at > size || size - at < LOCAL_SIZE || memcmp(data + at, "PK\3\4", 4) != 0)
        return pi_fail(err, PITH_FORMAT, "entry %zu of the archive has no header at byte %zu", i,
                       at);
    size_t begin = at + LOCAL_SIZE + u16_at(data + at + 26) + u16_at(data + at + 28);
    if (begin > size || full > size - begin)
        return pi_fail(err, PITH_FORMAT,
                       "entry %zu of the archive, %zu bytes, reaches beyond its end", i, full);
    /* Entries lie beside each other, so that reading all of them reads the file once. */
    a->n_byte += full;
    if (a->n_byte > size)
        return pi_fail(err, PITH_FORMAT, "entry %zu of the archive overlaps others", i);
    if (is_pickle && full > MAX_PICKLE)
        return pi_fail(err, PITH_FORMAT, "data.pkl: %zu bytes are more than %d", full, MAX_PICKLE);
    *(is_pickle ? &a->pickle : &a->storage[number]) =
        (struct entry){data + begin, full, u32_at(record + 16), false};
    return PITH_OK;
}

static pith_status read_archive(struct archive *a, const uint8_t *data, size_t size,
                                pith_error *err)
{
    const uint8_t *end = find_end(data, size);
    if (end == NULL)
        return pi_fail(err, PITH_FORMAT, "the archive has no end record: the file is cut off");
    size_t n = u16_at(end + 10), dir_size = u32_at(end + 12), at = u32_at(end + 16);
    if (n == UINT16_MAX || at == UINT32_MAX)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "the archive is a ZIP64 one, of 65535 entries or 4 GiB and more");
    if (at > size || dir_size > size - at || n * CENTRAL_SIZE > dir_size)
        return pi_fail(err, PITH_FORMAT, "the archive's directory of %zu entries is not in it", n);
    fill_crc(a->crc_table);
    a->n_entry = n;
    a->storage = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(*a->storage));
    if (a->storage == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %zu entries of an archive", n);
    const uint8_t *record = data + at, *stop = data + at + dir_size;
    for (size_t i = 0; i < n; i++) {
        if (stop - record < CENTRAL_SIZE || memcmp(record, "PK\1\2", 4) != 0)
            return pi_fail(err, PITH_FORMAT, "entry %zu of the archive's directory is damaged", i);
        size_t n_name = u16_at(record + 28);
        size_t len = CENTRAL_SIZE + n_name + u16_at(record + 30) + u16_at(record + 32);
        if (len > (size_t)(stop - record))
            return pi_fail(err, PITH_FORMAT, "entry %zu of the archive's directory is damaged", i);
        PI_TRY(note_entry(a, data, size, record, i, err));
        record += len;
    }
    if (a->pickle.data == NULL)
        return pi_fail(err, PITH_FORMAT, "the archive has no data.pkl: it is no PyTorch file");
    return check_crc(a, &a->pickle, -1, err);
}

/* ---- the statistics in it ---- */

/* "layer%02d_head%02d" (more digits where they are needed). */
static bool parse_key(const struct pickle *p, int32_t node, int32_t *layer, int32_t *head)
{
    const struct pickle_node *n = &p->node[node];
    const char *words[] = {"layer", "_head"};
    int32_t *to[] = {layer, head}, at = 0;
    if (n->type != PICKLE_TEXT)
        return false;
    const uint8_t *text = p->data + n->value;
    for (int i = 0; i < 2; i++) {
        int32_t digits = 0, value = 0;
        if (n->n - at < 5 || memcmp(text + at, words[i], 5) != 0)
            return false;
        for (at += 5; at < n->n && digits < 6 && text[at] >= '0' && text[at] <= '9'; at++, digits++)
            value = 10 * value + (text[at] - '0');
        if (digits == 0)
            return false;
        *to[i] = value;
    }
    return at == n->n;
}

#define MAX_PARTS 64 /* keys and values of a head: a few more than are read */

static const char *const parts[] = {"q_mean_real", "q_mean_imag", "q_abs_mean"};

/* Layers, heads and bands, from the keys and the first tensor. */
static pith_status measure(const struct pickle *p, int32_t stats, size_t size, struct pith_stats *s,
                           pith_error *err)
{
    const struct pickle_node *dict = &p->node[stats];
    int64_t n_pair = 0;
    for (int32_t c = dict->first; c >= 0;) {
        int32_t value = p->cell[c].next, layer, head;
        if (!parse_key(p, p->cell[c].node, &layer, &head))
            return pi_fail(err, PITH_FORMAT, "a key of \"stats\" is not as layer00_head00");
        if (p->node[p->cell[value].node].n > MAX_PARTS)
            return pi_fail(err, PITH_FORMAT, "layer %d, head %d has %d entries", layer, head,
                           p->node[p->cell[value].node].n / 2);
        int32_t tensor = pickle_get(p, p->cell[value].node, parts[0]);
        if (n_pair == 0 && tensor >= 0 && p->node[tensor].type == PICKLE_TENSOR)
            n_pair = p->node[tensor].len;
        s->n_layer = (int32_t)pi_max(s->n_layer, layer + 1);
        s->n_head = (int32_t)pi_max(s->n_head, head + 1);
        c = p->cell[value].next;
    }
    s->n_pair = (int32_t)pi_min(n_pair, INT32_MAX);
    PI_TRY(stats_check_shape(s, err));
    if ((int64_t)s->n_layer * s->n_head != dict->n / 2)
        return pi_fail(err, PITH_FORMAT, "%d heads are not all of %d layers with %d heads",
                       dict->n / 2, s->n_layer, s->n_head);
    /* Each head has floats of its own, so what is allocated is bounded by the file. */
    if (4 * PI_LEN(parts) * (uint64_t)s->n_layer * (uint64_t)s->n_head * (uint64_t)s->n_pair > size)
        return pi_fail(err, PITH_FORMAT, "%d heads of %d bands do not fit in %zu bytes",
                       dict->n / 2, s->n_pair, size);
    return PITH_OK;
}

static pith_status read_tensor(struct archive *a, const struct pickle *p, int32_t node, int32_t n,
                               float *out, pith_error *err)
{
    const struct pickle_node *t = node >= 0 ? &p->node[node] : NULL;
    if (t == NULL || t->type != PICKLE_TENSOR)
        return pi_fail(err, PITH_FORMAT, "it is absent or no tensor of floats");
    if (t->len != n)
        return pi_fail(err, PITH_FORMAT, "%lld bands are not %d, as others have", (long long)t->len,
                       n);
    struct entry *e = (uint64_t)t->value < a->n_entry ? &a->storage[t->value] : NULL;
    if (e == NULL || e->data == NULL || e->size / 4 < (size_t)n ||
        (uint64_t)t->offset > e->size / 4 - (size_t)n)
        return pi_fail(err, PITH_FORMAT, "data/%lld is absent or shorter than its tensor",
                       (long long)t->value);
    PI_TRY(check_crc(a, e, t->value, err));
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits = u32_at(e->data + 4 * ((size_t)t->offset + (size_t)i));
        memcpy(&out[i], &bits, sizeof(bits));
    }
    return PITH_OK;
}

static pith_status read_heads(struct archive *a, const struct pickle *p, int32_t stats,
                              struct pith_stats *s, pith_error *err)
{
    size_t n_lane = (size_t)s->n_layer * (size_t)s->n_head, len = stats_row_len(s);
    /* No modulus is negative: a row that begins so was not read yet. As there are as many keys as
       heads, none is missing where none occurs twice. */
    for (size_t i = 0; i < n_lane; i++)
        s->q[(i + 1) * len - 1] = -1.0f;
    for (int32_t c = p->node[stats].first; c >= 0;) {
        int32_t value = p->cell[c].next, layer = 0, head = 0;
        pith_error why;
        parse_key(p, p->cell[c].node, &layer, &head);
        float *row = s->q + ((size_t)layer * (size_t)s->n_head + (size_t)head) * len;
        if (row[len - 1] >= 0.0f)
            return pi_fail(err, PITH_FORMAT, "layer %d, head %d occurs twice", layer, head);
        for (size_t i = 0; i < PI_LEN(parts); i++) {
            int32_t tensor = pickle_get(p, p->cell[value].node, parts[i]);
            pith_status status =
                read_tensor(a, p, tensor, s->n_pair, row + i * (size_t)s->n_pair, &why);
            if (status != PITH_OK)
                return pi_fail(err, status, "layer %d, head %d, %s: %s", layer, head, parts[i],
                               why.message);
        }
        s->count[layer] = -1;
        c = p->cell[value].next;
    }
    return PITH_OK;
}

static pith_status unknown_style(const struct pickle *p, int32_t style, pith_error *err)
{
    const struct pickle_node *n = &p->node[style];
    if (n->type != PICKLE_TEXT)
        return pi_fail(err, PITH_FORMAT, "rope_style is no text");
    char *name = policy_name((const char *)p->data + n->value, (size_t)pi_min(n->n, 40));
    pith_status status =
        pi_fail(err, PITH_FORMAT, "rope_style: \"%s\" is neither \"half\" nor \"interleaved\"",
                name != NULL ? name : "");
    pi_mem_free(name);
    return status;
}

static pith_status read_metadata(const struct pickle *p, struct pith_stats *s, pith_error *err)
{
    int32_t metadata = pickle_get(p, p->root, "metadata");
    int32_t style = pickle_get(p, metadata, "rope_style");
    int32_t dim = pickle_get(p, metadata, "head_dim");
    int32_t name = pickle_get(p, metadata, "model_name");
    if (pickle_is_text(p, style, "half"))
        s->pairing = PITH_PAIRING_HALF;
    else if (pickle_is_text(p, style, "interleaved"))
        s->pairing = PITH_PAIRING_ADJACENT;
    else if (style >= 0)
        return unknown_style(p, style, err);
    if (dim >= 0 && p->node[dim].type != PICKLE_INT)
        return pi_fail(err, PITH_FORMAT, "head_dim is no whole number");
    if (dim >= 0 && p->node[dim].value != 2 * s->n_pair)
        return pi_fail(err, PITH_FORMAT,
                       "head_dim: a head of %lld dimensions does not have %d bands",
                       (long long)p->node[dim].value, s->n_pair);
    if (name < 0 || p->node[name].type != PICKLE_TEXT || p->node[name].n > STATS_MAX_TEXT ||
        memchr(p->data + p->node[name].value, 0, (size_t)p->node[name].n) != NULL)
        return PITH_OK;
    s->model = policy_name((const char *)p->data + p->node[name].value, (size_t)p->node[name].n);
    return s->model != NULL ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for a model's name");
}

static pith_status parse(struct archive *a, struct pickle *p, const uint8_t *data, size_t size,
                         struct pith_stats *s, pith_error *err)
{
    PI_TRY(read_archive(a, data, size, err));
    PI_TRY(pickle_parse(p, a->pickle.data, a->pickle.size, err));
    int32_t stats = pickle_get(p, p->root, "stats");
    if (stats < 0 || p->node[stats].type != PICKLE_DICT)
        return pi_fail(err, PITH_FORMAT, "the file has no \"stats\": it holds something else");
    s->format = "PyTorch";
    PI_TRY(measure(p, stats, size, s, err));
    PI_TRY(read_metadata(p, s, err));
    PI_TRY(stats_alloc(s, false, false, err));
    PI_TRY(read_heads(a, p, stats, s, err));
    return stats_check(s, err);
}

pith_status stats_parse_pt(const uint8_t *data, size_t size, struct pith_stats **out,
                           pith_error *err)
{
    struct archive archive = {0};
    struct pickle pickle = {0};
    struct pith_stats *s = NULL;
    PI_TRY(stats_new(&s, err));
    pith_status status = parse(&archive, &pickle, data, size, s, err);
    pi_mem_free(archive.storage);
    pickle_free(&pickle);
    if (status != PITH_OK) {
        pith_stats_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}
