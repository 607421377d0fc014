/*
 * vocab_bpe.c - byte-level BPE: the printable alphabet that vocabularies write bytes in, and the
 * ranked merges. Keys of tokens are the decoded bytes, so text is looked up as it is. A file
 * without merges is one of tiktoken's: two neighbours merge where their text is a token, the lowest
 * id first.
 */
#include "base/mem.h"
#include "text/vocab/vocab_internal.h"

/* ---- the alphabet ---- */

/* Bytes that GPT-2's alphabet writes as themselves: what is printable in Latin-1. The other 68 are
   written as U+0100, U+0101, ... in the order of their values. */
static bool is_printed(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
           (byte >= 0xae && byte <= 0xff);
}

/* The byte that character c stands for, or -1. The others in order: 00..20, 7F..A0, AD. */
static int32_t byte_of_char(uint32_t c)
{
    if (c < 0x100)
        return is_printed(c) ? (int32_t)c : -1;
    c -= 0x100;
    if (c <= 0x20)
        return (int32_t)c;
    c += 0x7f - 0x21;
    if (c <= 0xa0)
        return (int32_t)c;
    return c == 0xa1 ? 0xad : -1;
}

/* No character of the alphabet has more than two bytes. */
bool pi_bpe_decode(const char *text, size_t len, char *out, size_t *out_len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t c = (uint8_t)text[i];
        if (c >= 0x80) {
            if (c < 0xc2 || c > 0xdf || ++i == len || ((uint8_t)text[i] & 0xc0) != 0x80)
                return false;
            c = (c & 0x1f) << 6 | ((uint8_t)text[i] & 0x3f);
        }
        int32_t byte = byte_of_char(c);
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
    }
    *out_len = n;
    return true;
}

/* ---- merges ---- */

static uint32_t merge_slot(uint64_t pair, uint32_t mask)
{
    pair *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(pair >> 32) & mask;
}

bool pi_bpe_pair(const struct pi_vocab *v, int32_t left, int32_t right, uint32_t *priority,
                 int32_t *id)
{
    if (left < 0 || right < 0)
        return false;
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t i = merge_slot(pair, v->merge_mask); v->merge[i].id >= 0;
         i = (i + 1) & v->merge_mask) {
        if (v->merge[i].pair == pair) {
            *priority = v->merge[i].rank;
            *id = v->merge[i].id;
            return true;
        }
    }
    return false;
}

bool pi_rank_pair(const struct pi_vocab *v, const char *text, size_t len, uint32_t *priority,
                  int32_t *id)
{
    *id = pi_vocab_find(v, text, len);
    *priority = (uint32_t)*id;
    return *id >= 0;
}

/* The first of equal merges stays, as it has the better rank. */
static void insert_merge(struct pi_vocab *v, uint64_t pair, uint32_t rank, int32_t id)
{
    uint32_t i = merge_slot(pair, v->merge_mask);
    while (v->merge[i].id >= 0 && v->merge[i].pair != pair)
        i = (i + 1) & v->merge_mask;
    if (v->merge[i].id < 0)
        v->merge[i] = (struct pi_merge){.pair = pair, .rank = rank, .id = id};
}

/* The token of a text, which most often is the one that was guessed. */
static int32_t find_guessed(const struct pi_vocab *v, const char *text, size_t len, int32_t guess)
{
    const struct pi_token *token = guess < v->n_token && !v->twins ? &v->token[guess] : NULL;
    if (token != NULL && token->key_len == len && memcmp(v->text + token->key, text, len) == 0)
        return guess;
    return pi_vocab_find(v, text, len);
}

/* Reads "left right" of a merge. Returns false when a part or the whole is no token. decoded has
   room for the text. *id comes as the token of the merge before: tokens mostly stand in the order
   of their merges. */
static bool read_merge(const struct pi_vocab *v, struct pi_str text, char *decoded, uint64_t *pair,
                       int32_t *id)
{
    /* The first character belongs to the left part even if it is a space. */
    const char *space = text.len > 1 ? memchr(text.data + 1, ' ', text.len - 1) : NULL;
    size_t left_len, right_len;
    if (space == NULL)
        return false;
    size_t left_text = (size_t)(space - text.data);
    if (!pi_bpe_decode(text.data, left_text, decoded, &left_len) ||
        !pi_bpe_decode(space + 1, text.len - left_text - 1, decoded + left_len, &right_len))
        return false;
    int32_t left = pi_vocab_find(v, decoded, left_len);
    int32_t right = pi_vocab_find(v, decoded + left_len, right_len);
    *id = find_guessed(v, decoded, left_len + right_len, *id + 1);
    *pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return left >= 0 && right >= 0 && *id >= 0;
}

static pith_status fill_merges(struct pi_vocab *v, const struct pi_gguf_kv *merges, pith_error *err)
{
    size_t longest = 0;
    for (uint64_t i = 0; i < merges->n_item; i++) {
        struct pi_str text = pi_gguf_item_str(merges, i);
        longest = text.len > longest ? text.len : longest;
    }
    char *decoded = pi_mem_alloc(PI_MEM_OTHER, longest);
    if (decoded == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for tokenizer.ggml.merges");
    uint64_t n_skipped = 0, pair;
    int32_t id = -1;
    for (uint64_t i = 0; i < merges->n_item; i++) {
        if (read_merge(v, pi_gguf_item_str(merges, i), decoded, &pair, &id))
            insert_merge(v, pair, (uint32_t)i, id);
        else
            n_skipped++;
    }
    pi_mem_free(decoded);
    /* Such a merge could never have taken part in a token. */
    if (n_skipped > 0)
        pi_log(PITH_LOG_DEBUG, "vocab merges=%llu without_token=%llu",
               (unsigned long long)merges->n_item, (unsigned long long)n_skipped);
    return PITH_OK;
}

pith_status pi_vocab_load_bpe(struct pi_vocab *v, const struct pi_gguf *g, bool ranks,
                              pith_error *err)
{
    const struct pi_gguf_kv *merges;
    for (int byte = 0; byte < 256; byte++) {
        v->byte_id[byte] = pi_vocab_find(v, &(char){(char)byte}, 1);
        v->lacks_bytes = v->lacks_bytes || v->byte_id[byte] < 0;
    }
    pith_status status = pi_gguf_array(g, "tokenizer.ggml.merges", PI_GGUF_STRING, &merges, err);
    if (status == PITH_NOT_FOUND && ranks)
        return PITH_OK;
    if (status == PITH_NOT_FOUND)
        return pi_fail(err, PITH_FORMAT,
                       "tokenizer.ggml.merges: absent, but tokenizer.ggml.model is \"gpt2\"");
    PI_TRY(status);
    if (merges->n_item > INT32_MAX)
        return pi_fail(err, PITH_FORMAT, "tokenizer.ggml.merges: %llu are too many",
                       (unsigned long long)merges->n_item);
    size_t n_slot = 16; /* at most two thirds full */
    while (n_slot < merges->n_item + merges->n_item / 2)
        n_slot *= 2;
    v->merge = pi_mem_alloc_n(PI_MEM_MODEL, n_slot, sizeof(*v->merge));
    if (v->merge == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for tokenizer.ggml.merges");
    v->merge_mask = (uint32_t)(n_slot - 1);
    for (size_t i = 0; i < n_slot; i++)
        v->merge[i].id = -1;
    return fill_merges(v, merges, err);
}

/* ---- text ---- */

size_t pi_bpe_symbols(struct pi_session *s, const char *word, size_t len)
{
    for (size_t i = 0; i < len; i++)
        s->symbol[i] = (struct pi_symbol){
            .start = (uint32_t)i,
            .len = 1,
            .prev = (int32_t)i - 1,
            .next = i + 1 < len ? (int32_t)i + 1 : -1,
            .id = s->vocab->byte_id[(uint8_t)word[i]],
        };
    return len;
}

pith_status pi_bpe_known(struct pi_session *s, const char **word, size_t *len, pith_error *err)
{
    const int32_t *id = s->vocab->byte_id;
    size_t n = 0;
    while (n < *len && id[(uint8_t)(*word)[n]] >= 0)
        n++;
    if (n == *len)
        return PITH_OK;
    PI_TRY(pi_session_buffer(s, *len, err));
    memcpy(s->buffer, *word, n);
    for (size_t i = n; i < *len; i++)
        if (id[(uint8_t)(*word)[i]] >= 0)
            s->buffer[n++] = (*word)[i];
    *word = s->buffer;
    *len = n;
    return PITH_OK;
}

pith_status pi_bpe_text(struct pi_session *s, const char *text, size_t len, pith_error *err)
{
    if (s->vocab->composes)
        PI_TRY(pi_nfc_compose(&s->nfc, text, len, &text, &len, err));
    return pi_pre_split(s->vocab->pre, &s->pre, text, len, pi_session_word, s, err);
}
