/*
 * vocab_spm.c - SentencePiece. Symbols are characters, and a pair merges when its text is a token,
 * the higher score first. A symbol that is no token falls back to bytes. Spaces are U+2581 in such
 * a vocabulary; here they are spaces, on both sides.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab/vocab_internal.h"

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

/* Floats in reverse order as unsigned integers: a higher score is a smaller number. NaN cannot be
   ordered and counts as the lowest. */
static uint32_t priority_of(float score)
{
    uint32_t bits;
    if (score != score)
        return UINT32_MAX;
    score += 0.0f; /* one zero */
    memcpy(&bits, &score, sizeof(bits));
    return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

bool pi_spm_pair(const struct pi_vocab *v, const char *text, size_t len, uint32_t *priority,
                 int32_t *id)
{
    *id = pi_vocab_find(v, text, len);
    if (*id < 0)
        return false;
    *priority = v->priority[*id];
    return true;
}

/* The token "<0x0A>" of each byte, else the byte as a token. */
static void find_bytes(struct pi_vocab *v)
{
    for (int byte = 0; byte < 256; byte++)
        v->byte_id[byte] = pi_vocab_find(v, &(char){(char)byte}, 1);
    for (int32_t id = 0; id < v->n_token; id++) {
        const struct pi_token *token = &v->token[id];
        if ((v->attr[id] & PI_TOKEN_BYTE) != 0 && token->piece_len == 1)
            v->byte_id[(uint8_t)v->text[token->piece]] = id;
    }
}

/* Where a space only ever starts a token, no merge crosses the border of two words. */
static bool spaces_lead(const struct pi_vocab *v)
{
    for (int32_t id = 0; id < v->n_token; id++) {
        const char *key = pi_token_key(v, id);
        for (uint32_t i = 1; i < v->token[id].key_len; i++) {
            if (key[i] == ' ' && key[i - 1] != ' ')
                return false;
        }
    }
    return true;
}

pith_status pi_vocab_load_spm(struct pi_vocab *v, const struct pi_gguf *g, pith_error *err)
{
    const char *key = "tokenizer.ggml.scores";
    const struct pi_gguf_kv *scores = NULL;
    v->priority = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)v->n_token, sizeof(*v->priority));
    if (v->priority == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %s", key);
    pith_status status = pi_gguf_array(g, key, PI_GGUF_F32, &scores, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    if (scores != NULL && scores->n_item != (uint64_t)v->n_token)
        return pi_fail(err, PITH_FORMAT, "%s: %llu scores for %d tokens", key,
                       (unsigned long long)scores->n_item, v->n_token);
    for (int32_t id = 0; scores != NULL && id < v->n_token; id++)
        v->priority[id] = priority_of(pi_gguf_item_f32(scores, (uint64_t)id));
    find_bytes(v);
    v->space_leads = spaces_lead(v);
    return PITH_OK;
}

/* ---- text ---- */

/* A byte that is no part of a character is a symbol of its own. */
size_t pi_spm_symbols(struct pi_session *s, const char *word, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; n++) {
        struct pi_utf8_char c = pi_utf8_next(word + i, len - i);
        uint32_t symbol_len = c.valid ? c.len : 1;
        s->symbol[n] = (struct pi_symbol){
            .start = (uint32_t)i,
            .len = symbol_len,
            .prev = (int32_t)n - 1,
            .next = i + symbol_len < len ? (int32_t)n + 1 : -1,
            .id = pi_vocab_find(s->vocab, word + i, symbol_len),
        };
        i += symbol_len;
    }
    return n;
}

/* Copies text with U+2581 as spaces and the prefix in front; returns its length. */
static size_t fill_buffer(char *out, const char *text, size_t len, bool prefix)
{
    size_t n = 0;
    if (prefix)
        out[n++] = ' ';
    while (len > 0) {
        const char *lead = memchr(text, SPACE_MARK[0], len);
        size_t plain = lead != NULL ? (size_t)(lead - text) : len;
        memcpy(out + n, text, plain);
        n += plain;
        text += plain;
        len -= plain;
        if (len == 0)
            break;
        bool mark = len >= 3 && memcmp(text, SPACE_MARK, 3) == 0;
        out[n++] = mark ? ' ' : *text;
        text += mark ? 3 : 1;
        len -= mark ? 3 : 1;
    }
    return n;
}

pith_status pi_spm_text(struct pi_session *s, const char *text, size_t len, bool prefix,
                        pith_error *err)
{
    PI_TRY(pi_session_buffer(s, len + 1, err));
    const char *at = s->buffer;
    len = fill_buffer(s->buffer, text, len, prefix && s->vocab->add_space_prefix);
    if (!s->vocab->space_leads)
        return pi_session_word(s, at, len, err);
    const char *end = at + len;
    while (at < end) {
        const char *space = at; /* the next word starts at a space behind something else */
        do
            space = memchr(space + 1, ' ', (size_t)(end - space) - 1);
        while (space != NULL && space[-1] == ' ');
        const char *next = space != NULL ? space : end;
        PI_TRY(pi_session_word(s, at, (size_t)(next - at), err));
        at = next;
    }
    return PITH_OK;
}
