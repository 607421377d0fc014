/*
 * nfc.c - composes text: canonical decomposition, marks in the order of their classes, and pairs
 * joined again (Unicode Standard Annex #15, form NFC). The tables are made by scripts/nfc.py.
 *
 * A text is worked on in parts. A part begins at a starter that is composed and never joins what is
 * before it, so nothing crosses into the next. Most characters are parts of their own, and a text
 * of such is given back as it is.
 */
#include "text/vocab/nfc.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab/nfc_table.h"

#define CHANGES 255 /* in nfc_class */
#define N_CLASS 255

/* Hangul syllables are computed (Unicode, section 3.12). */
#define S_BASE 0xac00u
#define L_BASE 0x1100u
#define V_BASE 0x1161u
#define T_BASE 0x11a7u
#define L_COUNT 19u
#define V_COUNT 21u
#define T_COUNT 28u
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

struct pi_nfc_char {
    uint32_t code;
    uint8_t class;
};

static uint8_t class_of(uint32_t c)
{
    if (c >= S_BASE && c < S_BASE + S_COUNT)
        return 0; /* composed, and joined by a tail alone, which is no starter of a part */
    return c < NFC_END ? nfc_class[nfc_block[c / NFC_BLOCK]][c % NFC_BLOCK] : 0;
}

void pi_nfc_free(struct pi_nfc *nfc)
{
    pi_mem_free(nfc->out);
    pi_mem_free(nfc->part);
    *nfc = (struct pi_nfc){0};
}

/* ---- tables ---- */

static const struct nfc_parts *find_parts(uint32_t c)
{
    size_t low = 0, high = PI_LEN(nfc_parts);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (nfc_parts[mid].whole < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < PI_LEN(nfc_parts) && nfc_parts[low].whole == c ? &nfc_parts[low] : NULL;
}

/* The character that a starter and what follows it make; 0: none. */
static uint32_t join(uint32_t first, uint32_t second)
{
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + second - V_BASE) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE &&
        second < T_BASE + T_COUNT)
        return first + second - T_BASE;
    uint64_t key = (uint64_t)first << 32 | second;
    size_t low = 0, high = PI_LEN(nfc_pairs);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (((uint64_t)nfc_pairs[mid].first << 32 | nfc_pairs[mid].second) < key)
            low = mid + 1;
        else
            high = mid;
    }
    bool found =
        low < PI_LEN(nfc_pairs) && nfc_pairs[low].first == first && nfc_pairs[low].second == second;
    return found ? nfc_pairs[low].whole : 0;
}

/* ---- one part ---- */

#define DECOMPOSED_MAX 4 /* characters that one becomes */

/* Writes what c decomposes into, and returns the count. A composed syllable of Hangul stays: what
   joins it joins the whole. */
static size_t decompose(uint32_t c, struct pi_nfc_char *out)
{
    uint32_t second[DECOMPOSED_MAX];
    size_t n_second = 0, n = 0;
    const struct nfc_parts *parts;
    while ((parts = find_parts(c)) != NULL) { /* only the first of two decomposes further */
        if (parts->second != 0)
            second[n_second++] = parts->second;
        c = parts->first;
    }
    out[n++] = (struct pi_nfc_char){c, 0};
    while (n_second > 0)
        out[n++] = (struct pi_nfc_char){second[--n_second], 0};
    for (size_t i = 0; i < n; i++) {
        uint8_t class = class_of(out[i].code);
        out[i].class = class == CHANGES ? 0 : class;
    }
    return n;
}

/* Puts marks in the order of their classes, equal ones as they came. A long row of marks is no
   text, but it must not take long either. room: [n], as much as part. */
static void order_marks(struct pi_nfc_char *mark, size_t n, struct pi_nfc_char *room)
{
    if (n > 32) {
        size_t first[N_CLASS + 1] = {0};
        for (size_t i = 0; i < n; i++)
            first[mark[i].class + 1]++;
        for (size_t i = 1; i <= N_CLASS; i++)
            first[i] += first[i - 1];
        for (size_t i = 0; i < n; i++)
            room[first[mark[i].class]++] = mark[i];
        memcpy(mark, room, n * sizeof(*mark));
        return;
    }
    for (size_t i = 1; i < n; i++) {
        struct pi_nfc_char moving = mark[i];
        size_t k = i;
        for (; k > 0 && mark[k - 1].class > moving.class; k--)
            mark[k] = mark[k - 1];
        mark[k] = moving;
    }
}

static void order_part(struct pi_nfc_char *part, size_t n, struct pi_nfc_char *room)
{
    size_t at = 0;
    while (at < n) {
        size_t end = at;
        while (end < n && part[end].class != 0)
            end++;
        order_marks(part + at, end - at, room);
        at = end + 1;
    }
}

/* Joins pairs in place and returns how many characters are left. A mark is blocked from the starter
   by one of its own class or a higher one between them; a starter by anything. */
static size_t compose_part(struct pi_nfc_char *part, size_t n)
{
    size_t kept = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        struct pi_nfc_char c = part[i];
        bool next = starter != SIZE_MAX && kept == starter + 1;
        bool open =
            starter != SIZE_MAX && (next || (c.class != 0 && part[kept - 1].class < c.class));
        uint32_t whole = open ? join(part[starter].code, c.code) : 0;
        if (whole != 0) {
            part[starter].code = whole;
            continue;
        }
        if (c.class == 0)
            starter = kept;
        part[kept++] = c;
    }
    return kept;
}

/* ---- the text ---- */

static pith_status no_memory(size_t len, pith_error *err)
{
    return pi_fail(err, PITH_NOMEM, "no memory to compose a text of %zu bytes", len);
}

static pith_status reserve_out(struct pi_nfc *nfc, size_t size, size_t len, pith_error *err)
{
    if (size <= nfc->out_cap)
        return PITH_OK;
    size_t cap = size + size / 2;
    char *grown = pi_mem_grow(PI_MEM_OTHER, nfc->out, cap, 1);
    if (grown == NULL)
        return no_memory(len, err);
    nfc->out = grown;
    nfc->out_cap = cap;
    return PITH_OK;
}

/* Room for twice n characters: the part, and behind it what ordering it needs. */
static pith_status reserve_part(struct pi_nfc *nfc, size_t n, size_t len, pith_error *err)
{
    if (n <= nfc->part_cap)
        return PITH_OK;
    size_t cap = n < 32 ? 32 : n + n / 2;
    struct pi_nfc_char *grown = pi_mem_grow(PI_MEM_OTHER, nfc->part, 2 * cap, sizeof(*grown));
    if (grown == NULL)
        return no_memory(len, err);
    nfc->part = grown;
    nfc->part_cap = cap;
    return PITH_OK;
}

/* The end of a part: the next starter that never changes, bytes that are no character, or the end
   of the text. */
static size_t part_end(const char *text, size_t len, size_t at)
{
    for (bool first = true; at < len; first = false) {
        struct pi_utf8_char c = pi_utf8_next(text + at, len - at);
        if (!c.valid || (!first && class_of(pi_utf8_decode(text + at, c.len)) == 0))
            break;
        at += c.len;
    }
    return at;
}

/* Appends text[at, end) composed to out[*n_out]. */
static pith_status add_part(struct pi_nfc *nfc, const char *text, size_t len, size_t at, size_t end,
                            size_t *n_out, pith_error *err)
{
    size_t n = 0;
    while (at < end) {
        struct pi_utf8_char c = pi_utf8_next(text + at, end - at);
        PI_TRY(reserve_part(nfc, n + DECOMPOSED_MAX, len, err));
        n += decompose(pi_utf8_decode(text + at, c.len), nfc->part + n);
        at += c.len;
    }
    order_part(nfc->part, n, nfc->part + nfc->part_cap);
    n = compose_part(nfc->part, n);
    PI_TRY(reserve_out(nfc, *n_out + 4 * n, len, err));
    for (size_t i = 0; i < n; i++)
        *n_out += pi_utf8_encode(nfc->part[i].code, nfc->out + *n_out);
    return PITH_OK;
}

/* Where the first part begins that may change; len: there is none. */
static size_t find_change(const char *text, size_t len, size_t at)
{
    size_t start = at; /* of the last character that a mark could join */
    while (at < len) {
        if ((uint8_t)text[at] < 0x80) {
            start = at++;
            continue;
        }
        struct pi_utf8_char c = pi_utf8_next(text + at, len - at);
        if (c.valid && class_of(pi_utf8_decode(text + at, c.len)) != 0)
            return start;
        start = c.valid ? at : at + c.len; /* nothing joins what is no character */
        at += c.len;
    }
    return len;
}

pith_status pi_nfc_compose(struct pi_nfc *nfc, const char *text, size_t len, const char **out,
                           size_t *out_len, pith_error *err)
{
    size_t done = 0, n = 0, at;
    *out = text;
    *out_len = len;
    while (done < len && (at = find_change(text, len, done)) < len) {
        size_t end = part_end(text, len, at);
        PI_TRY(reserve_out(nfc, n + at - done, len, err));
        if (at > done) /* before the first part there may be no buffer */
            memcpy(nfc->out + n, text + done, at - done);
        n += at - done;
        PI_TRY(add_part(nfc, text, len, at, end, &n, err));
        done = end;
    }
    if (done == 0)
        return PITH_OK;
    PI_TRY(reserve_out(nfc, n + len - done, len, err));
    memcpy(nfc->out + n, text + done, len - done);
    *out = nfc->out;
    *out_len = n + len - done;
    return PITH_OK;
}
